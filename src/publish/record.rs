//! Keeps this server's keys in etcd: the record, the live key, and the entry for native peers.
//!
//! Keys are rewritten with new etcd leases instead of kept alive, because kine does not support keep-alive. The live
//! key disappears with its lease or when the proxy stops. The record stays for `rerouting.absentServerGrace` after its
//! last write.
//!
//! The publisher writes nothing while a live key with our ID has another address. If two servers overwrote each other's
//! record, all proxies would conclude that no server serves what one of them lacks. For the same reason an ID that is not
//! configured, and so comes from a Lease, is not used while a record with this ID has another address. Instead the
//! publisher writes a claim key: then the other proxy reports the conflict too, and all proxies know that a served set is unknown. It writes
//! a claim too while it has no server ID yet. The live key, or a claim, is written as soon as etcd can be reached, so
//! that other proxies know of this server before anyone is sent to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus::IntGauge;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::announcement::Announcement;
use super::etcd_key::{EtcdKey, EtcdSession};
use super::server_ids::{IdKeys, ServerIds};
use crate::cluster::catalog::OwnServer;
use crate::cluster::codec::{PeerEndpoint, encode_endpoints};
use crate::cluster::connector::REQUEST_TIMEOUT;
use crate::cluster::json;
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::cluster::own_keys::OwnKeys;
use crate::cluster::record::{LiveKey, Record, pack};
use crate::cluster::source::SourceError;
use crate::cluster::state::canonical;
use crate::kube::gvr::Custom;
use crate::local::discovery::LocalView;
use crate::local::state::LocalState;
use crate::log_throttle::{LogThrottle, chain};
use crate::retry::jittered;

/// The publisher's inputs and outputs.
pub struct Publisher {
    pub etcd: EtcdSession,
    /// Below which prefix.
    pub keys: EtcdKeys,
    pub own: OwnServer,
    /// The server ID is configured: an operator says whose record it is.
    pub configured: bool,
    /// Initialized or not.
    pub state: Arc<LocalState>,
    /// What the apiserver serves itself.
    pub view: watch::Receiver<LocalView>,
    /// `None` until etcd was read.
    pub custom: watch::Receiver<Option<Arc<Custom>>>,
    /// The apiserver's ID, and the entry below `peerserverleases` that was written for it.
    pub entry: Option<(Arc<str>, EtcdKey)>,
    /// 1 while another live proxy claims our ID.
    pub duplicate: IntGauge,
    /// Whether writing fails, for as long as nothing is announced.
    pub announcement: Arc<Announcement>,
    /// The keys that announce this server, once they are written.
    pub written: watch::Sender<Option<OwnKeys>>,
    /// Lifetime of the live key without a rewrite.
    pub live_ttl: Duration,
    /// Lifetime of the record without a rewrite.
    pub record_ttl: Duration,
}

/// `metadata.generation` of our entry below `peerserverleases`. An apiserver's own has its number of writes, and is else the
/// same to the byte: with 1 its first one could not be told from ours.
const ENTRY_GENERATION: i64 = 0;
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
/// Time limit for etcd when the proxy stops.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(3);
/// Members of etcd to try within that time.
const REMOVAL_TRIES: usize = 3;

/// Why writing failed.
#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("another live proxy, at {0}, claims this server ID; identity.serverID must differ")]
    Duplicate(SocketAddr),
    #[error("the record of this server ID is that of a server at {0}")]
    OthersRecord(SocketAddr),
    #[error("own live key was written by somebody else at the same time")]
    Raced,
    #[error("cannot be put into JSON")]
    Json(#[from] serde_json::Error),
}

/// Between two writes of a key with this TTL. The rest of it is enough to find two etcd members frozen, one after the
/// other, and to write through a third.
fn pause(ttl: Duration) -> Duration {
    ttl / 3
}

/// Timeout of one request.
pub fn request_limit(ttl: Duration) -> Duration {
    (ttl / 6).min(REQUEST_TIMEOUT)
}

/// After this many failures in a row.
fn pause_after(failures: u32, ttl: Duration) -> Duration {
    (ttl / 20).saturating_mul(failures).min(pause(ttl))
}

impl Publisher {
    /// Writes until the proxy stops, then removes the live key.
    pub async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        let mut ids = ServerIds::new(&self.keys, self.own.endpoint);
        let mut failures = 0;
        let throttle = LogThrottle::default();
        let mut changes = self.state.changes();
        loop {
            if let Some(id) = self.own.id.borrow_and_update().clone() {
                ids.take(id, &self.keys, self.own.endpoint);
            }
            self.own.apiserver_id.mark_unchanged();
            // A stop does not cancel this: an unfinished write could overtake the removal of the live key.
            let pause = match self.write_all(&mut ids).await {
                Ok(()) => {
                    for former in ids.take_former() {
                        self.leave(former, true).await;
                    }
                    failures = 0;
                    self.announcement.written(None);
                    if let Some(after) = throttle.recovered(&()) {
                        tracing::info!(?after, "own keys are written to etcd again");
                    }
                    pause(self.live_ttl)
                }
                Err(error) => {
                    self.etcd.close();
                    failures += 1;
                    self.announcement.written(Some(chain(&error)));
                    if throttle.should_log((), chain(&error)) {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(error, "own keys cannot be written to etcd, trying on");
                    }
                    jittered(pause_after(failures, self.live_ttl))
                }
            };
            let rest = tokio::time::sleep(SHORTEST_PAUSE);
            let stopped = tokio::select! {
                () = tokio::time::sleep(pause) => false,
                Ok(()) = changes.changed() => false,
                Ok(()) = self.view.changed() => false,
                Ok(()) = self.own.id.changed() => false,
                Ok(()) = self.own.apiserver_id.changed() => false,
                _ = &mut stop => true,
            };
            if stopped {
                break;
            }
            // Limits the rate of writes to etcd.
            rest.await;
        }
        for keys in ids.named {
            self.leave(keys, false).await;
        }
        // If it fails, the claim expires by itself.
        let unnamed = ids.unnamed.delete(&mut self.etcd);
        let _ = tokio::time::timeout(REMOVAL_TIMEOUT, unnamed).await;
    }

    async fn write_all(&mut self, ids: &mut ServerIds) -> Result<(), PublishError> {
        // Peers are to know that a server comes, before they know its name.
        if ids.named.is_empty() {
            return self.claim(&mut ids.unnamed).await;
        }
        let mut written = Ok(());
        // Keep the former ID's live key until the new one exists, so that peers always see one.
        for keys in &mut ids.named {
            written = self.write(keys).await;
        }
        written
    }

    async fn write(&mut self, keys: &mut IdKeys) -> Result<(), PublishError> {
        // Before anything is published: a history from before means nothing to this etcd.
        if keys.live.is_of_other_history(&mut self.etcd).await? {
            self.state.void_history();
        }
        let believed = keys.record.revision();
        let owner = self.check_owner(keys).await;
        let duplicate = match &owner {
            Err(PublishError::Duplicate(_)) => true,
            _ => self.is_claimed(&keys.id).await?,
        };
        self.duplicate.set(duplicate.into());
        owner?;
        keys.record.read(&mut self.etcd).await?;
        if keys.record.revision() != believed {
            // Deleted or overwritten.
            (keys.at, keys.since) = (None, None);
        }
        let now = self.record();
        let known = now.is_some();
        // Keep the last known contents until newer ones are known: a server that disappears now still served them.
        if let Some(record) = now.or_else(|| keys.written.clone()) {
            self.write_record(keys, record).await?;
        }
        // The record first, then the live key.
        self.write_live_key(keys, known).await?;
        let serves = self.state.serves();
        let apiserver = self.own.apiserver_id.borrow().clone();
        Ok(self.write_entry(apiserver.filter(|_| serves)).await?)
    }

    async fn write_record(&mut self, keys: &mut IdKeys, now: Record) -> Result<(), PublishError> {
        if !keys.is_due(&now, self.record_ttl) {
            return Ok(());
        }
        let started = Instant::now();
        let value = serde_json::to_vec(&now)?;
        let record = &mut keys.record;
        if !record.put(&mut self.etcd, value, self.record_ttl).await? {
            return Err(PublishError::Raced);
        }
        if keys.written.as_ref() != Some(&now) || keys.since.is_none() {
            keys.since = Some(keys.record.revision());
        }
        (keys.written, keys.at) = (Some(now), Some(started));
        Ok(())
    }

    /// `known`: what the apiserver serves is known, and in the record.
    async fn write_live_key(&mut self, keys: &mut IdKeys, known: bool) -> Result<(), PublishError> {
        let another = self.own.apiserver_id.borrow().clone();
        let another = another.filter(|id| *id != keys.id);
        // An apiserver that rejects requests is not a target, and one that may be frozen is asked last.
        let live = LiveKey {
            endpoint: self.own.endpoint,
            initialized: self.state.accepts(),
            ready: self.state.is_ready() && self.state.serves(),
            api_server_id: another.as_deref().map(str::to_owned),
            record_revision: keys.since.filter(|_| known),
        };
        let value = serde_json::to_vec(&live)?;
        if !keys.live.put(&mut self.etcd, value, self.live_ttl).await? {
            return Err(PublishError::Raced);
        }
        keys.lives = true;
        self.announcement.is_coming();
        if known {
            self.written.send_replace(Some(OwnKeys {
                record: keys.record.revision(),
                live: keys.live.revision(),
                claim: 0,
            }));
        }
        Ok(())
    }

    /// Writes the entry for apiservers that reroute by themselves, or removes it. They look entries up by the names of
    /// identity Leases, so it has the apiserver's `id` and not the proxy's. An entry with another value is the
    /// apiserver's own: it counts its writes from 1, and ours have [`ENTRY_GENERATION`].
    async fn write_entry(&mut self, id: Option<Arc<str>>) -> Result<(), SourceError> {
        if let Some((former, key)) = &mut self.entry
            && Some(&*former) != id.as_ref()
        {
            key.delete(&mut self.etcd).await?;
            self.entry = None;
        }
        let Some(id) = id else { return Ok(()) };
        let entry = PeerEndpoint {
            server: id.to_string(),
            address: canonical(self.own.endpoint),
        };
        let value = encode_endpoints(&entry, ENTRY_GENERATION);
        let name = format!("{}{id}", self.keys.of(Topic::PeerEndpoints));
        let (_, key) = self.entry.get_or_insert((id, EtcdKey::new(name)));
        let there = key.read(&mut self.etcd).await?;
        if there.is_none_or(|there| there == value) {
            key.put(&mut self.etcd, value, self.live_ttl).await?;
        } else {
            self.entry = None;
        }
        Ok(())
    }

    /// Writes a claim in place of a live key.
    async fn claim(&mut self, claim: &mut EtcdKey) -> Result<(), PublishError> {
        claim.read(&mut self.etcd).await?;
        let value = serde_json::to_vec(&canonical(self.own.endpoint))?;
        claim.put(&mut self.etcd, value, self.live_ttl).await?;
        self.announcement.is_coming();
        Ok(())
    }

    /// Whether another server has our ID: then there is a claim in place of our keys.
    async fn check_owner(&mut self, keys: &mut IdKeys) -> Result<(), PublishError> {
        let Some(taken) = self.other_owner(keys).await? else {
            return Ok(());
        };
        keys.lives = false;
        self.claim(&mut keys.claim).await?;
        // Before etcd was read, requests for resources are refused.
        if self.custom.borrow().is_some() {
            self.written.send_replace(Some(OwnKeys {
                claim: keys.claim.revision(),
                ..OwnKeys::default()
            }));
        }
        Err(taken)
    }

    /// Who else has our ID. A value that cannot be decoded does not count.
    async fn other_owner(
        &mut self,
        keys: &mut IdKeys,
    ) -> Result<Option<PublishError>, SourceError> {
        let own = canonical(self.own.endpoint);
        let other = |at: SocketAddr| Some(canonical(at)).filter(|at| *at != own);
        let there = keys.live.read(&mut self.etcd).await?;
        let live: Option<LiveKey> = there.and_then(|value| json::read(value).ok());
        if let Some(live) = live {
            return Ok(other(live.endpoint).map(PublishError::Duplicate));
        }
        if self.configured {
            return Ok(None);
        }
        let there = keys.record.read(&mut self.etcd).await?;
        let record: Option<Record> = there.and_then(|value| json::read(value).ok());
        let other = record.and_then(|record| other(record.endpoint));
        Ok(other.map(PublishError::OthersRecord))
    }

    /// Whether another proxy claims our ID.
    async fn is_claimed(&mut self, id: &str) -> Result<bool, SourceError> {
        let own = canonical(self.own.endpoint);
        let claims = self.etcd.names(&self.keys.claims(id)).await?;
        let mut addresses = claims.iter().filter_map(|name| name.parse().ok());
        let other = addresses.find(|other: &SocketAddr| *other != own);
        if let Some(other) = other
            && self.duplicate.get() == 0
        {
            tracing::error!(
                server_id = id, %other,
                "another live proxy claims this server ID; identity.serverID must differ"
            );
        }
        Ok(other.is_some())
    }

    /// Removes the keys that show us alive under an ID. `renamed`: we have another ID now.
    async fn leave(&mut self, mut keys: IdKeys, renamed: bool) {
        if !keys.lives {
            return;
        }
        let server_id = keys.id.clone();
        let removal = async {
            let mut last = Ok(());
            for _ in 0..REMOVAL_TRIES {
                last = self.remove_keys(&mut keys, renamed).await;
                if !matches!(last, Err(PublishError::Source(_))) {
                    break;
                }
                self.etcd.close();
            }
            last
        };
        let removed = tokio::time::timeout(REMOVAL_TIMEOUT, removal).await;
        let removed = removed.unwrap_or(Err(SourceError::Timeout.into()));
        match removed {
            Ok(()) => tracing::info!(server_id = &*server_id, "own live key removed from etcd"),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    error,
                    "own live key could not be removed, it expires by itself"
                );
            }
        }
    }

    async fn remove_keys(&mut self, keys: &mut IdKeys, renamed: bool) -> Result<(), PublishError> {
        self.check_owner(keys).await?;
        keys.live.delete(&mut self.etcd).await?;
        // A renamed server has a newer record at its address, and the same entry.
        if renamed {
            return Ok(());
        }
        self.write_entry(None).await?;
        // The record stays for the whole grace period from now on.
        if let Some(record) = self.record().or(keys.written.clone()) {
            let (value, ttl) = (serde_json::to_vec(&record)?, self.record_ttl);
            keys.record.put(&mut self.etcd, value, ttl).await?;
        }
        Ok(())
    }

    /// The record to write; `None` while the served set is unknown.
    fn record(&mut self) -> Option<Record> {
        let view = self.view.borrow_and_update();
        let served = view.served.as_ref()?;
        let versions = view.versions.as_ref();
        Some(Record {
            endpoint: self.own.endpoint,
            binary_version: versions.map(|versions| versions.binary.clone()),
            compatibility_version: versions
                .and_then(|versions| versions.compatibility)
                .map(|it| it.to_string()),
            history_start: Some(self.state.history_start()).filter(|start| *start != i64::MAX),
            history_void: self.state.is_history_void(),
            resources: pack(served),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_frozen_members_leave_time_to_write_over_a_third() {
        // The shortest that the configuration allows, the default, a long one.
        for seconds in [2, 15, 3600] {
            let ttl = Duration::from_secs(seconds);
            let lost: Duration = (1..=2)
                .map(|failures| request_limit(ttl) + pause_after(failures, ttl))
                .sum();
            let left = ttl.checked_sub(pause(ttl) + lost);
            assert!(left.is_some_and(|left| left >= ttl / 6), "{ttl:?} {left:?}");
        }
    }

    #[test]
    fn no_pause_is_longer_than_between_two_writings() {
        let ttl = Duration::from_secs(15);
        assert_eq!(pause_after(u32::MAX, ttl), pause(ttl));
        assert!(pause_after(1, ttl) < Duration::from_secs(1));
    }

    #[test]
    fn an_apiservers_first_entry_is_not_taken_for_ours() {
        let entry = PeerEndpoint {
            server: "apiserver-a".to_owned(),
            address: "10.0.0.11:6443".parse().unwrap(),
        };
        let ours = encode_endpoints(&entry, ENTRY_GENERATION);
        for written in 1..=3 {
            assert_ne!(encode_endpoints(&entry, written), ours);
        }
    }
}
