//! Starts what asks etcd on behalf of watches.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::apiservers::ApiServers;
use super::change_logs::{self, ChangeLogs};
use super::history;
use super::prover::Prover;
use super::stored_here::{self, StoredHere};
use crate::cluster::connector::Connector;
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::local::state::LocalState;

/// What the relay asks of etcd.
pub struct WatchState {
    pub change_logs: ChangeLogs,
    pub stored_here: Arc<StoredHere>,
}

/// Spawns the reader of change logs, the search for where resources are stored, and the search for the beginning of the
/// local apiserver's history.
pub fn start(
    connector: &Connector,
    keys: &EtcdKeys,
    local: &Arc<LocalState>,
    servers: ApiServers,
    control: &mut JoinSet<()>,
) -> WatchState {
    let (change_logs, opened) = ChangeLogs::new();
    control.spawn(change_logs::run(connector.clone(), opened));
    let (stored_here, questions) = StoredHere::new();
    let stored_here = Arc::new(stored_here);
    control.spawn(stored_here::run(
        stored_here.clone(),
        questions,
        connector.clone(),
        Prover(servers),
    ));
    control.spawn(history::run(
        // After the followers of topics and the publisher.
        connector.starting_at(keys.topics().count() + 1),
        keys.of(Topic::Servers),
        local.clone(),
    ));
    WatchState {
        change_logs,
        stored_here,
    }
}
