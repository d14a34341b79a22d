//! Starts what asks etcd on behalf of watches.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::apiservers::ApiServers;
use super::change_logs::{self, ChangeLogs};
use super::history;
use super::prover::Prover;
use crate::cluster::connector::Connector;
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::local::state::LocalState;

/// Spawns the reader of change logs and the search for the beginning of the local apiserver's history.
pub fn start(
    connector: &Connector,
    keys: &EtcdKeys,
    local: &Arc<LocalState>,
    servers: ApiServers,
    control: &mut JoinSet<()>,
) -> ChangeLogs {
    let (change_logs, opened) = ChangeLogs::new();
    control.spawn(change_logs::run(
        connector.clone(),
        opened,
        Prover::new(servers),
    ));
    control.spawn(history::run(
        // After the followers of topics and the publisher.
        connector.starting_at(keys.topics().count() + 1),
        keys.of(Topic::Servers),
        local.clone(),
    ));
    change_logs
}
