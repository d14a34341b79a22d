//! Publishes this server: its keys in etcd, its server ID and its identity Lease.

pub mod announcement;
pub mod etcd_key;
pub mod identify;
pub mod identity;
pub mod kept_records;
pub mod lease;
pub mod metrics;
pub mod record;
mod server_ids;

use std::sync::Arc;

use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use self::announcement::Announcement;
use self::etcd_key::EtcdSession;
use self::identify::Identify;
use self::identity::host_name;
use self::kept_records::RecordKeeper;
use self::lease::LeaseKeeper;
use self::metrics::{IdentityMetrics, LeaseMetrics};
use self::record::{Publisher, request_limit};
use crate::client::ClientMaker;
use crate::cluster::catalog::{OwnServer, Published};
use crate::cluster::connector::{Connector, REQUEST_TIMEOUT};
use crate::cluster::keys::EtcdKeys;
use crate::config::{Config, PublishLease};
use crate::local::discovery::LocalView;
use crate::local::state::LocalState;

/// What the tasks read, and what they write with.
pub struct PublishInputs<'a> {
    pub own: OwnServer,
    /// The writing ends of [`OwnServer::id`] and [`OwnServer::apiserver_id`].
    pub id: watch::Sender<Option<Arc<str>>>,
    pub apiserver_id: watch::Sender<Option<Arc<str>>>,
    pub keys: EtcdKeys,
    pub connector: Connector,
    /// Makes the client that writes the Lease.
    pub maker: Arc<ClientMaker>,
    pub local: Arc<LocalState>,
    pub view: watch::Receiver<LocalView>,
    pub published: &'a Published,
    pub announcement: Arc<Announcement>,
    pub identity_metrics: IdentityMetrics,
    pub lease_metrics: LeaseMetrics,
}

/// The tasks that remove what they have published when they are stopped.
#[derive(Default)]
pub struct Publishing {
    stop: Vec<oneshot::Sender<()>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Publishing {
    fn spawn<F>(&mut self, run: impl FnOnce(oneshot::Receiver<()>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop_sender, stop) = oneshot::channel();
        self.stop.push(stop_sender);
        self.tasks.push(tokio::spawn(run(stop)));
    }

    /// Has own keys and the Lease removed. Resolves when that is done.
    pub async fn stop(self) {
        for stop in self.stop {
            // Sending fails if the task has ended.
            let _ = stop.send(());
        }
        for task in self.tasks {
            // A task that panicked removes nothing more.
            let _ = task.await;
        }
    }
}

/// Spawns the search for the server ID, the publisher of the record and, unless `identity.publishLease` is `Never`, the
/// keeper of the Lease.
pub fn start(config: &Config, inputs: PublishInputs<'_>, control: &mut JoinSet<()>) -> Publishing {
    let published = inputs.published;
    let (lease_sender, lease) = watch::channel(None);
    let identity = &config.identity;
    let keeper = LeaseKeeper {
        client: inputs.maker.client(config.api_server.address),
        namespaces: identity.lease_namespaces.clone(),
        renew_interval: identity.renew_interval,
        lease_duration: identity.lease_duration,
        hostname: host_name(),
        endpoint: inputs.own.endpoint,
        id: lease,
        view: inputs.view.clone(),
        state: inputs.local.clone(),
        leases: published.leases.subscribe(),
        metrics: inputs.lease_metrics,
    };
    let identify = Identify {
        config: identity.clone(),
        host: host_name(),
        leases: published.leases.subscribe(),
        others: published.others_ids.subscribe(),
        view: inputs.view.clone(),
        state: inputs.local.clone(),
        id: inputs.id,
        labelled: None,
        apiserver_id: inputs.apiserver_id,
        lease: lease_sender,
        metrics: inputs.identity_metrics.clone(),
    };
    control.spawn(identify.run());
    let record_keeper = RecordKeeper {
        etcd: EtcdSession::new(inputs.connector.clone(), REQUEST_TIMEOUT),
        keys: inputs.keys.clone(),
        records: published.unreachable_records.subscribe(),
        ttl: config.rerouting.absent_server_grace,
    };
    control.spawn(record_keeper.run());
    let (written_sender, written) = watch::channel(None);
    control.spawn(announcement::run(
        inputs.announcement.clone(),
        written,
        published.own_keys.subscribe(),
    ));
    // After the followers of topics.
    let connector = inputs.connector.starting_at(inputs.keys.topics().count());
    let live_ttl = config.peer.lease_ttl;
    let publisher = Publisher {
        etcd: EtcdSession::new(connector, request_limit(live_ttl)),
        keys: inputs.keys,
        own: inputs.own,
        configured: identity.server_id.is_some(),
        state: inputs.local,
        view: inputs.view,
        custom: published.custom.subscribe(),
        entry: None,
        duplicate: inputs.identity_metrics.duplicate_id,
        announcement: inputs.announcement,
        written: written_sender,
        live_ttl,
        record_ttl: config.rerouting.absent_server_grace,
    };
    let mut publishing = Publishing::default();
    publishing.spawn(|stop| publisher.run(stop));
    if identity.publish_lease != PublishLease::Never {
        publishing.spawn(|stop| keeper.run(stop));
    }
    publishing
}
