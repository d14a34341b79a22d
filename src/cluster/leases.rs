//! The identity Leases that are kept. Pure.
//!
//! API users can write Leases. So of each no more is kept than [`codec::lease`] leaves of it and its key, which is 1 KiB
//! at most, and of all namespaces together no more than 1,024: those that were created first. Whoever creates Leases
//! cannot push out those of servers that were there before, and what is left out is counted and named like a value that
//! cannot be decoded. A change costs what this one Lease costs: the others are shared with the readers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::codec::{self, Lease, Undecodable};
use super::decoder::Decoder;
use super::prefix::Versioned;
use super::source::EtcdItem;
use super::watch::Event;

/// An identity lease in etcd.
#[derive(Debug, Clone)]
pub struct NamedLease {
    /// Index of its namespace in `identity.leaseNamespaces`.
    pub namespace: usize,
    pub name: String,
    pub at: Versioned<Lease>,
}

/// 1 MiB in all.
const MOST: usize = 1024;

#[derive(Debug)]
pub(super) struct Leases(Vec<NamespaceLeases>);

#[derive(Debug, Default)]
struct NamespaceLeases {
    current: BTreeMap<String, KeptLease>,
    staged: Option<BTreeMap<String, KeptLease>>,
    /// It was listed completely at least once.
    complete: bool,
}

#[derive(Debug, Clone)]
struct KeptLease {
    lease: Arc<NamedLease>,
    created: i64,
}

impl Leases {
    pub(super) fn new(namespaces: usize) -> Self {
        Self(
            (0..namespaces)
                .map(|_| NamespaceLeases::default())
                .collect(),
        )
    }

    /// Number of namespaces.
    pub(super) fn namespaces(&self) -> usize {
        self.0.len()
    }

    /// All namespaces were listed at least once.
    pub(super) fn are_complete(&self) -> bool {
        self.0.iter().all(|leases| leases.complete)
    }

    /// In the order of namespaces and names.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<NamedLease>> {
        let kept = self.0.iter().flat_map(|leases| leases.current.values());
        kept.map(|kept| &kept.lease)
    }

    /// The first one of this name.
    pub(super) fn get(&self, name: &str) -> Option<&Arc<NamedLease>> {
        let kept = self.0.iter().find_map(|leases| leases.current.get(name));
        kept.map(|kept| &kept.lease)
    }

    /// Applies an event of a namespace. Returns whether readers see a change.
    pub(super) fn take(
        &mut self,
        namespace: usize,
        event: Event,
        now: Instant,
        decoder: &mut Decoder<'_>,
    ) -> bool {
        let most = MOST / self.0.len().max(1);
        let Some(leases) = self.0.get_mut(namespace) else {
            return false;
        };
        match event {
            Event::Init => leases.staged = Some(BTreeMap::new()),
            Event::InitApply(item) => {
                let known = leases.current.get(&item.key);
                if let Some(staged) = &mut leases.staged {
                    match read(&item, namespace, now, decoder) {
                        Some(Some(lease)) => drop(keep(staged, item.key, lease, most, decoder)),
                        Some(None) => {}
                        // What was known before stays.
                        None => {
                            if let Some(known) = known.cloned() {
                                keep(staged, item.key, known, most, decoder);
                            }
                        }
                    }
                }
            }
            Event::InitDone(_) => {
                leases.current = leases.staged.take().unwrap_or_default();
                leases.complete = true;
                return true;
            }
            Event::Apply(item) => match read(&item, namespace, now, decoder) {
                Some(Some(lease)) => {
                    return keep(&mut leases.current, item.key, lease, most, decoder);
                }
                Some(None) => return leases.current.remove(&item.key).is_some(),
                None => {}
            },
            Event::Delete(key) => return leases.current.remove(&key).is_some(),
            Event::Progress(_) | Event::OtherHistory | Event::Forbidden => {}
        }
        false
    }
}

/// `None`: it cannot be decoded. `Some(None)`: a Lease of a scheduler, controller manager or node.
fn read(
    item: &EtcdItem,
    namespace: usize,
    now: Instant,
    decoder: &mut Decoder<'_>,
) -> Option<Option<KeptLease>> {
    let of_server = |lease: &Lease| lease.identity || lease.published;
    let lease = decoder.decode(item, codec::lease)?;
    Some(Some(lease).filter(of_server).map(|value| KeptLease {
        lease: Arc::new(NamedLease {
            namespace,
            name: item.key.clone(),
            at: Versioned {
                value,
                revision: item.mod_revision,
                heard: now,
            },
        }),
        created: item.create_revision,
    }))
}

/// Adds a Lease. If there are too many, leaves out the one that was created last. Returns whether that is another.
fn keep(
    leases: &mut BTreeMap<String, KeptLease>,
    name: String,
    lease: KeptLease,
    most: usize,
    decoder: &mut Decoder<'_>,
) -> bool {
    leases.insert(name.clone(), lease);
    if leases.len() <= most {
        return true;
    }
    let last = leases.iter().max_by_key(|(_, kept)| kept.created);
    let last = last.map(|(name, kept)| (name.clone(), kept.lease.at.revision));
    let Some((last, revision)) = last else {
        return true;
    };
    leases.remove(&last);
    decoder.failed(&last, revision, &Undecodable::LeftOut(most));
    last != name
}

#[cfg(test)]
mod tests {
    use super::super::keys::Topic;
    use super::super::undecodable::Undecodables;
    use super::*;

    const IDENTITY: &str = r#"{"apiserver.kubernetes.io/identity":"kube-apiserver"}"#;

    fn item(name: &str, created: i64, labels: &str, holder: &str) -> EtcdItem {
        let value = format!(
            r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{{"labels":{labels}}},"spec":{{"holderIdentity":"{holder}"}}}}"#
        );
        EtcdItem {
            key: name.to_owned(),
            value: value.into_bytes(),
            create_revision: created,
            mod_revision: created,
        }
    }

    /// An identity Lease.
    fn identity(name: &str, created: i64) -> EtcdItem {
        item(name, created, IDENTITY, "one")
    }

    struct World {
        leases: Leases,
        undecodables: Undecodables,
    }

    impl World {
        /// The Leases of one namespace were listed.
        fn listed(items: impl IntoIterator<Item = EtcdItem>) -> Self {
            let mut world = Self {
                leases: Leases::new(1),
                undecodables: Undecodables::default(),
            };
            world.list(items);
            world
        }

        fn list(&mut self, items: impl IntoIterator<Item = EtcdItem>) {
            self.take(Event::Init);
            for item in items {
                self.take(Event::InitApply(item));
            }
            assert_eq!(self.take(Event::InitDone(1)), (true, false));
        }

        /// Whether readers see a change, and whether a value is not taken in.
        fn take(&mut self, event: Event) -> (bool, bool) {
            let mut new = false;
            let mut decoder = Decoder {
                topic: Topic::Leases(0),
                undecodables: &mut self.undecodables,
                new: &mut new,
            };
            let changed = self.leases.take(0, event, Instant::now(), &mut decoder);
            (changed, new)
        }

        fn names(&self) -> Vec<&str> {
            self.leases.iter().map(|lease| &*lease.name).collect()
        }
    }

    #[test]
    fn only_leases_of_servers_are_kept_and_what_cannot_be_read_leaves_what_was_known() {
        let node = item("node", 2, "{}", "node");
        let mut world = World::listed([identity("a", 1), node.clone()]);
        assert_eq!(world.names(), ["a"]);
        let broken = EtcdItem {
            value: b"broken".to_vec(),
            ..identity("a", 1)
        };
        assert_eq!(world.take(Event::Apply(broken.clone())), (false, true));
        world.list([broken, node]);
        assert_eq!(world.names(), ["a"]);
        // It is no server's any more.
        let relabelled = item("a", 1, "{}", "one");
        assert_eq!(world.take(Event::Apply(relabelled)), (true, false));
        assert_eq!(world.take(Event::Apply(identity("b", 3))), (true, false));
        assert_eq!(world.names(), ["b"]);
        assert_eq!(world.take(Event::Delete("b".to_owned())), (true, false));
        assert!(world.names().is_empty());
    }

    #[test]
    fn of_a_lease_no_more_than_one_kib_is_kept() {
        const LONG: usize = 1 << 20;
        let text = "ä".repeat(LONG / 2);
        let labels =
            format!(r#"{{"k8s.io/component":"kube-apiserver","kubernetes.io/hostname":"{text}"}}"#);
        let world = World::listed([item(&"n".repeat(253), 1, &labels, &text)]);
        let lease = world.leases.iter().next().unwrap();
        let value = &lease.at.value;
        let texts = [&value.holder, &value.hostname, &Some(value.uid.clone())];
        let texts = texts.into_iter().flatten().map(String::capacity);
        // The name is also its key.
        let names = 2 * (size_of::<String>() + lease.name.capacity());
        let kept = names + size_of::<KeptLease>() + size_of::<NamedLease>() + texts.sum::<usize>();
        assert!(kept <= 1 << 10, "{kept} bytes");
        assert!(value.holder.as_ref().is_some_and(|it| it.len() == 96));
    }

    #[test]
    fn of_too_many_those_stay_that_were_created_first_and_the_others_are_named() {
        let flood = (0_i64..).map(|number| identity(&format!("a{number:05}"), 100 + number));
        let real = identity("z", 50);
        let mut world = World::listed(flood.take(MOST + 9).chain([real.clone()]));
        assert_eq!(world.names().len(), MOST);
        assert_eq!(world.undecodables.list().len(), 10);
        assert!(world.names().contains(&"z"), "whatever its name");
        // One more of the flood is left out, and said so each time; a renewal of what is kept is not.
        let surplus = || Event::Apply(identity("aa", 9999));
        assert_eq!(world.take(surplus()), (false, true));
        assert_eq!(world.take(surplus()), (false, true));
        assert!(!world.names().contains(&"aa"));
        assert_eq!(world.take(Event::Apply(real)), (true, false));
        // One that was created before the flood pushes out one of that.
        assert_eq!(world.take(Event::Apply(identity("y", 60))), (true, true));
        assert_eq!(world.take(Event::Delete("y".to_owned())), (true, false));
        assert_eq!(world.take(Event::Apply(identity("b", 70))), (true, false));
        // There is room again.
        assert_eq!(world.take(Event::Delete("z".to_owned())), (true, false));
        assert_eq!(world.take(surplus()), (true, false));
        assert!(world.names().contains(&"aa"));
    }

    #[test]
    fn what_cannot_be_decoded_in_a_new_list_counts_towards_the_bound() {
        let of = |name: &'static str, created: i64| {
            (0..MOST).map(move |n| identity(&format!("{name}{n}"), created))
        };
        let mut world = World::listed(of("a", 1));
        let broken = |mut it: EtcdItem| {
            it.value = b"broken".to_vec();
            it
        };
        world.list(of("b", 2).chain(of("a", 1).map(broken)));
        assert_eq!(world.names().len(), MOST);
        assert!(world.names().iter().all(|name| name.starts_with('a')));
    }

    #[test]
    fn a_change_of_one_lease_leaves_all_others_as_they_are() {
        let names = (0..100).map(|number| identity(&format!("a{number}"), 1));
        let mut world = World::listed(names);
        let before: Vec<_> = world.leases.iter().cloned().collect();
        world.take(Event::Apply(item("a7", 1, IDENTITY, "another")));
        let same = before.iter().zip(world.leases.iter());
        let same = same.filter(|(before, now)| Arc::ptr_eq(before, now));
        assert_eq!(same.count(), 99);
        assert_eq!(
            world.leases.get("a7").unwrap().at.value.holder.as_deref(),
            Some("another")
        );
    }
}
