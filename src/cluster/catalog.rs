//! The only writer of the snapshot: takes events from etcd, the local apiserver and native peers, and publishes the result.
//!
//! Readers ([`crate::relay`], the status page) load the snapshot without locks. A new one is compiled after a change, once
//! for all waiting messages, up to a limit, so that no burst delays a change for long.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use arc_swap::ArcSwap;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use super::absence::{Absence, Revisions};
use super::leases::NamedLease;
use super::members::OthersIds;
use super::state::{ClusterState, EtcdProgress};
use super::unproxied::{BareAnswer, Candidates, Unproxied};
use super::watch::Queued;
use crate::kube::gvr::Custom;
use crate::kube::requestheader::PublishedNames;
use crate::local::discovery::LocalView;
use crate::local::reader::FormerRecord;
use crate::retry::sleep_until;
use crate::routing::table::{Server, ServerKind, Snapshot};

/// Messages that are taken before a snapshot is published.
const BATCH: usize = 512;

/// What the catalog publishes, and how others reach it.
#[derive(Debug, Clone)]
pub struct Published {
    /// The snapshot that requests read.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// Notifies of every new snapshot.
    pub changed: watch::Sender<()>,
    pub etcd: Arc<ArcSwap<EtcdProgress>>,
    /// To the followers of etcd: since this time it was restored or replaced, as a key of this proxy shows.
    pub other_history: watch::Sender<tokio::time::Instant>,
    /// This proxy's keys, as the watches show them.
    pub own_keys: watch::Sender<Revisions>,
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
    pub fn new() -> (Self, CatalogInputs) {
        let (refused_sender, refused) = mpsc::channel(16);
        let (report_sender, reports) = mpsc::channel(16);
        let published = Self {
            snapshot: Arc::default(),
            changed: watch::Sender::default(),
            etcd: Arc::new(ArcSwap::from_pointee(EtcdProgress {
                lists: 0,
                undecodable: 0,
                restores: 0,
                revision: 0,
                heard: Instant::now(),
            })),
            other_history: watch::Sender::new(tokio::time::Instant::now()),
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
    /// Where peers reach this proxy; [canonical](super::record::canonical).
    pub endpoint: SocketAddr,
}

/// The catalog task: its inputs and outputs.
pub struct Catalog {
    pub own: OwnServer,
    /// Events from etcd.
    pub messages: mpsc::Receiver<Queued>,
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
        loop {
            let expiry = self.state.next_expiry().map(Into::into);
            let changed = tokio::select! {
                message = self.messages.recv() => {
                    let Some(message) = message else { return };
                    self.take(message)
                }
                Ok(()) = self.local.changed() => true,
                Ok(()) = self.own.id.changed() => true,
                Ok(()) = self.ignored_addresses.changed() => true,
                Some((server, answer)) = self.answers.recv() => {
                    self.state.answered(server, answer, Instant::now())
                }
                Some(address) = self.ends.refused.recv() => self.state.refused(address),
                Some(reply) = self.ends.reports.recv() => {
                    // The receiver may be gone.
                    let _ = reply.send(self.state.report());
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
    fn take(&mut self, first: Queued) -> bool {
        let mut changed = false;
        let waiting = std::iter::from_fn(|| self.messages.try_recv().ok());
        for (message, _room) in std::iter::once(first).chain(waiting).take(BATCH) {
            changed |= self.state.take(message, Instant::now());
        }
        let before = self.published.etcd.load().heard;
        let progress = self.state.progress(before);
        self.published.etcd.store(Arc::new(progress));
        if std::mem::take(&mut self.state.leases_changed)
            && let Some(seen) = self.state.named_leases()
        {
            self.published.leases.send_replace(Some(Arc::new(seen)));
        }
        send_if_changed(&self.published.header_names, self.state.header_names());
        changed
    }

    fn publish(&mut self) {
        let view = self.local.borrow_and_update().clone();
        let own = self.own.id.borrow_and_update().clone();
        self.state.settle(view.reads);
        self.state.ignored_addresses = self.ignored_addresses.borrow_and_update().clone();
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
        let mut snapshot = self.state.compile(own, &view);
        let began = self.published.snapshot.load().window_began;
        let began = began.unwrap_or_else(SystemTime::now);
        snapshot.window_began = snapshot.window.map(|_| began);
        let snapshot = Arc::new(snapshot);
        let before = self.published.snapshot.swap(snapshot.clone());
        // After a restart it may have another ID.
        log(&before, &snapshot, |server| {
            own == Some(&*server.id) || server.endpoint == self.own.endpoint
        });
        self.published.changed.send_replace(());
    }
}

/// One line for each server that requests are now treated otherwise for; one line in all when the cluster is known for the
/// first time. `is_own`: whether an entry is this server's, from before its start.
fn log(before: &Snapshot, now: &Snapshot, is_own: impl Fn(&Server) -> bool) {
    if now.synced && !before.synced {
        let (servers, targets) = (now.servers.len(), now.targets.len());
        tracing::info!(servers, targets, "the state in etcd was read");
    } else if now.synced {
        for (server, state) in transitions(before, now) {
            let state = match state == FORGOTTEN && is_own(server) {
                true => "no peer: it is this server itself, from before its start",
                false => state,
            };
            // Quoted: it was read from etcd.
            tracing::info!(peer = ?server.id, address = %server.endpoint, state, "peer");
        }
    }
}

const FORGOTTEN: &str = "forgotten: what only it served is answered with 404";

/// The servers whose state changed, and what it means for requests.
fn transitions<'s>(before: &'s Snapshot, now: &'s Snapshot) -> Vec<(&'s Server, &'static str)> {
    let state = |server: &Server| match (server.live, server.kind, server.target) {
        (false, ..) => "absent: what only it serves is answered with 503",
        (_, ServerKind::Bare, true) => "bare: requests may be sent there",
        (_, ServerKind::Bare, false) => "bare: its apiserver cannot be asked",
        (.., true) => "target: requests may be sent there",
        (.., false) => "live: its apiserver is not ready for requests of others",
    };
    let find = |snapshot: &'s Snapshot, id: &str| snapshot.servers.iter().find(|it| *it.id == *id);
    let was = |server: &Server| find(before, &server.id).map(state);
    let changed = now.servers.iter().filter(|it| was(it) != Some(state(it)));
    let forgotten = before.servers.iter();
    let forgotten = forgotten.filter(|server| find(now, &server.id).is_none());
    changed
        .map(|server| (server, state(server)))
        .chain(forgotten.map(|server| (server, FORGOTTEN)))
        .collect()
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
    use crate::cluster::source::{EtcdItem, Event};
    use crate::cluster::watch::{Message, queue};

    #[test]
    fn each_change_of_a_servers_state_is_told_once() {
        let snapshot = |servers: Vec<Server>| Snapshot::new(true, servers, None, Arc::default());
        let (a, b, mut c) = (Server::peer("a"), Server::peer("b"), Server::peer("c"));
        c.target = false;
        let before = snapshot(vec![a, b.clone(), c.clone()]);
        let mut absent = b;
        (absent.target, absent.live) = (false, false);
        let mut bare = Server::peer("e");
        bare.kind = ServerKind::Bare;
        let now = snapshot(vec![absent, c, Server::peer("d"), bare]);
        let changed = transitions(&before, &now);
        let words = |text: &'static str| text.split(':').next();
        let changed: Vec<_> = changed
            .iter()
            .map(|(it, text)| (&*it.id, words(text)))
            .collect();
        let expected = [
            ("b", "absent"),
            ("d", "target"),
            ("e", "bare"),
            ("a", "forgotten"),
        ];
        assert_eq!(changed, expected.map(|(id, state)| (id, Some(state))));
        assert_eq!(transitions(&now, &now), []);
    }

    fn definition(number: usize) -> Message {
        let item = EtcdItem {
            key: format!("things{number}.example.com"),
            value: Vec::new(),
            create_revision: 1,
            mod_revision: 1,
        };
        (Topic::Definitions, Event::Apply(item))
    }

    fn catalog(messages: mpsc::Receiver<Queued>) -> Catalog {
        let endpoint = "10.0.0.1:6443".parse().unwrap();
        let (published, ends) = Published::new();
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
