//! Starts what follows etcd and asks servers without a proxy, and the catalog that reads both.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::absence::EtcdReader;
use super::asking::UnproxiedReader;
use super::catalog::{Catalog, CatalogInputs, OwnServer, Published};
use super::connector::Connector;
use super::etcd::EtcdSource;
use super::keys::EtcdKeys;
use super::state::ClusterState;
use super::watch::{Queued, follow, queue};
use crate::client::MakerError;
use crate::config::{BareServersMode, Config};
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
    /// `rerouting.ignoredAddresses`
    pub ignored_addresses: watch::Receiver<Arc<BTreeSet<IpAddr>>>,
}

/// Spawns one follower of etcd for each topic, what proves that no server is missing, the reader of servers without a
/// proxy and the catalog.
pub fn start(
    config: &Config,
    inputs: ClusterInputs,
    control: &mut JoinSet<()>,
) -> Result<(), MakerError> {
    let messages = follow_etcd(config, &inputs, control);
    let etcd = EtcdReader::new(config, inputs.connector, inputs.keys);
    let absence = inputs.published.absence.clone();
    control.spawn(async move { absence.serve(etcd).await });
    let candidates = watch::Sender::default();
    let (answers_sender, answers) = mpsc::channel(QUEUE);
    let reader = UnproxiedReader::new(
        config,
        &inputs.credentials,
        candidates.subscribe(),
        inputs.published.custom.subscribe(),
        answers_sender,
    )?;
    control.spawn(reader.run());
    let mut state = ClusterState::new(
        inputs.own.endpoint,
        config.identity.lease_namespaces.len(),
        config.peer.lease_ttl,
        config.rerouting.absent_server_grace,
    );
    state.ignores_bare = config.rerouting.bare_servers == BareServersMode::Ignore;
    let catalog = Catalog {
        state,
        messages,
        answers,
        candidates,
        own: inputs.own,
        local: inputs.local,
        ignored_addresses: inputs.ignored_addresses,
        ends: inputs.ends,
        published: inputs.published,
    };
    control.spawn(catalog.run());
    Ok(())
}

/// Each follower starts at another member of etcd.
fn follow_etcd(
    config: &Config,
    inputs: &ClusterInputs,
    control: &mut JoinSet<()>,
) -> mpsc::Receiver<Queued> {
    let keys = &inputs.keys;
    let (sink, messages) = queue(QUEUE);
    let log_throttle = Arc::default();
    let ignored = config.rerouting.bare_servers == BareServersMode::Ignore;
    for topic in keys.topics() {
        if ignored && topic.is_of_bare_servers() {
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
