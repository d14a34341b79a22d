//! Publishes this server: its keys in etcd, its server ID and its identity Lease.

pub mod announcement;
mod draining;
pub mod etcd_key;
pub mod identify;
pub mod identity;
pub mod kept_records;
pub mod lease;
pub mod metrics;
pub mod record;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use self::announcement::Announcement;
use self::identify::Identify;
use self::identity::host_name;
use self::lease::LeaseKeeper;
use self::metrics::IdentityMetrics;
use self::record::{Publisher, request_limit};
use crate::cluster::Foundation;
use crate::cluster::connector::Session;
use crate::config::{Config, PublishLease};
use crate::local::discovery::LocalView;
use crate::log_throttle::LogThrottle;

/// Time limit for etcd when the proxy ends.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The tasks that remove what they have published when they are stopped.
pub struct Publishing {
    pub announcement: Arc<Announcement>,
    stop: watch::Sender<()>,
    publisher: JoinHandle<()>,
    /// Ends when the publisher has removed the live key.
    left: oneshot::Receiver<()>,
    /// Ends the publisher.
    end: oneshot::Sender<()>,
    keeper: Option<JoinHandle<()>>,
}

impl Publishing {
    fn start(publisher: Publisher, keeper: LeaseKeeper) -> Self {
        let keeps = publisher.config.identity.publish_lease != PublishLease::Never;
        let (stop, stopped) = watch::channel(());
        let (left_sender, left) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        Self {
            announcement: publisher.announcement.clone(),
            stop,
            keeper: keeps.then(|| tokio::spawn(keeper.run(stopped.clone()))),
            publisher: tokio::spawn(publisher.run(stopped, left_sender, ended)),
            left,
            end,
        }
    }

    /// Has the live key and the Lease removed. Resolves when that is done.
    pub async fn leave(&mut self) {
        self.stop.send_replace(());
        // A task that panicked removes nothing more.
        let _ = (&mut self.left).await;
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.await;
        }
    }

    /// Has the key of a server that drains removed.
    pub async fn end(self) {
        let _ = self.end.send(());
        // If it fails, the key expires by itself.
        let _ = timeout(END_TIMEOUT, self.publisher).await;
    }
}

/// Spawns the search for the server ID, the publisher of the record and, unless `identity.publishLease` is `Never`, the
/// keeper of the Lease. The senders are the writing ends of `id` and `apiserver_id` of [`Foundation::own`].
pub fn start(
    config: &Config,
    given: &Foundation,
    [id, apiserver_id]: [watch::Sender<Option<Arc<str>>>; 2],
    view: watch::Receiver<LocalView>,
    metrics: IdentityMetrics,
    control: &mut JoinSet<()>,
) -> Publishing {
    let (published, announcement) = (&given.published, Arc::<Announcement>::default());
    let (lease_sender, lease) = watch::channel(None);
    let keeper = LeaseKeeper {
        client: given.maker.client(config.api_server.address),
        config: config.identity.clone(),
        hostname: host_name(),
        endpoint: given.own.endpoint,
        id: lease,
        view: view.clone(),
        state: given.local.clone(),
        leases: published.leases.subscribe(),
        metrics: metrics.clone(),
    };
    let identify = Identify {
        config: config.identity.clone(),
        host: host_name(),
        leases: published.leases.subscribe(),
        others: published.others_ids.subscribe(),
        view: view.clone(),
        state: given.local.clone(),
        id,
        labelled: None,
        apiserver_id,
        lease: lease_sender,
        metrics: metrics.clone(),
    };
    control.spawn(identify.run());
    let (etcd, keys) = (Session::new(given.connector.clone()), given.keys.clone());
    let records = published.unreachable_records.subscribe();
    let ttl = config.rerouting.absent_server_grace;
    control.spawn(kept_records::run(etcd, keys, records, ttl));
    let (written_sender, written) = watch::channel(None);
    let seen = published.own_keys.subscribe();
    control.spawn(announcement::run(announcement.clone(), written, seen));
    // After the followers of topics.
    let connector = given.connector.starting_at(given.keys.topics().count());
    let publisher = Publisher {
        config: config.clone(),
        etcd: Session::new(connector.limited(request_limit(config.peer.lease_ttl))),
        keys: given.keys.clone(),
        own: given.own.clone(),
        state: given.local.clone(),
        view,
        published: published.clone(),
        entry: None,
        duplicate: metrics.duplicate_id,
        failures: 0,
        throttle: LogThrottle::default(),
        announcement,
        written: written_sender,
    };
    Publishing::start(publisher, keeper)
}
