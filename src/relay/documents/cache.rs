//! Merged documents, shared by all serving threads. Each is made once after a change.
//!
//! Read only for documents that are merged. The lock is held for a look-up. Everything is dropped when a document is
//! requested with a newer generation of peers' contents.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::HeaderValue;
use tokio::sync::Semaphore;

use super::entity::{Entity, EntityKey};
use crate::kube::discovery::DiscoveryDocument;

/// Most documents: all common documents in all formats.
const ENTITIES: usize = 256;
/// Most bytes, without the compressed copies. OpenAPI documents have 2 to 6 MiB each.
const BYTES: usize = 64 << 20;
/// Most `Accept` headers, and the length of one.
const ACCEPTED: usize = 256;
const LONGEST_ACCEPT: usize = 1 << 10;
/// Documents that are merged at the same time: each may need several times its size in memory.
const AT_A_TIME: usize = 4;

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

pub struct Cache {
    kept: Mutex<Kept>,
    /// One permit for each merge that runs.
    pub turns: Arc<Semaphore>,
}

#[derive(Default)]
struct Kept {
    generation: u64,
    /// Oldest first.
    entities: VecDeque<Arc<Entity>>,
    bytes: usize,
    /// The document that a variant led to. Oldest first.
    accepted: VecDeque<(DiscoveryDocument, Variant, Arc<Entity>)>,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            turns: Arc::new(Semaphore::new(AT_A_TIME)),
        }
    }
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
        let kept = self.kept(generation)?;
        let mut accepted = kept.accepted.iter();
        let found = accepted.find(|(of, by, _)| of == document && by == variant);
        found.map(|(_, _, entity)| entity.clone())
    }

    /// The document that was made from this.
    pub fn find(&self, generation: u64, key: &EntityKey) -> Option<Arc<Entity>> {
        let kept = self.kept(generation)?;
        let mut entities = kept.entities.iter();
        entities.find(|entity| entity.key == *key).cloned()
    }

    /// Adds a document, and the variant that led to it.
    pub fn keep(&self, generation: u64, variant: &Variant, entity: &Arc<Entity>) {
        let Some(mut kept) = self.kept(generation) else {
            return;
        };
        if !kept.entities.iter().any(|known| Arc::ptr_eq(known, entity)) {
            // The apiserver's document has changed: the previous result is not needed any more.
            let new = &entity.key;
            kept.drop_where(|Entity { key, .. }| {
                key.document == new.document
                    && key.content_type == new.content_type
                    && key.for_one == new.for_one
            });
            kept.bytes += entity.size();
            kept.entities.push_back(entity.clone());
        }
        let accept = variant.accept.as_ref();
        if accept.is_none_or(|accept| accept.len() <= LONGEST_ACCEPT) {
            let led = (entity.key.document.clone(), variant.clone(), entity.clone());
            kept.accepted
                .retain(|(of, by, _)| *of != led.0 || *by != led.1);
            kept.accepted.push_back(led);
        }
        while kept.entities.len() > ENTITIES || kept.bytes > BYTES {
            let Some(oldest) = kept.entities.front().cloned() else {
                break;
            };
            kept.drop_where(|known| std::ptr::eq(known, &*oldest));
        }
        while kept.accepted.len() > ACCEPTED {
            kept.accepted.pop_front();
        }
    }

    /// Locks the cache for this generation; `None` if a newer one is cached.
    fn kept(&self, generation: u64) -> Option<MutexGuard<'_, Kept>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.generation < generation {
            *kept = Kept {
                generation,
                ..Kept::default()
            };
        }
        (kept.generation == generation && generation != UNKEPT).then_some(kept)
    }
}

impl Kept {
    fn drop_where(&mut self, is_dropped: impl Fn(&Entity) -> bool) {
        self.entities.retain(|entity| {
            let dropped = is_dropped(entity);
            self.bytes -= if dropped { entity.size() } else { 0 };
            !dropped
        });
        self.accepted.retain(|(_, _, entity)| !is_dropped(entity));
    }
}

#[cfg(test)]
mod tests {
    use super::super::entity::EntitySource;
    use super::*;

    fn key(document: DiscoveryDocument, tag: &str) -> EntityKey {
        EntityKey {
            document,
            content_type: HeaderValue::from_static("application/json"),
            for_one: false,
            source: etag(tag),
        }
    }

    fn variant(accept: &str) -> Variant {
        Variant {
            accept: Some(HeaderValue::from_str(accept).unwrap()),
            for_one: false,
        }
    }

    fn etag(text: &str) -> EntitySource {
        EntitySource::Etag(HeaderValue::from_str(text).unwrap())
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
        let found = |key: &EntityKey| cache.find(1, key);
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
                .find(2, &key(DiscoveryDocument::Groups, "1"))
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
        assert_eq!(led.key.source, etag("2"));
    }

    #[test]
    fn it_is_bounded_in_number_and_in_bytes() {
        let cache = Cache::default();
        for number in 0..2 * ENTITIES {
            cache.keep(1, &Variant::default(), &entity(group(number), "1", 10));
        }
        let found = |number: usize| cache.find(1, &key(group(number), "1")).is_some();
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
