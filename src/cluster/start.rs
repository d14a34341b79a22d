//! Starts what follows etcd and native peers, and the catalog that reads both.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::absence::EtcdReader;
use super::bare_reader;
use super::catalog::{Catalog, CatalogInputs, OwnServer, Published};
use super::connector::Connector;
use super::etcd::EtcdSource;
use super::keys::EtcdKeys;
use super::leases::NamedLease;
use super::native;
use super::others_ids::OthersIds;
use super::queue::{Queue, queue};
use super::state::ClusterState;
use super::watch::follow;
use crate::client::MakerError;
use crate::config::{BareServersMode, Config};
use crate::kube::gvr::Custom;
use crate::kube::requestheader::PublishedNames;
use crate::local::discovery::LocalView;
use crate::tls::credentials::Current;

/// Messages that may wait to be read.
const QUEUE: usize = 4096;

/// What the tasks read, and where they publish.
pub struct ClusterInputs {
    pub own: OwnServer,
    pub keys: EtcdKeys,
    pub connector: Connector,
    pub credentials: Current,
    pub local: watch::Receiver<LocalView>,
    pub published: Published,
    pub ends: CatalogInputs,
    pub custom: watch::Sender<Option<Arc<Custom>>>,
    pub header_names: watch::Sender<Option<Arc<PublishedNames>>>,
    /// `rerouting.ignoredAddresses`
    pub ignored_addresses: watch::Receiver<Arc<BTreeSet<IpAddr>>>,
}

/// What the catalog tells others besides the snapshot.
pub struct ClusterOutputs {
    /// Identity Leases; `None` until they were listed.
    pub leases: watch::Receiver<Option<Arc<Vec<Arc<NamedLease>>>>>,
    /// Records of other servers that must not end, with their revisions.
    pub unreachable_records: watch::Receiver<BTreeMap<String, i64>>,
    /// IDs that other servers have; `None` until etcd was read.
    pub others_ids: watch::Receiver<Option<OthersIds>>,
}

/// Spawns one follower of etcd for each topic, what proves that no server is missing, the reader of native peers'
/// discovery and the catalog.
pub fn start(
    config: &Config,
    inputs: ClusterInputs,
    control: &mut JoinSet<()>,
) -> Result<ClusterOutputs, MakerError> {
    let messages = follow_etcd(config, &inputs, control);
    let reader = EtcdReader::new(config, inputs.connector.clone(), inputs.keys.clone());
    let absence = inputs.published.absence.clone();
    control.spawn(async move { absence.serve(reader).await });
    let (peers_sender, native_peers) = watch::channel(BTreeMap::new());
    let (natives_sender, natives) = mpsc::channel(QUEUE);
    let (candidates_sender, bare_candidates) = watch::channel(BTreeMap::new());
    let (answers_sender, bare_answers) = mpsc::channel(QUEUE);
    let (records_sender, unreachable_records) = watch::channel(BTreeMap::new());
    let (ids_sender, others_ids) = watch::channel(None);
    let (leases_sender, leases) = watch::channel(None);
    let masters = Arc::new(native::maker_of_masters(
        config,
        inputs.credentials.clone(),
    )?);
    control.spawn(native::run(
        (
            Arc::new(native::maker(config, inputs.credentials.clone())?),
            masters.clone(),
        ),
        config.api_server.discovery_interval,
        native_peers,
        inputs.custom.subscribe(),
        natives_sender,
    ));
    control.spawn(bare_reader::run(
        masters,
        config.api_server.discovery_interval,
        bare_candidates,
        inputs.custom.subscribe(),
        answers_sender,
    ));
    let mut state = ClusterState::new(
        inputs.own.endpoint,
        config.identity.lease_namespaces.len(),
        config.peer.lease_ttl,
        config.rerouting.absent_server_grace,
    );
    if config.rerouting.bare_servers == BareServersMode::Ignore {
        state.ignore_bare_servers();
    }
    let catalog = Catalog {
        state,
        own: inputs.own,
        messages,
        local: inputs.local,
        natives,
        bare_answers,
        ignored_addresses: inputs.ignored_addresses,
        refused: inputs.ends.refused,
        reports: inputs.ends.reports,
        custom: inputs.custom,
        native_peers: peers_sender,
        bare_candidates: candidates_sender,
        unreachable_records: records_sender,
        others_ids: ids_sender,
        leases: leases_sender,
        header_names: inputs.header_names,
        published: inputs.published,
    };
    control.spawn(catalog.run());
    Ok(ClusterOutputs {
        leases,
        unreachable_records,
        others_ids,
    })
}

/// Each follower starts at another member of etcd.
fn follow_etcd(config: &Config, inputs: &ClusterInputs, control: &mut JoinSet<()>) -> Queue {
    let keys = &inputs.keys;
    let (sink, messages) = queue(QUEUE);
    let log_throttle = Arc::default();
    let ignored = config.rerouting.bare_servers == BareServersMode::Ignore;
    for topic in keys.topics() {
        if ignored && topic.is_of_bare_servers() {
            inputs.published.freshness.exempt(topic.index());
            continue;
        }
        let connector = inputs.connector.starting_at(topic.index());
        let source = EtcdSource::new(connector, config.peer.lease_ttl);
        control.spawn(follow(
            source,
            topic,
            keys.of(topic),
            sink.clone(),
            Arc::clone(&log_throttle),
        ));
    }
    messages
}
