//! Control work: what runs beside the serving threads, from the start to the stop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::BuildError;
use crate::cluster::catalog::{Catalog, Ends};
use crate::cluster::connector::Connector;
use crate::cluster::etcd::EtcdSource;
use crate::cluster::keys::{Keys, Topic};
use crate::cluster::native;
use crate::cluster::state::State;
use crate::cluster::watch::follow;
use crate::config::PublishLease;
use crate::discovery::clients::Clients;
use crate::discovery::gather::Gather;
use crate::local::discovery::{self, LocalView};
use crate::local::{self, probe, requestheader};
use crate::publish::identify::Identify;
use crate::publish::identity::host_name;
use crate::publish::lease::LeaseKeeper;
use crate::publish::record::Publisher;
use crate::publish::rhythm;
use crate::relay::shared::Shared;
use crate::watches::archive;
use crate::watches::book::Book;
use crate::watches::history;

/// Messages of one list that may wait to be read.
const QUEUE: usize = 4096;

/// Followers of etcd, the catalog, the probe and discovery; those that tell others of us are returned, because they end
/// in their own way. With `identity.publishLease: Never` nobody keeps or collects Leases.
pub(super) fn start_control(
    shared: &Arc<Shared>,
    connector: Connector,
    keys: Keys,
    id: watch::Sender<Option<Arc<str>>>,
    ends: Ends,
    books: mpsc::Receiver<Arc<Book>>,
    control: &mut JoinSet<()>,
) -> Result<(Publisher, Option<LeaseKeeper>), BuildError> {
    let config = &shared.config;
    let (view_sender, view) = watch::channel(LocalView::default());
    let (custom_sender, custom) = watch::channel(None);
    let (peers_sender, native_peers) = watch::channel(BTreeMap::new());
    let (natives_sender, natives) = mpsc::channel(QUEUE);
    let (leases_sender, leases) = watch::channel(None);
    let (wanted_sender, wanted) = watch::channel(false);
    let (observed_sender, observed) = watch::channel(Arc::default());

    let (sink, messages) = mpsc::channel(QUEUE);
    let trouble = Arc::default();
    for topic in keys.topics() {
        let connector = connector.starting_at(topic.index());
        let source = EtcdSource::new(connector, config.peer.lease_ttl);
        let keys_only = topic == Topic::Definitions;
        control.spawn(follow(
            source,
            topic,
            keys.of(topic),
            keys_only,
            sink.clone(),
            Arc::clone(&trouble),
        ));
    }
    let catalog = Catalog {
        own: shared.own.clone(),
        messages,
        local: view.clone(),
        natives,
        refused: ends.refused,
        reports: ends.reports,
        custom: custom_sender,
        native_peers: peers_sender,
        leases: leases_sender,
        published: shared.published.clone(),
        state: State::new(
            shared.own.endpoint,
            config.identity.lease_namespaces.len(),
            config.peer.lease_ttl,
            config.rerouting.absent_server_grace,
        ),
    };
    control.spawn(catalog.run());
    control.spawn(archive::run(connector.clone(), books));
    control.spawn(history::run(
        connector.starting_at(keys.topics().count() + 1),
        keys.of(Topic::Servers),
        shared.local.clone(),
    ));
    control.spawn(native::run(
        Arc::new(native::maker(config, shared.credentials.clone())?),
        config.api_server.discovery_interval,
        native_peers,
        natives_sender,
    ));
    let gather = Gather {
        published: shared.published.clone(),
        view: view.clone(),
        gathering: shared.gathering.clone(),
        clients: Clients::new(config, &shared.credentials)?,
        discovery_interval: config.api_server.discovery_interval,
        metrics: shared.metrics.gathering.clone(),
    };
    control.spawn(gather.run());
    let identify = Identify {
        config: config.identity.clone(),
        host: host_name(),
        leases,
        state: shared.local.clone(),
        id,
        wanted: wanted_sender,
        observed: observed_sender,
        metrics: shared.metrics.clone(),
    };
    control.spawn(identify.run());

    let maker = Arc::new(local::maker(config, shared.credentials.clone())?);
    let api_server = config.api_server.address;
    control.spawn(probe::run(
        maker.client(api_server),
        shared.local.clone(),
        config.api_server.probe_interval,
    ));
    control.spawn(discovery::run(
        maker.client(api_server),
        shared.local.clone(),
        config.api_server.discovery_interval,
        custom.clone(),
        view_sender,
    ));
    control.spawn(requestheader::run(
        config.clone(),
        shared.credentials.clone(),
        shared.local.clone(),
    ));
    let identity = &config.identity;
    let keeper = (identity.publish_lease != PublishLease::Never).then(|| LeaseKeeper {
        client: maker.client(api_server),
        namespace: identity
            .lease_namespaces
            .first()
            .cloned()
            .unwrap_or_default(),
        renew_interval: identity.renew_interval,
        lease_duration: identity.lease_duration,
        hostname: host_name(),
        endpoint: shared.own.endpoint,
        id: shared.own.id.clone(),
        wanted,
        view: view.clone(),
        state: shared.local.clone(),
        leases: observed,
        metrics: shared.metrics.lease.clone(),
    });
    let publisher = Publisher {
        connector: connector
            .starting_at(keys.topics().count())
            .limited(rhythm::request_limit(config.peer.lease_ttl)),
        keys,
        own: shared.own.clone(),
        state: shared.local.clone(),
        view,
        custom,
        duplicate: shared.metrics.duplicate_id.clone(),
        live_ttl: config.peer.lease_ttl,
        record_ttl: config.rerouting.absent_server_grace,
    };
    Ok((publisher, keeper))
}

/// Tells by `/livez` when one of these tasks ended by a panic: whatever it kept up to date is of that moment since.
/// Requests are still served by what is known. The tasks end with what is returned.
pub(super) fn watched(mut control: JoinSet<()>, crippled: Arc<AtomicBool>) -> JoinSet<()> {
    let mut watcher = JoinSet::new();
    watcher.spawn(async move {
        while let Some(ended) = control.join_next().await {
            if ended.is_err_and(|error| error.is_panic()) {
                tracing::error!("a control task has panicked, this proxy has to be restarted");
                crippled.store(true, Ordering::Relaxed);
            }
        }
    });
    watcher
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_panic_of_one_task_is_told_and_the_others_go_on() {
        let crippled = Arc::new(AtomicBool::new(false));
        let (going_on, mut goes_on) = mpsc::channel(1);
        let mut control = JoinSet::new();
        control.spawn(async move { while going_on.send(()).await.is_ok() {} });
        control.spawn(std::future::ready(()));
        let mut watcher = watched(control, crippled.clone());
        goes_on.recv().await.unwrap();
        assert!(!crippled.load(Ordering::Relaxed));

        watcher.abort_all();
        let ended = watcher.join_next().await.unwrap();
        assert!(ended.is_err_and(|error| error.is_cancelled()));
        while goes_on.recv().await.is_some() {}

        let mut control = JoinSet::new();
        control.spawn(async { panic!("of a test") });
        let mut watcher = watched(control, crippled.clone());
        watcher.join_next().await.unwrap().unwrap();
        assert!(crippled.load(Ordering::Relaxed));
    }
}
