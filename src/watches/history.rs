//! Finds the etcd revision since which the local apiserver has watch history (KEP-1904).
//!
//! Each of its watch caches begins at the revision of its first list, before the apiserver is ready or shortly after. etcd's
//! revision some time after the first `/readyz` 200 is never below any of these. If the apiserver ran before this proxy, the
//! revision is too high: some watches are sent to a peer without need, but none fails.

use std::sync::Arc;
use std::time::Duration;

use crate::cluster::connector::{Connector, within};
use crate::cluster::source::SourceError;
use crate::local::state::LocalState;
use crate::log_throttle::{LogThrottle, chain};
use crate::retry::jittered;

/// Wait after the apiserver is ready, for watch caches that are slow.
const MARGIN: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_secs(1);

/// Finds the revision for each process of the apiserver. Runs until dropped. `key`: any key that may be read.
pub async fn run(mut connector: Connector, key: String, state: Arc<LocalState>) {
    let mut changes = state.changes();
    let throttle = LogThrottle::default();
    loop {
        let epoch = state.epoch();
        let unknown = state.history_start() == i64::MAX && !state.is_history_void();
        if state.is_initialized() && unknown {
            tokio::time::sleep(MARGIN).await;
            match revision(&mut connector, &key).await {
                Ok(revision) => {
                    throttle.recovered(&());
                    tracing::info!(revision, "watch history begins");
                    state.begins_at(revision, epoch);
                }
                Err(error) => {
                    if throttle.should_log((), chain(&error)) {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(error, "etcd's revision is not known, trying on");
                    }
                    tokio::time::sleep(jittered(PAUSE)).await;
                }
            }
        } else if changes.changed().await.is_err() {
            return;
        }
    }
}

/// etcd's current revision, from a linearizable read. It is in the header of every response.
async fn revision(connector: &mut Connector, key: &str) -> Result<i64, SourceError> {
    let mut client = connector.connect().await?;
    let answer = within(client.get(key, None)).await?;
    let header = answer.header().ok_or(SourceError::Timeout)?;
    Ok(header.revision())
}
