//! The key of a server that drains: from the signal to stop until its apiserver is gone, or the proxy ends.
//!
//! While it is there, peers send watches here from revisions that no target has the history of
//! ([`crate::routing::decide`]). So there is none while it is not known where the history of the apiserver begins, nor
//! when that is the history of another etcd. It is rewritten as the live key was.

use tokio::sync::oneshot;

use super::record::{IdKeys, PublishError, Publisher, SHORTEST_PAUSE};
use crate::cluster::json;
use crate::cluster::keys::Topic;
use crate::cluster::record::DrainingKey;

impl Publisher {
    /// Keeps the key until the `end`, then removes it.
    pub(super) async fn drain(mut self, mut keys: IdKeys, mut end: oneshot::Receiver<()>) {
        let mut changes = self.state.changes();
        // What failed before is no reason to wait long now.
        self.failures = 0;
        loop {
            let written = self.write_draining(&mut keys).await;
            let pause = self.note(written);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Ok(()) = changes.changed() => tokio::time::sleep(SHORTEST_PAUSE).await,
                _ = &mut end => break,
            }
        }
        // If it fails, the key expires by itself.
        let _ = keys.draining.delete(&mut self.etcd).await;
    }

    /// Writes the key, or removes it while it must not be there.
    pub(super) async fn write_draining(&mut self, keys: &mut IdKeys) -> Result<(), PublishError> {
        self.verify_history(keys).await?;
        let taken = self.other_owner(keys).await?;
        let history_start = self.state.history_start();
        if taken.is_some() || !self.state.accepts() || history_start == i64::MAX {
            keys.draining.delete(&mut self.etcd).await?;
            return taken.map_or(Ok(()), Err);
        }
        let there = keys.draining.read(&mut self.etcd).await?;
        let there: Option<DrainingKey> = there.and_then(|value| json::read(value).ok());
        if let Some(other) = there.filter(|there| there.endpoint != self.own.endpoint) {
            // It is not ours to remove.
            keys.draining = self.key(Topic::Draining, &keys.id);
            return Err(PublishError::Duplicate(other.endpoint));
        }
        let value = serde_json::to_vec(&DrainingKey {
            endpoint: self.own.endpoint,
            history_start,
        })?;
        let ttl = self.config.peer.lease_ttl;
        match keys.draining.put(&mut self.etcd, value, ttl).await? {
            true => Ok(()),
            false => Err(PublishError::Raced),
        }
    }
}
