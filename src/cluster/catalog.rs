//! The one writer of the snapshot: takes what etcd, the local apiserver and native peers tell, and publishes what
//! follows from it.
//!
//! Readers ([`crate::relay`], the status page) load the snapshot without locks. A new one is compiled when something
//! changed, once for all messages that are waiting, but for so many at most that no burst keeps a change from readers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use super::codec::Lease;
use super::freshness::Freshness;
use super::listed::At;
use super::news;
use super::state::{Native, State};
use super::watch::{Event, Message};
use crate::local::discovery::LocalView;
use crate::routing::table::{Custom, Snapshot};

/// Messages that are taken in before readers are told.
const BATCH: usize = 512;

/// Counts of what etcd told, for metrics.
#[derive(Debug, Default)]
pub struct Told {
    /// Complete lists.
    pub lists: AtomicU64,
    /// Values that could not be decoded.
    pub undecodable: AtomicU64,
    /// Watches that found etcd with another history than before.
    pub restores: AtomicU64,
    /// Newest revision known of.
    pub revision: AtomicI64,
}

/// What the catalog publishes to.
#[derive(Debug, Clone)]
pub struct Published {
    /// The snapshot that requests read.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// Tells that there is another snapshot.
    pub changed: watch::Sender<()>,
    /// When etcd was last heard of.
    pub freshness: Arc<Freshness>,
    /// Counts.
    pub told: Arc<Told>,
    /// To the catalog: connections to these peers were refused. What cannot be taken is dropped.
    pub refused: mpsc::Sender<SocketAddr>,
    /// To the catalog: an operator wants to see everything.
    pub reports: mpsc::Sender<oneshot::Sender<Value>>,
}

/// The catalog's ends of what is [`Published`].
pub struct Ends {
    /// See [`Published::refused`].
    pub refused: mpsc::Receiver<SocketAddr>,
    /// See [`Published::reports`].
    pub reports: mpsc::Receiver<oneshot::Sender<Value>>,
}

impl Published {
    /// Nothing is known of so many topics yet.
    pub fn new(topics: usize) -> (Self, Ends) {
        let (refused_sender, refused) = mpsc::channel(16);
        let (report_sender, reports) = mpsc::channel(16);
        let published = Self {
            snapshot: Arc::default(),
            changed: watch::channel(()).0,
            freshness: Arc::new(Freshness::new(topics)),
            told: Arc::default(),
            refused: refused_sender,
            reports: report_sender,
        };
        (published, Ends { refused, reports })
    }
}

/// Who we are: our own record is not a peer's.
#[derive(Debug, Clone)]
pub struct Own {
    /// Our server ID, once it is found.
    pub id: watch::Receiver<Option<Arc<str>>>,
    /// Where peers reach us.
    pub endpoint: SocketAddr,
}

/// An identity lease as it was seen in etcd.
#[derive(Debug, Clone)]
pub struct SeenLease {
    /// Its namespace, by its place in `identity.leaseNamespaces`.
    pub namespace: usize,
    /// Its name.
    pub name: String,
    /// What it says, and the revision of it.
    pub at: At<Lease>,
}

/// What the catalog is told, and whom it tells.
pub struct Catalog {
    /// Who we are.
    pub own: Own,
    /// From etcd.
    pub messages: mpsc::Receiver<Message>,
    /// From the local apiserver.
    pub local: watch::Receiver<LocalView>,
    /// From native peers, by their server ID.
    pub natives: mpsc::Receiver<(String, Native)>,
    /// See [`Published::refused`].
    pub refused: mpsc::Receiver<SocketAddr>,
    /// See [`Published::reports`].
    pub reports: mpsc::Receiver<oneshot::Sender<Value>>,
    /// What is known of CRDs and aggregated APIs.
    pub custom: watch::Sender<Option<Arc<Custom>>>,
    /// Native peers that should be asked for their discovery.
    pub native_peers: watch::Sender<BTreeMap<String, SocketAddr>>,
    /// Identity leases; `None` until they were listed.
    pub leases: watch::Sender<Option<Arc<Vec<SeenLease>>>>,
    /// Readers.
    pub published: Published,
    /// What is known so far: nothing.
    pub state: State,
}

impl Catalog {
    /// Runs until no follower is left.
    pub async fn run(mut self) {
        let mut local_gone = false;
        loop {
            let expiry = self.state.next_expiry();
            let expiry = async {
                match expiry {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
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
                Some((id, native)) = self.natives.recv() => {
                    self.state.native_read(id, native, Instant::now());
                    true
                }
                Some(address) = self.refused.recv() => self.state.refused(address),
                Some(reply) = self.reports.recv() => {
                    // Whoever asked may have gone away.
                    let _ = reply.send(self.state.report(&self.published.freshness));
                    false
                }
                () = expiry => self.state.expire(Instant::now()),
            };
            if changed {
                self.publish();
            }
        }
    }

    /// Takes a message and those that wait behind it; whether a new snapshot is due.
    fn take(&mut self, first: Message) -> bool {
        let told = &self.published.told;
        let (mut snapshot, mut leases) = (false, false);
        let waiting = std::iter::from_fn(|| self.messages.try_recv().ok());
        for message in std::iter::once(first).chain(waiting).take(BATCH) {
            self.published.freshness.touch(message.0.index());
            let listed = matches!(message.1, Event::InitDone(_));
            told.lists.fetch_add(listed.into(), Ordering::Relaxed);
            let other = matches!(message.1, Event::OtherHistory);
            told.restores.fetch_add(other.into(), Ordering::Relaxed);
            let changes = self.state.take(message, Instant::now());
            told.undecodable
                .fetch_add(changes.undecodable.into(), Ordering::Relaxed);
            snapshot |= changes.snapshot;
            leases |= changes.leases;
        }
        told.revision
            .store(self.state.revision(), Ordering::Relaxed);
        if leases && let Some(seen) = self.state.seen_leases() {
            self.leases.send_replace(Some(Arc::new(seen)));
        }
        snapshot
    }

    fn publish(&mut self) {
        let view = self.local.borrow_and_update().clone();
        let own = self.own.id.borrow_and_update().clone();
        self.state.settle(view.reads);
        let custom = self.state.synced().then(|| self.state.custom().clone());
        tell(&self.custom, custom);
        tell(&self.native_peers, self.state.native_peers(own.as_deref()));
        let snapshot = self.state.compile(own.as_deref(), &view);
        let snapshot = Arc::new(snapshot);
        let before = self.published.snapshot.swap(snapshot.clone());
        news::tell(&before, &snapshot);
        self.published.changed.send_replace(());
    }
}

/// Wakes nobody for what is as before.
fn tell<T: PartialEq>(whom: &watch::Sender<T>, now: T) {
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
    use crate::cluster::source::Item;

    fn definition(number: usize) -> Message {
        let item = Item {
            key: format!("things{number}.example.com"),
            value: Vec::new(),
            mod_revision: 1,
        };
        (Topic::Definitions, Event::Apply(item))
    }

    fn catalog(messages: mpsc::Receiver<Message>) -> Catalog {
        let endpoint = "10.0.0.1:6443".parse().unwrap();
        let topics = Topic::all(0).count();
        let (published, ends) = Published::new(topics);
        let ttl = Duration::from_secs(15);
        Catalog {
            own: Own {
                id: watch::channel(None).1,
                endpoint,
            },
            messages,
            local: watch::channel(LocalView::default()).1,
            natives: mpsc::channel(1).1,
            refused: ends.refused,
            reports: ends.reports,
            custom: watch::channel(None).0,
            native_peers: watch::channel(BTreeMap::new()).0,
            leases: watch::channel(None).0,
            published,
            state: State::new(endpoint, 0, ttl, ttl),
        }
    }

    #[test]
    fn a_burst_is_published_in_parts_and_each_is_put_together_once() {
        const BURST: usize = 4096;
        let (sender, messages) = mpsc::channel(BURST);
        for number in 0..BURST {
            sender.try_send(definition(number)).unwrap();
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
