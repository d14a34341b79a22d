//! The only writer of the snapshot: takes events from etcd, the local apiserver and native peers, and publishes the result.
//!
//! Readers ([`crate::relay`], the status page) load the snapshot without locks. A new one is compiled after a change, once
//! for all waiting messages, up to a limit, so that no burst delays a change for long.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use arc_swap::ArcSwap;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use super::absence::Absence;
use super::bare::BareAnswer;
use super::freshness::Freshness;
use super::leases::NamedLease;
use super::others_ids::OthersIds;
use super::own_keys::OwnKeys;
use super::queue::Queue;
use super::state::ClusterState;
use super::unproxied::{Candidates, Unproxied};
use super::watch::{Event, Message};
use crate::cluster::transitions;
use crate::kube::gvr::Custom;
use crate::kube::requestheader::PublishedNames;
use crate::local::discovery::LocalView;
use crate::local::reader::FormerRecord;
use crate::retry::sleep_until;
use crate::routing::table::Snapshot;

/// Messages that are taken before a snapshot is published.
const BATCH: usize = 512;

/// Counts of events from etcd, for metrics.
#[derive(Debug, Default)]
pub struct EtcdCounters {
    /// Complete lists.
    pub lists: AtomicU64,
    /// Values that could not be decoded.
    pub undecodable: AtomicU64,
    /// Watches that found that etcd was restored or replaced.
    pub restores: AtomicU64,
    /// The newest known revision.
    pub revision: AtomicI64,
}

/// What the catalog publishes, and how others reach it.
#[derive(Debug, Clone)]
pub struct Published {
    /// The snapshot that requests read.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// Notifies of every new snapshot.
    pub changed: watch::Sender<()>,
    pub freshness: Arc<Freshness>,
    pub counters: Arc<EtcdCounters>,
    /// This proxy's keys, as the watches show them.
    pub own_keys: watch::Sender<OwnKeys>,
    /// CRDs and aggregated APIs; `None` until etcd was read.
    pub custom: watch::Sender<Option<Arc<Custom>>>,
    /// What the proxy before this one has written. Set before `custom`.
    pub former: Arc<OnceLock<FormerRecord>>,
    /// The header names by which apiservers recognise users; `None` while etcd has none.
    pub header_names: watch::Sender<Option<Arc<PublishedNames>>>,
    /// Identity Leases; `None` until they were listed.
    pub leases: watch::Sender<Option<Arc<Vec<Arc<NamedLease>>>>>,
    /// Records of other servers that must not end, with their revisions ([`ClusterState::unreachable_records`]).
    pub unreachable_records: watch::Sender<BTreeMap<String, i64>>,
    /// IDs that other servers have, and no Lease makes ours; `None` until etcd was read.
    pub others_ids: watch::Sender<Option<OthersIds>>,
    /// Proves that no server is missing in the snapshot.
    pub absence: Arc<Absence>,
    /// To the catalog: connections to these peers were refused. Dropped if the channel is full.
    pub refused: mpsc::Sender<SocketAddr>,
    /// To the catalog: requests for a report of its whole state.
    pub reports: mpsc::Sender<oneshot::Sender<Value>>,
}

/// The catalog's receivers of the channels in [`Published`].
pub struct CatalogInputs {
    /// See [`Published::refused`].
    pub refused: mpsc::Receiver<SocketAddr>,
    /// See [`Published::reports`].
    pub reports: mpsc::Receiver<oneshot::Sender<Value>>,
}

impl Published {
    /// `topics`: number of topics.
    pub fn new(topics: usize) -> (Self, CatalogInputs) {
        let (refused_sender, refused) = mpsc::channel(16);
        let (report_sender, reports) = mpsc::channel(16);
        let published = Self {
            snapshot: Arc::default(),
            changed: watch::Sender::default(),
            freshness: Arc::new(Freshness::new(topics)),
            counters: Arc::default(),
            own_keys: watch::Sender::default(),
            custom: watch::Sender::default(),
            former: Arc::default(),
            header_names: watch::Sender::default(),
            leases: watch::Sender::default(),
            unreachable_records: watch::Sender::default(),
            others_ids: watch::Sender::default(),
            absence: Arc::default(),
            refused: refused_sender,
            reports: report_sender,
        };
        (published, CatalogInputs { refused, reports })
    }
}

/// This server's ID and address: its own record is not a peer's.
#[derive(Debug, Clone)]
pub struct OwnServer {
    /// Server ID, once it is found: the proxy's name.
    pub id: watch::Receiver<Option<Arc<str>>>,
    /// The name of the apiserver's identity Lease (KEP-1965), once it is known: the ID that the apiserver has given
    /// itself, else the server ID.
    pub apiserver_id: watch::Receiver<Option<Arc<str>>>,
    /// Where peers reach this proxy.
    pub endpoint: SocketAddr,
}

/// The catalog task: its inputs and outputs.
pub struct Catalog {
    pub own: OwnServer,
    /// Events from etcd.
    pub messages: Queue,
    /// The local apiserver's discovery.
    pub local: watch::Receiver<LocalView>,
    /// What servers without a proxy answered.
    pub answers: mpsc::Receiver<(Unproxied, BareAnswer)>,
    /// The servers without a proxy that are to be asked.
    pub candidates: watch::Sender<Candidates>,
    /// `rerouting.ignoredAddresses`
    pub ignored_addresses: watch::Receiver<Arc<BTreeSet<IpAddr>>>,
    pub ends: CatalogInputs,
    pub published: Published,
    pub state: ClusterState,
}

impl Catalog {
    /// Runs until no follower is left.
    pub async fn run(mut self) {
        let mut local_gone = false;
        loop {
            let expiry = self.state.next_expiry().map(Into::into);
            let changed = tokio::select! {
                message = self.messages.recv() => {
                    let Some(message) = message else { return };
                    self.take(message)
                }
                result = self.local.changed(), if !local_gone => {
                    local_gone = result.is_err();
                    true
                }
                Ok(()) = self.own.id.changed() => true,
                Ok(()) = self.ignored_addresses.changed() => true,
                Some((server, answer)) = self.answers.recv() => {
                    self.state.answered(server, answer, Instant::now())
                }
                Some(address) = self.ends.refused.recv() => self.state.refused(address),
                Some(reply) = self.ends.reports.recv() => {
                    // The receiver may be gone.
                    let _ = reply.send(self.state.report(&self.published.freshness));
                    false
                }
                () = sleep_until(expiry) => self.state.expire(Instant::now()),
            };
            if changed {
                self.publish();
            }
            // After the snapshot: who waits for these relies on it.
            let own_keys = self.state.own_keys(self.own.id.borrow().as_deref());
            send_if_changed(&self.published.own_keys, own_keys);
            let followed = self.state.followed();
            send_if_changed(&self.published.absence.followed, followed);
        }
    }

    /// Takes a message and those that wait behind it. Returns whether a new snapshot is due.
    fn take(&mut self, first: Message) -> bool {
        let counters = &self.published.counters;
        let (mut snapshot, mut leases, mut header_names) = (false, false, false);
        let waiting = std::iter::from_fn(|| self.messages.try_recv().ok());
        for message in std::iter::once(first).chain(waiting).take(BATCH) {
            match message.1 {
                Event::Forbidden => self.published.freshness.exempt(message.0.index()),
                _ => self.published.freshness.touch(message.0.index()),
            }
            let listed = matches!(message.1, Event::InitDone(_));
            counters.lists.fetch_add(listed.into(), Ordering::Relaxed);
            let other = matches!(message.1, Event::OtherHistory);
            counters.restores.fetch_add(other.into(), Ordering::Relaxed);
            let changes = self.state.take(message, Instant::now());
            counters
                .undecodable
                .fetch_add(changes.undecodable.into(), Ordering::Relaxed);
            snapshot |= changes.snapshot;
            leases |= changes.leases;
            header_names |= changes.header_names;
        }
        counters
            .revision
            .store(self.state.revision(), Ordering::Relaxed);
        if leases && let Some(seen) = self.state.named_leases() {
            self.published.leases.send_replace(Some(Arc::new(seen)));
        }
        if header_names {
            let names = self.state.header_names();
            self.published.header_names.send_replace(names);
        }
        snapshot
    }

    fn publish(&mut self) {
        let view = self.local.borrow_and_update().clone();
        let own = self.own.id.borrow_and_update().clone();
        self.state.settle(view.reads);
        let ignored = self.ignored_addresses.borrow_and_update().clone();
        self.state.ignore_addresses(ignored);
        self.state.expire_bare(Instant::now());
        let custom = self.state.synced().then(|| self.state.custom().clone());
        if custom.is_some()
            && self.published.custom.borrow().is_none()
            && let Some(former) = self.state.former_record()
        {
            // The first time, and nobody else sets it.
            let _ = self.published.former.set(former);
        }
        send_if_changed(&self.published.custom, custom);
        let own = own.as_deref();
        send_if_changed(&self.candidates, self.state.candidates(own));
        let records = self.state.unreachable_records(own);
        send_if_changed(&self.published.unreachable_records, records);
        send_if_changed(&self.published.others_ids, self.state.others_ids());
        let snapshot = self.state.compile(own, &view);
        let snapshot = Arc::new(snapshot);
        let before = self.published.snapshot.swap(snapshot.clone());
        // After a restart it may have another ID.
        transitions::log(&before, &snapshot, |server| {
            own == Some(&*server.id) || server.endpoint == self.own.endpoint
        });
        self.published.changed.send_replace(());
    }
}

/// Does not wake receivers if the value is the same.
fn send_if_changed<T: PartialEq>(whom: &watch::Sender<T>, now: T) {
    whom.send_if_modified(|before| {
        let changed = *before != now;
        *before = now;
        changed
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cluster::keys::Topic;
    use crate::cluster::queue::queue;
    use crate::cluster::source::EtcdItem;

    fn definition(number: usize) -> Message {
        let item = EtcdItem {
            key: format!("things{number}.example.com"),
            value: Vec::new(),
            create_revision: 1,
            mod_revision: 1,
        };
        (Topic::Definitions, Event::Apply(item))
    }

    fn catalog(messages: Queue) -> Catalog {
        let endpoint = "10.0.0.1:6443".parse().unwrap();
        let topics = Topic::all(0).count();
        let (published, ends) = Published::new(topics);
        let ttl = Duration::from_secs(15);
        Catalog {
            own: OwnServer {
                id: watch::channel(None).1,
                apiserver_id: watch::channel(None).1,
                endpoint,
            },
            messages,
            local: watch::channel(LocalView::default()).1,
            answers: mpsc::channel(1).1,
            candidates: watch::Sender::default(),
            ignored_addresses: watch::channel(Arc::default()).1,
            ends,
            published,
            state: ClusterState::new(endpoint, 0, ttl, ttl),
        }
    }

    #[tokio::test]
    async fn a_burst_is_published_in_parts_and_each_is_put_together_once() {
        const BURST: usize = 4096;
        let (sink, messages) = queue(BURST);
        for number in 0..BURST {
            sink.send(definition(number)).await.unwrap();
        }
        let mut catalog = catalog(messages);
        let before = catalog.state.custom().clone();
        let first = catalog.messages.try_recv().unwrap();
        assert!(catalog.take(first));
        let left = catalog.messages.len();
        assert!(left > 0, "readers wait until all are taken in");
        assert!(Arc::ptr_eq(&before, catalog.state.custom()));
        catalog.publish();
        let known = &catalog.published.snapshot.load().custom.definitions;
        assert_eq!(known.len(), BURST - left);
    }
}
