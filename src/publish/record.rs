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
use super::peer_entry::PeerEntry;
use super::renewal;
use super::server_ids::{Keeping, ServerIds};
use crate::cluster::catalog::OwnServer;
use crate::cluster::connector::Connector;
use crate::cluster::json;
use crate::cluster::keys::EtcdKeys;
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
    pub connector: Connector,
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
    /// The entry for native peers.
    pub entry: PeerEntry,
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

impl Publisher {
    /// Writes until the proxy stops, then removes the live key.
    pub async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        let mut ids = ServerIds::new(&self.keys, self.own.endpoint);
        let mut session = None;
        let mut failures = 0;
        let throttle = LogThrottle::default();
        let mut changes = self.state.changes();
        loop {
            let id = self.own.id.borrow_and_update().clone();
            ids.take(id, &self.keys, self.own.endpoint);
            self.own.apiserver_id.mark_unchanged();
            // A stop does not cancel this: an unfinished write could overtake the removal of the live key.
            let pause = match self.write_all(&mut session, &mut ids).await {
                Ok(()) => {
                    self.leave(&mut session, ids.former.take(), true).await;
                    failures = 0;
                    self.announcement.written(None);
                    if let Some(after) = throttle.recovered(&()) {
                        tracing::info!(?after, "own keys are written to etcd again");
                    }
                    renewal::pause(self.live_ttl)
                }
                Err(error) => {
                    session = None;
                    failures += 1;
                    self.announcement.written(Some(chain(&error)));
                    if throttle.should_log((), chain(&error)) {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(error, "own keys cannot be written to etcd, trying on");
                    }
                    jittered(renewal::pause_after(failures, self.live_ttl))
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
        self.leave_unnamed(&mut session, ids.unnamed).await;
        for keeping in [ids.former, ids.keeping] {
            self.leave(&mut session, keeping, false).await;
        }
    }

    async fn write_all(
        &mut self,
        session: &mut Option<EtcdSession>,
        ids: &mut ServerIds,
    ) -> Result<(), PublishError> {
        let mut written = Ok(());
        // Keep the former ID's live key until the new one exists, so that peers always see one.
        for keeping in ids.former.iter_mut().chain(&mut ids.keeping) {
            written = self.write(session, keeping).await;
        }
        match &ids.keeping {
            // Peers are to know that a server comes, before they know its name.
            None => {
                let session = self.session(session).await?;
                self.claim(session, &mut ids.unnamed).await
            }
            Some(_) => written,
        }
    }

    /// The open session, or a new one.
    async fn session<'s>(
        &mut self,
        session: &'s mut Option<EtcdSession>,
    ) -> Result<&'s mut EtcdSession, SourceError> {
        Ok(match session {
            Some(session) => session,
            None => {
                let limit = renewal::request_limit(self.live_ttl);
                session.insert(EtcdSession::open(&mut self.connector, limit).await?)
            }
        })
    }

    async fn write(
        &mut self,
        session: &mut Option<EtcdSession>,
        keeping: &mut Keeping,
    ) -> Result<(), PublishError> {
        let session = self.session(session).await?;
        // Before anything is published: a history from before means nothing to this etcd.
        if keeping.live.is_of_other_history(session).await? {
            self.state.void_history();
        }
        let believed = keeping.record.revision();
        let owner = self.check_owner(session, keeping).await;
        let duplicate = match &owner {
            Err(PublishError::Duplicate(_)) => true,
            _ => self.is_claimed(session, keeping).await?,
        };
        self.duplicate.set(duplicate.into());
        owner?;
        if keeping.record.read(session).await?.is_none() || keeping.record.revision() != believed {
            // Deleted or overwritten.
            (keeping.at, keeping.since) = (None, None);
        }
        self.write_keys(session, keeping).await
    }

    async fn write_keys(
        &mut self,
        session: &mut EtcdSession,
        keeping: &mut Keeping,
    ) -> Result<(), PublishError> {
        let now = self.record();
        let known = now.is_some();
        // Keep the last known contents until newer ones are known: a server that disappears now still served them.
        if let Some(record) = now.or_else(|| keeping.written.clone())
            && keeping.is_due(&record, self.record_ttl)
        {
            let started = Instant::now();
            let value = serde_json::to_vec(&record)?;
            if !keeping.record.put(session, value, self.record_ttl).await? {
                return Err(PublishError::Raced);
            }
            if keeping.written.as_ref() != Some(&record) || keeping.since.is_none() {
                keeping.since = Some(keeping.record.revision());
            }
            (keeping.written, keeping.at) = (Some(record), Some(started));
        }
        // The record first, then the live key. An apiserver that rejects requests is not a target, and one that may be frozen
        // is asked last.
        let apiserver = self.own.apiserver_id.borrow().clone();
        let another = apiserver.as_deref().filter(|id| *id != &*keeping.id);
        let live = LiveKey {
            endpoint: self.own.endpoint,
            initialized: self.state.accepts(),
            ready: self.state.is_ready() && self.state.serves(),
            api_server_id: another.map(str::to_owned),
            record_revision: keeping.since.filter(|_| known),
        };
        let value = serde_json::to_vec(&live)?;
        if !keeping.live.put(session, value, self.live_ttl).await? {
            return Err(PublishError::Raced);
        }
        keeping.lives = true;
        self.announcement.is_coming();
        if known {
            self.written.send_replace(Some(OwnKeys {
                record: keeping.record.revision(),
                live: keeping.live.revision(),
                claim: 0,
            }));
        }
        let apiserver = apiserver.filter(|_| self.state.serves());
        Ok(self.entry.keep(session, apiserver).await?)
    }

    /// Writes a claim in place of a live key.
    async fn claim(
        &self,
        session: &mut EtcdSession,
        claim: &mut EtcdKey,
    ) -> Result<(), PublishError> {
        claim.read(session).await?;
        let value = serde_json::to_vec(&canonical(self.own.endpoint))?;
        claim.put(session, value, self.live_ttl).await?;
        self.announcement.is_coming();
        Ok(())
    }

    /// Whether another server has our ID: then there is a claim in place of our keys.
    async fn check_owner(
        &self,
        session: &mut EtcdSession,
        keeping: &mut Keeping,
    ) -> Result<(), PublishError> {
        let Some(taken) = self.other_owner(session, keeping).await? else {
            return Ok(());
        };
        keeping.lives = false;
        self.claim(session, &mut keeping.claim).await?;
        // Before etcd was read, requests for resources are refused.
        if self.custom.borrow().is_some() {
            self.written.send_replace(Some(OwnKeys {
                claim: keeping.claim.revision(),
                ..OwnKeys::default()
            }));
        }
        Err(taken)
    }

    /// Who else has our ID. A value that cannot be decoded does not count.
    async fn other_owner(
        &self,
        session: &mut EtcdSession,
        keeping: &mut Keeping,
    ) -> Result<Option<PublishError>, SourceError> {
        let own = canonical(self.own.endpoint);
        let there = keeping.live.read(session).await?;
        let live: Option<LiveKey> = there.and_then(|kv| json::read(kv.value()).ok());
        if let Some(live) = live {
            let other = Some(canonical(live.endpoint)).filter(|other| *other != own);
            return Ok(other.map(PublishError::Duplicate));
        }
        if self.configured {
            return Ok(None);
        }
        let there = keeping.record.read(session).await?;
        let record: Option<Record> = there.and_then(|kv| json::read(kv.value()).ok());
        let other = record.map(|record| canonical(record.endpoint));
        let other = other.filter(|other| *other != own);
        Ok(other.map(PublishError::OthersRecord))
    }

    /// Whether another proxy claims our ID.
    async fn is_claimed(
        &self,
        session: &mut EtcdSession,
        keeping: &Keeping,
    ) -> Result<bool, PublishError> {
        let own = canonical(self.own.endpoint);
        let claims = session.names(&self.keys.claims(&keeping.id)).await?;
        let addresses = claims.iter().filter_map(|name| name.parse().ok());
        let other = addresses
            .into_iter()
            .find(|other: &SocketAddr| *other != own);
        if let Some(other) = other
            && self.duplicate.get() == 0
        {
            tracing::error!(
                server_id = &*keeping.id, %other,
                "another live proxy claims this server ID; identity.serverID must differ"
            );
        }
        Ok(other.is_some())
    }

    /// Removes the keys that show us alive under an ID. `renamed`: we have another ID now.
    async fn leave(
        &mut self,
        session: &mut Option<EtcdSession>,
        keeping: Option<Keeping>,
        renamed: bool,
    ) {
        let Some(mut keeping) = keeping.filter(|keeping| keeping.lives) else {
            return;
        };
        let removal = async {
            let mut last = Ok(());
            for _ in 0..REMOVAL_TRIES {
                last = self.remove_keys(session, &mut keeping, renamed).await;
                if !matches!(last, Err(PublishError::Source(_))) {
                    break;
                }
                *session = None;
            }
            last
        };
        match tokio::time::timeout(REMOVAL_TIMEOUT, removal).await {
            Ok(Ok(())) => {
                tracing::info!(server_id = &*keeping.id, "own live key removed from etcd")
            }
            Ok(Err(error)) => {
                let cause = &error as &dyn std::error::Error;
                tracing::warn!(
                    error = cause,
                    "own live key could not be removed, it expires by itself"
                );
            }
            Err(_) => {
                tracing::warn!("own live key could not be removed in time, it expires by itself")
            }
        }
    }

    async fn remove_keys(
        &mut self,
        session: &mut Option<EtcdSession>,
        keeping: &mut Keeping,
        renamed: bool,
    ) -> Result<(), PublishError> {
        let session = self.session(session).await?;
        self.check_owner(session, keeping).await?;
        keeping.live.delete(session).await?;
        if !renamed {
            self.entry.keep(session, None).await?;
        }
        // The record stays for the whole grace period from now on. A renamed server has a newer record at its address.
        if !renamed && let Some(record) = self.record().or(keeping.written.clone()) {
            let value = serde_json::to_vec(&record)?;
            keeping.record.put(session, value, self.record_ttl).await?;
        }
        Ok(())
    }

    /// Removes the claim of a proxy without ID, if it was written.
    async fn leave_unnamed(&mut self, session: &mut Option<EtcdSession>, mut claim: EtcdKey) {
        if let Some(session) = session {
            let deletion = claim.delete(session);
            // If it fails, the claim expires by itself.
            let _ = tokio::time::timeout(REMOVAL_TIMEOUT, deletion).await;
        }
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
