//! Watches across restarts (KEP-1904).
//!
//! When a client comes back: [`history`] finds out since when the local apiserver has watch history, and which watches a
//! peer with a longer history serves better.
//!
//! When the proxy stops, each watch gets a final bookmark. [`frames`] splits a watch's response into events while it is
//! forwarded, and writes the bookmark; [`follower`] keeps what its client has seen, [`storage`] says where in etcd the
//! resource is stored, and [`change_log`] holds the changes there and says which revision is safe for the client. All of
//! these are pure.
//!
//! [`change_logs`] watches etcd and fills one log for each resource. [`stored_here`] knows which resources are stored in
//! this etcd: the [`prover`] asks servers and etcd, by a [`sample`] of each. The stream itself belongs to
//! [`crate::relay`].

pub mod change_log;
pub mod change_logs;
pub mod follower;
pub mod frames;
pub mod history;
pub mod metrics;
#[cfg(test)]
mod model;
pub mod prover;
pub mod sample;
pub mod storage;
pub mod stored_here;

use std::sync::Arc;

use tokio::task::JoinSet;

use self::change_logs::ChangeLogs;
use self::prover::{ApiServers, Prover};
use self::stored_here::StoredHere;
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
    control.spawn(change_logs.run(connector.clone(), opened));
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
