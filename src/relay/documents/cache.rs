//! Merged documents, shared by all serving threads. Each is made once after a change.
//!
//! Read only for documents that are merged. The lock is held for a look-up. Everything is dropped when a document is
//! requested with a newer generation of peers' contents.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use http::HeaderValue;

use super::entity::{Entity, EntityKey};
use crate::kube::discovery::DiscoveryDocument;
use crate::net::lock;

/// Most documents: all common documents in all formats.
const ENTITIES: usize = 256;
/// Most bytes, without the compressed copies. OpenAPI documents have 2 to 6 MiB each.
const BYTES: usize = 64 << 20;
/// Most `Accept` headers that lead to one document, and the length of one.
const ACCEPTED: usize = 16;
const LONGEST_ACCEPT: usize = 1 << 10;

/// The generation of contents that are made for one request and not cached.
pub const UNKEPT: u64 = 0;

/// What of a request decides, with the apiserver, in which form it gets a document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Variant {
    /// Its first `Accept` header.
    pub accept: Option<HeaderValue>,
    /// Nothing of peers is added, whatever it accepts.
    pub for_one: bool,
}

#[derive(Default)]
pub struct Cache {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    generation: u64,
    /// Each with the variants that led to it. Those that were requested last come last.
    entities: VecDeque<(Arc<Entity>, Vec<Variant>)>,
}

impl Cache {
    /// The document that this variant led to. The apiserver chooses the format, so only it can confirm the
    /// document.
    pub fn accepted(
        &self,
        generation: u64,
        document: &DiscoveryDocument,
        variant: &Variant,
    ) -> Option<Arc<Entity>> {
        self.find(generation, |entity, variants| {
            entity.key.document == *document && variants.contains(variant)
        })
    }

    /// The document that was made from this.
    pub fn made_from(&self, generation: u64, key: &EntityKey) -> Option<Arc<Entity>> {
        self.find(generation, |entity, _| entity.key == *key)
    }

    fn find(
        &self,
        generation: u64,
        is_it: impl Fn(&Entity, &[Variant]) -> bool,
    ) -> Option<Arc<Entity>> {
        let kept = self.kept(generation)?;
        let mut entities = kept.entities.iter();
        let found = entities.find(|(entity, variants)| is_it(entity, variants));
        found.map(|(entity, _)| entity.clone())
    }

    /// Adds a document, and the variant that led to it. It replaces the one that the apiserver had before.
    pub fn keep(&self, generation: u64, variant: &Variant, entity: &Arc<Entity>) {
        let Some(mut kept) = self.kept(generation) else {
            return;
        };
        let (entities, new) = (&mut kept.entities, &entity.key);
        let mut variants = Vec::new();
        entities.retain_mut(|(known, led)| {
            let key = &known.key;
            if key.document != new.document {
                return true;
            }
            led.retain(|by| by != variant);
            if Arc::ptr_eq(known, entity) {
                variants = std::mem::take(led);
            }
            key.content_type != new.content_type || key.for_one != new.for_one
        });
        let accept = variant.accept.as_ref();
        if accept.is_none_or(|accept| accept.len() <= LONGEST_ACCEPT) {
            variants.push(variant.clone());
        }
        if variants.len() > ACCEPTED {
            variants.remove(0);
        }
        entities.push_back((entity.clone(), variants));
        let mut bytes: usize = entities.iter().map(|(entity, _)| entity.body.len()).sum();
        while (entities.len() > ENTITIES || bytes > BYTES)
            && let Some((oldest, _)) = entities.pop_front()
        {
            bytes -= oldest.body.len();
        }
    }

    /// Locks the cache for this generation; `None` if a newer one is cached.
    fn kept(&self, generation: u64) -> Option<MutexGuard<'_, Kept>> {
        let mut kept = lock(&self.kept);
        if kept.generation < generation {
            *kept = Kept {
                generation,
                ..Kept::default()
            };
        }
        (kept.generation == generation && generation != UNKEPT).then_some(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(document: DiscoveryDocument, tag: &str) -> EntityKey {
        EntityKey {
            document,
            content_type: HeaderValue::from_static("application/json"),
            for_one: false,
            etag: etag(tag),
            hash: Vec::new(),
        }
    }

    fn variant(accept: &str) -> Variant {
        Variant {
            accept: Some(HeaderValue::from_str(accept).unwrap()),
            for_one: false,
        }
    }

    fn etag(text: &str) -> Option<HeaderValue> {
        HeaderValue::from_str(text).ok()
    }

    fn entity(document: DiscoveryDocument, tag: &str, size: usize) -> Arc<Entity> {
        let body = vec![b'x'; size];
        Arc::new(Entity::new(key(document, tag), body, None))
    }

    fn group(number: usize) -> DiscoveryDocument {
        DiscoveryDocument::Group(number.to_string())
    }

    #[test]
    fn what_is_kept_is_found_by_what_it_was_made_from_and_by_what_led_to_it() {
        let cache = Cache::default();
        let kept = entity(DiscoveryDocument::Groups, "1", 10);
        let accept = variant("application/json");
        cache.keep(1, &accept, &kept);
        let found = |key: &EntityKey| cache.made_from(1, key);
        let groups = key(DiscoveryDocument::Groups, "1");
        assert!(Arc::ptr_eq(&found(&groups).unwrap(), &kept));
        assert!(found(&key(DiscoveryDocument::Groups, "2")).is_none());
        assert!(found(&key(DiscoveryDocument::Versions, "1")).is_none());
        let yaml = EntityKey {
            content_type: HeaderValue::from_static("application/yaml"),
            ..groups.clone()
        };
        assert!(found(&yaml).is_none());
        let for_one = EntityKey {
            for_one: true,
            ..groups
        };
        assert!(found(&for_one).is_none());
        assert!(
            cache
                .accepted(1, &DiscoveryDocument::Groups, &accept)
                .is_some()
        );
        assert!(
            cache
                .accepted(1, &DiscoveryDocument::Groups, &Variant::default())
                .is_none()
        );
        let for_one = Variant {
            for_one: true,
            ..accept
        };
        assert!(
            cache
                .accepted(1, &DiscoveryDocument::Groups, &for_one)
                .is_none()
        );
    }

    #[test]
    fn newer_contents_of_others_drop_everything_and_older_ones_change_nothing() {
        let cache = Cache::default();
        let old = entity(DiscoveryDocument::Groups, "1", 10);
        cache.keep(1, &Variant::default(), &old);
        assert!(
            cache
                .made_from(2, &key(DiscoveryDocument::Groups, "1"))
                .is_none()
        );
        assert_eq!(Arc::strong_count(&old), 1);
        cache.keep(1, &Variant::default(), &old);
        assert!(
            cache
                .accepted(1, &DiscoveryDocument::Groups, &Variant::default())
                .is_none()
        );
        assert_eq!(Arc::strong_count(&old), 1);
    }

    #[test]
    fn what_is_made_for_once_is_not_kept() {
        let cache = Cache::default();
        let entity = entity(DiscoveryDocument::Groups, "1", 10);
        cache.keep(UNKEPT, &Variant::default(), &entity);
        assert_eq!(Arc::strong_count(&entity), 1);
        assert!(
            cache
                .accepted(UNKEPT, &DiscoveryDocument::Groups, &Variant::default())
                .is_none()
        );
    }

    #[test]
    fn another_document_of_the_apiserver_replaces_the_one_before() {
        let cache = Cache::default();
        let old = entity(DiscoveryDocument::Groups, "1", 10);
        cache.keep(1, &Variant::default(), &old);
        cache.keep(
            1,
            &Variant::default(),
            &entity(DiscoveryDocument::Groups, "2", 10),
        );
        assert_eq!(Arc::strong_count(&old), 1);
        let led = cache
            .accepted(1, &DiscoveryDocument::Groups, &Variant::default())
            .unwrap();
        assert_eq!(led.key.etag, etag("2"));
    }

    #[test]
    fn it_is_bounded_in_number_and_in_bytes() {
        let cache = Cache::default();
        for number in 0..2 * ENTITIES {
            cache.keep(1, &Variant::default(), &entity(group(number), "1", 10));
        }
        let found = |number: usize| cache.made_from(1, &key(group(number), "1")).is_some();
        assert_eq!(
            (0..2 * ENTITIES).filter(|number| found(*number)).count(),
            ENTITIES
        );
        assert!(found(2 * ENTITIES - 1) && !found(0));

        for number in 0..3 {
            cache.keep(
                1,
                &Variant::default(),
                &entity(group(number), "1", BYTES / 2),
            );
        }
        assert!(!found(0) && found(1) && found(2));
        let long = variant(&"x".repeat(LONGEST_ACCEPT + 1));
        cache.keep(1, &long, &entity(group(9), "1", 1));
        assert!(cache.accepted(1, &group(9), &long).is_none());
    }
}
