//! The identity Leases that are kept. Pure.
//!
//! API users can write Leases. So of each no more is kept than [`codec::lease`] leaves of it and its key, which is 1 KiB
//! at most, and of all namespaces together no more than 1,024: those that were created first. Whoever creates Leases
//! cannot push out those of servers that were there before, and what is left out is counted and named like a value that
//! cannot be decoded. A change costs what this one Lease costs: the others are shared with the readers.

use std::sync::Arc;

use super::codec::{self, Lease};
use super::keys::Topic;
use super::prefix::PrefixState;
use super::source::Event;
use super::undecodable::Undecodables;

/// An identity lease in etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedLease {
    /// Index of its namespace in `identity.leaseNamespaces`.
    pub namespace: usize,
    pub name: String,
    /// The revision that wrote it.
    pub revision: i64,
    pub value: Lease,
}

/// 1 MiB in all.
const MOST: usize = 1024;

/// By namespace.
#[derive(Debug)]
pub(super) struct Leases(Vec<PrefixState<Arc<NamedLease>>>);

impl Leases {
    pub(super) fn new(namespaces: usize) -> Self {
        let most = MOST / namespaces.max(1);
        let none = (0..namespaces).map(|_| PrefixState::at_most(most));
        Self(none.collect())
    }

    /// In the order of namespaces and names.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<NamedLease>> {
        let kept = self.0.iter().flat_map(PrefixState::iter);
        kept.map(|(_, at)| &at.value)
    }

    /// Applies an event of a namespace. Returns whether readers see a change.
    pub(super) fn take(
        &mut self,
        namespace: u8,
        event: Event,
        undecodables: &mut Undecodables,
    ) -> bool {
        let (topic, namespace) = (Topic::Leases(namespace), usize::from(namespace));
        let Some(leases) = self.0.get_mut(namespace) else {
            return false;
        };
        let changed = leases.take(event, None, |item| {
            let lease = undecodables.read(topic, item, codec::lease)?;
            // Others are those of schedulers, controller managers and nodes.
            let of_server = lease.filter(|lease| lease.identity || lease.published);
            let named = |value| NamedLease {
                namespace,
                name: item.key.clone(),
                revision: item.mod_revision,
                value,
            };
            Some(of_server.map(named).map(Arc::new))
        });
        undecodables.note_left_out(topic, leases);
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::super::prefix::Versioned;
    use super::super::source::EtcdItem;
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
            self.take(Event::InitDone(1));
        }

        /// Whether readers see a change, and whether a value is not taken in.
        fn take(&mut self, event: Event) -> (bool, bool) {
            let before = self.undecodables.count;
            let changed = self.leases.take(0, event, &mut self.undecodables);
            (changed, self.undecodables.count > before)
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
        let value = &lease.value;
        let texts = [&value.holder, &value.hostname, &Some(value.uid.clone())];
        let texts = texts.into_iter().flatten().map(String::capacity);
        // The name is also its key.
        let names = 2 * (size_of::<String>() + lease.name.capacity());
        let kept = names
            + size_of::<Versioned<Arc<NamedLease>>>()
            + size_of::<NamedLease>()
            + texts.sum::<usize>();
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
        let renewed = EtcdItem {
            mod_revision: 9999,
            ..real
        };
        assert_eq!(world.take(Event::Apply(renewed)), (true, false));
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
            world
                .leases
                .iter()
                .find(|lease| lease.name == "a7")
                .unwrap()
                .value
                .holder
                .as_deref(),
            Some("another")
        );
    }
}
