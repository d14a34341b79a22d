//! Since which etcd revision the local apiserver has watch history (KEP-1904).
//!
//! Its watch caches begin at the revision that each of them lists at, before it is ready or little later. etcd's
//! revision some time after the first `/readyz` 200 is never below any of these. Beside an apiserver that was running
//! before this proxy it is too high, which costs detours and no answer.

use std::sync::Arc;
use std::time::Duration;

use crate::cluster::connector::{Connector, within};
use crate::cluster::source::SourceError;
use crate::cluster::watch::jittered;
use crate::local::state::LocalState;
use crate::trouble::{Trouble, chain};

/// An apiserver that is ready has read what it watches, but for what was slow.
const MARGIN: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_secs(1);

/// Finds it anew for each process of the apiserver. Runs until dropped. `key`: any that may be read.
pub async fn run(mut connector: Connector, key: String, state: Arc<LocalState>) {
    let mut changes = state.changes();
    let trouble = Trouble::default();
    loop {
        let epoch = state.epoch();
        if state.is_initialized() && state.history_start() == i64::MAX {
            tokio::time::sleep(MARGIN).await;
            match revision(&mut connector, &key).await {
                Ok(revision) => {
                    trouble.is_over(&());
                    tracing::info!(revision, "watch history begins");
                    state.begins_at(revision, epoch);
                }
                Err(error) => {
                    if trouble.is_news((), chain(&error)) {
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

/// etcd's revision now: read by a quorum, so that no change before it is missed. It is told with whatever is asked for.
async fn revision(connector: &mut Connector, key: &str) -> Result<i64, SourceError> {
    let mut client = connector.connect().await?;
    let answer = within(client.get(key, None)).await?;
    let header = answer.header().ok_or(SourceError::Timeout)?;
    Ok(header.revision())
}
