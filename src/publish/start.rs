//! Starts what publishes this server's identity, record and Lease.

use std::sync::Arc;

use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::announcement::{self, Announcement};
use super::identify::Identify;
use super::identity::host_name;
use super::kept_records::RecordKeeper;
use super::lease::{LeaseKeeper, ObservedLease};
use super::metrics::{IdentityMetrics, LeaseMetrics};
use super::peer_entry::PeerEntry;
use super::record::Publisher;
use super::renewal;
use crate::client::ClientMaker;
use crate::cluster::catalog::{OwnServer, Published};
use crate::cluster::connector::Connector;
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::cluster::state::canonical;
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
    let (wanted_sender, wanted) = watch::channel(false);
    let (observed_sender, observed) = watch::channel(Arc::default());
    let keeper = match config.identity.publish_lease {
        PublishLease::Never => None,
        _ => Some(keeper(config, &inputs, wanted, observed)),
    };
    let identify = Identify {
        config: config.identity.clone(),
        host: host_name(),
        leases: published.leases.subscribe(),
        others: published.others_ids.subscribe(),
        view: inputs.view.clone(),
        state: inputs.local.clone(),
        id: inputs.id,
        labelled: None,
        apiserver_id: inputs.apiserver_id,
        wanted: wanted_sender,
        observed: observed_sender,
        metrics: inputs.identity_metrics.clone(),
    };
    control.spawn(identify.run());
    let record_keeper = RecordKeeper {
        connector: inputs.connector.clone(),
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
    let publisher = Publisher {
        connector: inputs
            .connector
            // After the followers of topics.
            .starting_at(inputs.keys.topics().count())
            .limited(renewal::request_limit(config.peer.lease_ttl)),
        entry: PeerEntry {
            prefix: inputs.keys.of(Topic::PeerEndpoints),
            address: canonical(inputs.own.endpoint),
            ttl: config.peer.lease_ttl,
            kept: None,
        },
        announcement: inputs.announcement,
        written: written_sender,
        keys: inputs.keys,
        own: inputs.own,
        configured: config.identity.server_id.is_some(),
        state: inputs.local,
        view: inputs.view,
        custom: published.custom.subscribe(),
        duplicate: inputs.identity_metrics.duplicate_id,
        live_ttl: config.peer.lease_ttl,
        record_ttl: config.rerouting.absent_server_grace,
    };
    let mut publishing = Publishing::default();
    publishing.spawn(|stop| publisher.run(stop));
    if let Some(keeper) = keeper {
        publishing.spawn(|stop| keeper.run(stop));
    }
    publishing
}

fn keeper(
    config: &Config,
    inputs: &PublishInputs<'_>,
    wanted: watch::Receiver<bool>,
    leases: watch::Receiver<Arc<Vec<ObservedLease>>>,
) -> LeaseKeeper {
    let identity = &config.identity;
    LeaseKeeper {
        client: inputs.maker.client(config.api_server.address),
        namespace: identity
            .lease_namespaces
            .first()
            .cloned()
            .unwrap_or_default(),
        renew_interval: identity.renew_interval,
        lease_duration: identity.lease_duration,
        hostname: host_name(),
        endpoint: inputs.own.endpoint,
        id: inputs.own.apiserver_id.clone(),
        wanted,
        view: inputs.view.clone(),
        state: inputs.local.clone(),
        leases,
        metrics: inputs.lease_metrics.clone(),
    }
}
