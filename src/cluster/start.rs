//! Starts what follows etcd and asks servers without a proxy, and the catalog that reads both.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::absence::EtcdReader;
use super::asking::UnproxiedReader;
use super::catalog::{Catalog, CatalogInputs, OwnServer, Published};
use super::connector::{Connector, Session};
use super::etcd::EtcdSource;
use super::keys::{EtcdKeys, Topic};
use super::state::ClusterState;
use super::watch::{follow, queue};
use crate::client::{ClientMaker, MakerError};
use crate::config::settings::SharedSettings;
use crate::config::{BareServersMode, Config};
use crate::local::discovery::LocalView;
use crate::local::state::LocalState;

/// Messages that may wait to be read.
const QUEUE: usize = 4096;

/// What this room and those above it are built on.
pub struct Foundation {
    pub own: OwnServer,
    pub keys: EtcdKeys,
    pub connector: Connector,
    /// Makes clients of the local apiserver.
    pub maker: Arc<ClientMaker>,
    pub local: Arc<LocalState>,
    pub settings: Arc<SharedSettings>,
    pub published: Published,
}

/// Spawns one follower of etcd for each topic, what proves that no server is missing, the reader of servers without a
/// proxy and the catalog.
pub fn start(
    config: &Config,
    given: &Foundation,
    ends: CatalogInputs,
    local: watch::Receiver<LocalView>,
    control: &mut JoinSet<()>,
) -> Result<(), MakerError> {
    let mut state = ClusterState::new(
        given.own.endpoint,
        config.identity.lease_namespaces.len(),
        config.peer.lease_ttl,
        config.rerouting.absent_server_grace,
    );
    if config.rerouting.bare_servers == BareServersMode::Ignore {
        state.topics.remove(&Topic::MasterLeases);
    }
    let (sink, messages) = queue(QUEUE);
    let log_throttle = Arc::default();
    for (number, topic) in state.topics.keys().copied().enumerate() {
        // Each follower starts at another member of etcd.
        let connector = given.connector.starting_at(number);
        let source = EtcdSource::new(connector, given.keys.of(topic), config.peer.lease_ttl);
        let (sink, log_throttle) = (sink.clone(), Arc::clone(&log_throttle));
        let replaced = given.published.other_history.subscribe();
        control.spawn(follow(source, topic, sink, replaced, log_throttle));
    }
    let etcd = EtcdReader {
        etcd: Session::new(given.connector.clone()),
        keys: given.keys.clone(),
    };
    let absence = given.published.absence.clone();
    control.spawn(async move { absence.serve(etcd).await });
    let candidates = watch::Sender::default();
    let (answers_sender, answers) = mpsc::channel(QUEUE);
    let reader = UnproxiedReader::new(
        config,
        &given.maker.credentials,
        candidates.subscribe(),
        given.published.custom.subscribe(),
        answers_sender,
    )?;
    control.spawn(reader.run());
    let catalog = Catalog {
        state,
        messages,
        answers,
        candidates,
        local,
        ends,
        own: given.own.clone(),
        ignored_addresses: given.settings.changes(),
        published: given.published.clone(),
    };
    control.spawn(catalog.run());
    Ok(())
}
