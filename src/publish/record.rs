//! Keeps this server's keys in etcd: the record, the live key, and the entry for native peers.
//!
//! Keys are rewritten with new etcd leases instead of kept alive, because kine does not support keep-alive. The live
//! key disappears with its lease or when the proxy stops. The record stays for `rerouting.absentServerGrace` after its
//! last write.
//!
//! The publisher writes nothing while a live key with our ID has another address. If two servers overwrote each other's
//! record, all proxies would conclude that no server serves what one of them lacks. Instead the publisher writes a
//! claim key: then the other proxy reports the conflict too, and all proxies know that a served set is unknown.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus::IntGauge;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::etcd_key::{EtcdKey, EtcdSession};
use super::renewal;
use crate::cluster::catalog::OwnServer;
use crate::cluster::codec::{PeerEndpoint, encode_endpoints};
use crate::cluster::connector::Connector;
use crate::cluster::json;
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::cluster::record::{LiveKey, Record, pack};
use crate::cluster::source::SourceError;
use crate::cluster::state::canonical;
use crate::kube::gvr::{Custom, ServedSet};
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
    /// Initialized or not.
    pub state: Arc<LocalState>,
    /// What the apiserver lists.
    pub view: watch::Receiver<LocalView>,
    /// What of that every server has; `None` until known.
    pub custom: watch::Receiver<Option<Arc<Custom>>>,
    /// 1 while another live proxy claims our ID.
    pub duplicate: IntGauge,
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

/// How often the record is rewritten within its lifetime, so that it outlives its server by nearly that time.
const REWRITES_PER_LIFE: u32 = 10;

/// Our keys under one server ID.
struct Keeping {
    id: Arc<str>,
    live: EtcdKey,
    record: EtcdKey,
    endpoint: EtcdKey,
    claim: EtcdKey,
    /// The last written record, the time of the write, and the revision since which its contents are unchanged.
    written: Option<Record>,
    at: Option<Instant>,
    since: Option<i64>,
    /// The live key is ours.
    lives: bool,
}

/// Why writing failed.
#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("another live proxy, at {0}, claims this server ID; identity.serverID must differ")]
    Duplicate(SocketAddr),
    #[error("own live key was written by somebody else at the same time")]
    Raced,
    #[error("cannot be put into JSON")]
    Json(#[from] serde_json::Error),
}

impl Keeping {
    /// `before`: the keys under a former ID, whose knowledge is carried over.
    fn after(before: Option<&Self>, id: Arc<str>, keys: &EtcdKeys, endpoint: SocketAddr) -> Self {
        let key = |topic| EtcdKey::new(format!("{}{id}", keys.of(topic)));
        Self {
            live: key(Topic::Live),
            record: key(Topic::Servers),
            endpoint: key(Topic::PeerEndpoints),
            claim: EtcdKey::new(format!("{}{}", keys.claims(&id), canonical(endpoint))),
            written: before.and_then(|before| before.written.clone()),
            at: None,
            since: None,
            lives: false,
            id,
        }
    }

    fn is_due(&self, record: &Record, ttl: Duration) -> bool {
        self.written.as_ref() != Some(record)
            || self
                .at
                .is_none_or(|at| at.elapsed() > ttl / REWRITES_PER_LIFE)
    }
}

impl Publisher {
    /// Writes until the proxy stops, then removes the live key.
    pub async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        let mut keeping: Option<Keeping> = None;
        let mut former: Option<Keeping> = None;
        let mut session = None;
        let mut failures = 0;
        let throttle = LogThrottle::default();
        let mut changes = self.state.changes();
        loop {
            let id = self.own.id.borrow_and_update().clone();
            if keeping.as_ref().map(|keeping| &keeping.id) != id.as_ref() {
                let before = keeping.take();
                keeping = match former.take_if(|former| Some(&former.id) == id.as_ref()) {
                    None => id.map(|id| {
                        Keeping::after(before.as_ref(), id, &self.keys, self.own.endpoint)
                    }),
                    back => back,
                };
                former = before.filter(|before| before.lives).or(former);
            }
            // A stop does not cancel this: an unfinished write could overtake the removal of the live key.
            let mut written = Ok(());
            // Keep the former ID's live key until the new one exists, so that peers always see one.
            for keeping in former.iter_mut().chain(&mut keeping) {
                written = self.write(&mut session, keeping).await;
            }
            let pause = match written {
                Ok(()) => {
                    self.leave(&mut session, former.take(), true).await;
                    failures = 0;
                    if let Some(after) = throttle.recovered(&()) {
                        tracing::info!(?after, "own keys are written to etcd again");
                    }
                    renewal::pause(self.live_ttl)
                }
                Err(error) => {
                    session = None;
                    failures += 1;
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
                Ok(()) = self.custom.changed() => false,
                Ok(()) = self.own.id.changed() => false,
                _ = &mut stop => true,
            };
            if stopped {
                break;
            }
            // Limits the rate of writes to etcd.
            rest.await;
        }
        for keeping in [former, keeping] {
            self.leave(&mut session, keeping, false).await;
        }
    }

    async fn open(&mut self) -> Result<EtcdSession, SourceError> {
        EtcdSession::open(&mut self.connector, renewal::request_limit(self.live_ttl)).await
    }

    async fn write(
        &mut self,
        session: &mut Option<EtcdSession>,
        keeping: &mut Keeping,
    ) -> Result<(), PublishError> {
        let session = match session {
            Some(session) => session,
            None => session.insert(self.open().await?),
        };
        let owner = self.check_owner(session, keeping).await;
        let duplicate = match &owner {
            Err(PublishError::Duplicate(_)) => true,
            _ => self.is_claimed(session, keeping).await?,
        };
        self.duplicate.set(duplicate.into());
        owner?;
        let believed = keeping.record.revision();
        if keeping.record.read(session).await?.is_none() || keeping.record.revision() != believed {
            // Deleted or overwritten.
            (keeping.at, keeping.since) = (None, None);
        }
        self.write_all(session, keeping).await
    }

    async fn write_all(
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
        // The record first, then the live key. An apiserver that rejects requests is not a target.
        let initialized = self.state.is_initialized() && !self.state.turns_away();
        let live = LiveKey {
            endpoint: self.own.endpoint,
            initialized,
            record_revision: keeping.since.filter(|_| known),
        };
        let value = serde_json::to_vec(&live)?;
        if !keeping.live.put(session, value, self.live_ttl).await? {
            return Err(PublishError::Raced);
        }
        keeping.lives = true;
        self.write_endpoint(session, keeping, initialized).await
    }

    /// For native peers. An entry that is not the one we wrote is the apiserver's own.
    async fn write_endpoint(
        &self,
        session: &mut EtcdSession,
        keeping: &mut Keeping,
        initialized: bool,
    ) -> Result<(), PublishError> {
        if initialized {
            let endpoint = PeerEndpoint {
                server: keeping.id.to_string(),
                address: canonical(self.own.endpoint),
            };
            let value = encode_endpoints(&endpoint, 1);
            let key = &mut keeping.endpoint;
            let written = key.put(session, value.clone(), self.live_ttl).await?;
            if !written && key.revision() == 0 {
                // It had expired.
                key.put(session, value, self.live_ttl).await?;
            }
        } else {
            keeping.endpoint.delete(session).await?;
        }
        Ok(())
    }

    /// Whether another server has our ID.
    async fn check_owner(
        &self,
        session: &mut EtcdSession,
        keeping: &mut Keeping,
    ) -> Result<(), PublishError> {
        let there = keeping.live.read(session).await?;
        // A value that cannot be decoded does not count.
        let live: Option<LiveKey> = there.and_then(|kv| json::read(kv.value()).ok());
        let own = canonical(self.own.endpoint);
        match live.map(|live| canonical(live.endpoint)) {
            Some(other) if other != own => {
                keeping.lives = false;
                keeping.claim.read(session).await?;
                let value = serde_json::to_vec(&own)?;
                keeping.claim.put(session, value, self.live_ttl).await?;
                Err(PublishError::Duplicate(other))
            }
            _ => Ok(()),
        }
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
        let session = match session {
            Some(session) => session,
            None => session.insert(self.open().await?),
        };
        self.check_owner(session, keeping).await?;
        keeping.live.delete(session).await?;
        keeping.endpoint.delete(session).await?;
        // The record stays for the whole grace period from now on. A renamed server has a newer record at its address.
        if !renamed && let Some(record) = self.record().or(keeping.written.clone()) {
            let value = serde_json::to_vec(&record)?;
            keeping.record.put(session, value, self.record_ttl).await?;
        }
        Ok(())
    }

    /// The record to write; `None` while the served set or its custom resources are unknown.
    fn record(&mut self) -> Option<Record> {
        let view = self.view.borrow_and_update();
        let custom = self.custom.borrow_and_update();
        let (served, custom) = view.served.as_ref().zip(custom.as_ref())?;
        let versions = view.versions.as_ref();
        Some(Record {
            endpoint: self.own.endpoint,
            binary_version: versions.map(|versions| versions.binary.clone()),
            compatibility_version: versions
                .and_then(|versions| versions.compatibility)
                .map(|it| it.to_string()),
            history_start: Some(self.state.history_start()).filter(|start| *start != i64::MAX),
            resources: pack(&own_resources(served, custom)),
        })
    }
}

fn own_resources(served: &ServedSet, custom: &Custom) -> ServedSet {
    served
        .iter()
        .filter(|gvr| !custom.contains(gvr.borrow()))
        .cloned()
        .collect()
}
