//! Keeps this server's keys in etcd: the record, the live key, and the entry for native peers.
//!
//! Keys are rewritten with new etcd leases instead of kept alive, because kine does not support keep-alive. The live
//! key disappears with its lease or when the proxy stops; then its draining key takes its place. The record stays for
//! `rerouting.absentServerGrace` after its last write.
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
use tokio::time::{Instant, timeout};

use super::announcement::Announcement;
use super::etcd_key::{EtcdKey, names};
use crate::cluster::absence::{Revisions, revisions};
use crate::cluster::catalog::{OwnServer, Published};
use crate::cluster::codec::{PeerEndpoint, encode_endpoints};
use crate::cluster::connector::{REQUEST_TIMEOUT, Session};
use crate::cluster::json;
use crate::cluster::keys::{EtcdKeys, Topic, claim};
use crate::cluster::record::{LiveKey, Record, pack};
use crate::cluster::source::SourceError;
use crate::config::Config;
use crate::local::discovery::LocalView;
use crate::local::state::LocalState;
use crate::log_throttle::{LogThrottle, chain, warn_new};
use crate::retry::jittered;

/// The publisher's inputs and outputs.
pub struct Publisher {
    pub config: Config,
    pub etcd: Session,
    pub keys: EtcdKeys,
    pub own: OwnServer,
    /// Initialized or not.
    pub state: Arc<LocalState>,
    /// What the apiserver serves itself.
    pub view: watch::Receiver<LocalView>,
    pub published: Published,
    /// The apiserver's ID, and the entry below `peerserverleases` that was written for it.
    pub entry: Option<(Arc<str>, EtcdKey)>,
    /// 1 while another live proxy claims our ID.
    pub duplicate: IntGauge,
    /// How often writing has failed since the last success.
    pub failures: u32,
    pub throttle: LogThrottle,
    /// Whether writing fails, for as long as nothing is announced.
    pub announcement: Arc<Announcement>,
    /// The revisions of the keys that announce this server, once they are written.
    pub written: watch::Sender<Option<Revisions>>,
}

/// Our keys under one server ID.
pub(super) struct IdKeys {
    pub(super) id: Arc<str>,
    pub(super) live: EtcdKey,
    pub(super) draining: EtcdKey,
    record: EtcdKey,
    claim: EtcdKey,
    /// The last written record, the time of the write, and the revision since which its contents are unchanged.
    written: Option<Record>,
    at: Option<Instant>,
    since: Option<i64>,
    /// The live key is ours.
    lives: bool,
    /// When etcd was seen last to have the history in which they were written, and the apiserver's epoch then.
    verified: (Instant, u64),
}

/// How often the record is rewritten within its lifetime, so that it outlives its server by nearly that time.
const REWRITES_PER_LIFE: u32 = 10;
/// `metadata.generation` of our entry below `peerserverleases`. An apiserver's own has its number of writes, and is else the
/// same to the byte: with 1 its first one could not be told from ours.
const ENTRY_GENERATION: i64 = 0;
pub(super) const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
/// Time limit for etcd when the proxy stops.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(3);
/// Members of etcd to try within that time.
const REMOVAL_TRIES: usize = 3;

/// Why writing failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PublishError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("another live proxy, at {0}, claims this server ID; identity.serverID must differ")]
    Duplicate(SocketAddr),
    #[error("the record of this server ID is that of a server at {0}")]
    OthersRecord(SocketAddr),
    #[error("another process wrote the live key at the same time")]
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
    /// Writes until the proxy stops, then removes the live key, drops `left`, and drains until the `end`.
    pub async fn run(
        mut self,
        mut stop: watch::Receiver<()>,
        left: oneshot::Sender<()>,
        end: oneshot::Receiver<()>,
    ) {
        // The claim of a proxy without ID. It expires once there is one: peers see the live key by another watch, later.
        let mut unnamed = self.claim_key(None);
        let mut named: Option<IdKeys> = None;
        // Peers are to see one of our live keys always.
        let mut former: Vec<IdKeys> = Vec::new();
        let mut changes = self.state.changes();
        loop {
            let id = self.own.id.borrow_and_update().clone();
            if let Some(id) = id.filter(|id| named.as_ref().is_none_or(|keys| keys.id != *id)) {
                former.retain(|keys| keys.id != id);
                let keys = self.keys_of(id, named.as_ref());
                former.extend(named.replace(keys).filter(|before| before.lives));
            }
            self.own.apiserver_id.mark_unchanged();
            // Until the new one exists: it may be taken, and this one would expire.
            for keys in &mut former {
                let _ = self.write(keys).await;
            }
            // A stop does not cancel this: an unfinished write could overtake the removal of the live key.
            let written = match &mut named {
                Some(keys) => self.write(keys).await,
                // Peers are to know that a server comes, before they know its name.
                None => self.claim(&mut unnamed).await,
            };
            if written.is_ok() {
                // Another server may have taken one meanwhile.
                for mut keys in former.drain(..).filter(|keys| keys.lives) {
                    // If it fails, the live key expires by itself.
                    let _ = keys.live.delete(&mut self.etcd).await;
                }
            }
            let pause = self.note(written);
            // Limits the rate of writes to etcd.
            let shortest = tokio::time::sleep(SHORTEST_PAUSE);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Ok(()) = changes.changed() => {}
                Ok(()) = self.view.changed() => {}
                Ok(()) = self.own.id.changed() => {}
                Ok(()) = self.own.apiserver_id.changed() => {}
                _ = stop.changed() => break,
            }
            shortest.await;
        }
        former.retain(|keys| keys.lives);
        // Whose keys another server has taken since is drained all the same.
        let mut named = named.filter(|keys| keys.lives);
        for keys in former.iter_mut().chain(&mut named) {
            self.leave(keys).await;
        }
        // If it fails, the claim expires by itself.
        let _ = timeout(REMOVAL_TIMEOUT, unnamed.delete(&mut self.etcd)).await;
        drop(left);
        if let Some(keys) = named {
            self.drain(keys, end).await;
        }
    }

    /// Tells how a writing went. Returns the pause until the next one.
    pub(super) fn note(&mut self, written: Result<(), PublishError>) -> Duration {
        let ttl = self.config.peer.lease_ttl;
        let Err(error) = written else {
            self.failures = 0;
            self.announcement.written(None);
            if let Some(after) = self.throttle.recovered(&()) {
                tracing::info!(?after, "this proxy's keys are written to etcd again");
            }
            return pause(ttl);
        };
        self.failures += 1;
        self.etcd.close();
        self.announcement.written(Some(chain(&error)));
        let text = "this proxy's keys cannot be written to etcd, retrying";
        warn_new!(self.throttle, (), &error, "{text}");
        jittered(pause_after(self.failures, ttl))
    }

    /// `before`: our keys under the ID before.
    fn keys_of(&self, id: Arc<str>, before: Option<&IdKeys>) -> IdKeys {
        IdKeys {
            live: self.key(Topic::Live, &id),
            draining: self.key(Topic::Draining, &id),
            record: self.key(Topic::Servers, &id),
            claim: self.claim_key(Some(&id)),
            written: before.and_then(|before| before.written.clone()),
            at: None,
            since: None,
            lives: false,
            verified: (Instant::now(), self.state.epoch()),
            id,
        }
    }

    pub(super) fn key(&self, topic: Topic, id: &str) -> EtcdKey {
        EtcdKey::new(format!("{}{id}", self.keys.of(topic)))
    }

    fn claim_key(&self, id: Option<&str>) -> EtcdKey {
        self.key(Topic::Claims, &claim(id, self.own.endpoint))
    }

    async fn write(&mut self, keys: &mut IdKeys) -> Result<(), PublishError> {
        // Before anything is published: a history from before means nothing to this etcd.
        self.verify_history(keys).await?;
        let expected = keys.record.revision();
        let owner = self.check_owner(keys).await;
        let duplicate = match &owner {
            Err(PublishError::Duplicate(_)) => true,
            _ => self.is_claimed(&keys.id).await?,
        };
        self.duplicate.set(duplicate.into());
        owner?;
        if keys.record.revision() != expected {
            // Deleted or overwritten.
            (keys.at, keys.since) = (None, None);
        }
        let now = self.record(&keys.id);
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

    /// Finds out whether etcd has the history in which these keys were written.
    pub(super) async fn verify_history(&mut self, keys: &mut IdKeys) -> Result<(), SourceError> {
        let now = (Instant::now(), self.state.epoch());
        let (since, epoch) = keys.verified;
        for (key, is_kept) in [(&keys.live, keys.lives), (&keys.draining, true)] {
            let found = key.has_its_history(&mut self.etcd).await?;
            // A live key that could not be removed has ended by itself.
            if found == Some(true) || found.is_none() && !is_kept {
                continue;
            }
            let is_another = found == Some(false);
            // Who was away for long only cannot tell: that voids nobody else's history.
            if is_another {
                self.published.other_history.send_replace(since);
            }
            // Nor can it tell of a process that began meanwhile.
            let present = self.state.epoch();
            self.state
                .void_history(present, is_another && present == epoch);
            return Ok(());
        }
        keys.verified = now;
        Ok(())
    }

    async fn write_record(&mut self, keys: &mut IdKeys, now: Record) -> Result<(), PublishError> {
        let ttl = self.config.rerouting.absent_server_grace;
        let is_old = |at: Instant| at.elapsed() > ttl / REWRITES_PER_LIFE;
        if keys.written.as_ref() == Some(&now) && !keys.at.is_none_or(is_old) {
            return Ok(());
        }
        let started = Instant::now();
        let value = serde_json::to_vec(&now)?;
        if !keys.record.put(&mut self.etcd, value, ttl).await? {
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
        // An apiserver that rejects requests is not a target, and one that may be frozen is asked last.
        let live = LiveKey {
            endpoint: self.own.endpoint,
            initialized: self.state.accepts(),
            ready: self.state.is_ready() && self.state.serves(),
            api_server_id: self.apiservers_id(&keys.id),
            record_revision: keys.since.filter(|_| known),
        };
        let value = serde_json::to_vec(&live)?;
        let ttl = self.config.peer.lease_ttl;
        if !keys.live.put(&mut self.etcd, value, ttl).await? {
            return Err(PublishError::Raced);
        }
        keys.lives = true;
        self.announcement.is_coming();
        if known {
            self.written.send_replace(Some(revisions(&[
                (Topic::Servers, keys.record.revision()),
                (Topic::Live, keys.live.revision()),
            ])));
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
            address: self.own.endpoint,
        };
        let value = encode_endpoints(&entry, ENTRY_GENERATION);
        let name = format!("{}{id}", self.keys.of(Topic::PeerEndpoints));
        let (_, key) = self.entry.get_or_insert((id, EtcdKey::new(name)));
        let there = key.read(&mut self.etcd).await?;
        if there.is_none_or(|there| there == value) {
            let ttl = self.config.peer.lease_ttl;
            key.put(&mut self.etcd, value, ttl).await?;
        } else {
            self.entry = None;
        }
        Ok(())
    }

    /// Writes a claim in place of a live key.
    async fn claim(&mut self, claim: &mut EtcdKey) -> Result<(), PublishError> {
        claim.read(&mut self.etcd).await?;
        let value = serde_json::to_vec(&self.own.endpoint)?;
        let ttl = self.config.peer.lease_ttl;
        claim.put(&mut self.etcd, value, ttl).await?;
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
        if self.published.custom.borrow().is_some() {
            let claim = (Topic::Claims, keys.claim.revision());
            self.written.send_replace(Some(revisions(&[claim])));
        }
        Err(taken)
    }

    /// Who else has our ID. A value that cannot be decoded does not count.
    pub(super) async fn other_owner(
        &mut self,
        keys: &mut IdKeys,
    ) -> Result<Option<PublishError>, SourceError> {
        let own = self.own.endpoint;
        let other = |at: SocketAddr| (at != own).then_some(at);
        let live = keys.live.read(&mut self.etcd).await?;
        let live: Option<LiveKey> = live.and_then(|value| json::read(value).ok());
        let record = keys.record.read(&mut self.etcd).await?;
        let record: Option<Record> = record.and_then(|value| json::read(value).ok());
        Ok(match (live, record) {
            (Some(live), _) => other(live.endpoint).map(PublishError::Duplicate),
            // A configured ID: an operator says whose record it is.
            (None, Some(record)) if self.config.identity.server_id.is_none() => {
                other(record.endpoint).map(PublishError::OthersRecord)
            }
            _ => None,
        })
    }

    /// Whether another proxy claims our ID.
    async fn is_claimed(&mut self, id: &str) -> Result<bool, SourceError> {
        let claims = names(&mut self.etcd, &self.keys.claims(id)).await?;
        let mut addresses = claims.iter().filter_map(|name| name.parse().ok());
        let other = addresses.find(|other: &SocketAddr| *other != self.own.endpoint);
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

    /// Removes the keys that show us alive under an ID.
    async fn leave(&mut self, keys: &mut IdKeys) {
        let removal = async {
            let mut last = Ok(());
            for _ in 0..REMOVAL_TRIES {
                last = self.remove_keys(keys).await;
                if !matches!(last, Err(PublishError::Source(_))) {
                    break;
                }
                self.etcd.close();
            }
            last
        };
        let removed = timeout(REMOVAL_TIMEOUT, removal).await;
        keys.lives = false;
        if let Err(error) = removed.unwrap_or(Err(SourceError::Timeout.into())) {
            let error = chain(&error);
            let text = "the live key could not be removed: it expires";
            tracing::warn!(error, "{text}");
        } else {
            tracing::info!(server_id = &*keys.id, "live key removed from etcd");
        }
    }

    async fn remove_keys(&mut self, keys: &mut IdKeys) -> Result<(), PublishError> {
        // Before the keys are read: what was known of them is the evidence.
        self.verify_history(keys).await?;
        self.check_owner(keys).await?;
        // First, so that peers have somebody to ask. If it fails, it is tried again while this server drains.
        let _ = self.write_draining(keys).await;
        keys.live.delete(&mut self.etcd).await?;
        self.write_entry(None).await?;
        // The record stays for the whole grace period from now on.
        if let Some(record) = self.record(&keys.id).or(keys.written.clone()) {
            let ttl = self.config.rerouting.absent_server_grace;
            let value = serde_json::to_vec(&record)?;
            keys.record.put(&mut self.etcd, value, ttl).await?;
        }
        Ok(())
    }

    /// The apiserver's own ID, if it is known and not ours.
    fn apiservers_id(&self, own: &str) -> Option<String> {
        let id = self.own.apiserver_id.borrow();
        id.as_deref().filter(|id| *id != own).map(str::to_owned)
    }

    /// The record to write; `None` while the served set is unknown.
    fn record(&mut self, own: &str) -> Option<Record> {
        let api_server_id = self.apiservers_id(own);
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
            api_server_id,
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
