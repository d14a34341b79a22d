//! Keeps this server's keys in etcd: what is known of it, that it lives, and how native peers find it.
//!
//! Keys are rewritten with fresh etcd leases instead of kept alive: kine knows no keep-alive. The live key goes away
//! with its lease or at a stop; the record stays for `rerouting.absentServerGrace` after its last writing.
//!
//! Nothing is written while the live key says that somebody at another address has our ID: two servers that overwrite
//! each other's record would make everybody believe that nobody serves what one of them does not. A proxy in that
//! place says so in a key of its own: the other one reports it too, and everybody knows that not all is known.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus::IntGauge;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::rhythm;
use super::slot::{Session, Slot};
use crate::cluster::catalog::Own;
use crate::cluster::codec::{PeerEndpoint, encode_endpoints};
use crate::cluster::connector::Connector;
use crate::cluster::json;
use crate::cluster::keys::{Keys, Topic};
use crate::cluster::record::{Live, Record, pack};
use crate::cluster::source::SourceError;
use crate::cluster::state::canonical;
use crate::cluster::watch::jittered;
use crate::local::discovery::LocalView;
use crate::local::state::LocalState;
use crate::routing::table::{Custom, ServedSet};
use crate::trouble::{Trouble, chain};

/// Everything the publisher works with.
pub struct Publisher {
    /// Where to write.
    pub connector: Connector,
    /// Below which prefix.
    pub keys: Keys,
    /// Who we are.
    pub own: Own,
    /// Initialized or not.
    pub state: Arc<LocalState>,
    /// What the apiserver lists.
    pub view: watch::Receiver<LocalView>,
    /// What of that every server has; `None` until known.
    pub custom: watch::Receiver<Option<Arc<Custom>>>,
    /// 1 while another live proxy claims our ID.
    pub duplicate: IntGauge,
    /// Life of the live key without rewriting.
    pub live_ttl: Duration,
    /// Life of the record without rewriting.
    pub record_ttl: Duration,
}

const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
/// A stop waits no longer than this for etcd.
const FAREWELL: Duration = Duration::from_secs(3);
/// Members of etcd that are tried in it.
const FAREWELLS: usize = 3;

/// The record is rewritten this often within its life, so that it outlives its server by nearly all of it.
const REWRITES_PER_LIFE: u32 = 10;

/// Our keys under one server ID.
struct Keeping {
    id: Arc<str>,
    live: Slot,
    record: Slot,
    endpoint: Slot,
    claim: Slot,
    /// The record as it was written last, when, and the revision since which it is there as it is.
    written: Option<Record>,
    at: Option<Instant>,
    since: Option<i64>,
    /// The live key is ours.
    lives: bool,
}

/// Why nothing could be written.
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
    /// `before`: what was known under another ID is known of this one.
    fn after(before: Option<&Self>, id: Arc<str>, keys: &Keys, endpoint: SocketAddr) -> Self {
        let slot = |topic| Slot::new(format!("{}{id}", keys.of(topic)));
        Self {
            live: slot(Topic::Live),
            record: slot(Topic::Servers),
            endpoint: slot(Topic::PeerEndpoints),
            claim: Slot::new(format!("{}{}", keys.claims(&id), canonical(endpoint))),
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
    /// Writes until told to stop, then removes the live key.
    pub async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        let mut keeping: Option<Keeping> = None;
        let mut former: Option<Keeping> = None;
        let mut session = None;
        let mut failures = 0;
        let trouble = Trouble::default();
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
            // Not cut short by a stop: a write that is still under way could overtake the removal of the live key.
            let mut written = Ok(());
            // We live under the ID before until we live under this one: nobody is to take us for dead in between.
            for keeping in former.iter_mut().chain(&mut keeping) {
                written = self.write(&mut session, keeping).await;
            }
            let pause = match written {
                Ok(()) => {
                    self.leave(&mut session, former.take(), true).await;
                    failures = 0;
                    if let Some(after) = trouble.is_over(&()) {
                        tracing::info!(?after, "own keys are written to etcd again");
                    }
                    rhythm::pause(self.live_ttl)
                }
                Err(error) => {
                    session = None;
                    failures += 1;
                    if trouble.is_news((), chain(&error)) {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(error, "own keys cannot be written to etcd, trying on");
                    }
                    jittered(rhythm::pause_after(failures, self.live_ttl))
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
            // Whatever makes things change: etcd is written to at most so often.
            rest.await;
        }
        for keeping in [former, keeping] {
            self.leave(&mut session, keeping, false).await;
        }
    }

    async fn open(&mut self) -> Result<Session, SourceError> {
        Session::open(&mut self.connector, rhythm::request_limit(self.live_ttl)).await
    }

    async fn write(
        &mut self,
        session: &mut Option<Session>,
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
        session: &mut Session,
        keeping: &mut Keeping,
    ) -> Result<(), PublishError> {
        let now = self.record();
        let known = now.is_some();
        // What was known stays written while it cannot be known better: a server that vanishes now still served it.
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
        // First what is known, then that it lives.
        let initialized = self.state.is_initialized();
        let live = Live {
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
        session: &mut Session,
        keeping: &mut Keeping,
        initialized: bool,
    ) -> Result<(), PublishError> {
        if initialized {
            let endpoint = PeerEndpoint {
                server: keeping.id.to_string(),
                address: canonical(self.own.endpoint),
            };
            let value = encode_endpoints(&endpoint, 1);
            let slot = &mut keeping.endpoint;
            let written = slot.put(session, value.clone(), self.live_ttl).await?;
            if !written && slot.revision() == 0 {
                // It had expired.
                slot.put(session, value, self.live_ttl).await?;
            }
        } else {
            keeping.endpoint.delete(session).await?;
        }
        Ok(())
    }

    /// Whether somebody else lives under our ID.
    async fn check_owner(
        &self,
        session: &mut Session,
        keeping: &mut Keeping,
    ) -> Result<(), PublishError> {
        let there = keeping.live.read(session).await?;
        // What cannot be decoded is nobody's.
        let live: Option<Live> = there.and_then(|kv| json::read(kv.value()).ok());
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

    /// Whether another proxy says that it may not use our ID because we do.
    async fn is_claimed(
        &self,
        session: &mut Session,
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

    /// Removes what says that we live under an ID. `renamed`: we live under another one now.
    async fn leave(
        &mut self,
        session: &mut Option<Session>,
        keeping: Option<Keeping>,
        renamed: bool,
    ) {
        let Some(mut keeping) = keeping.filter(|keeping| keeping.lives) else {
            return;
        };
        let farewell = async {
            let mut last = Ok(());
            for _ in 0..FAREWELLS {
                last = self.say_farewell(session, &mut keeping, renamed).await;
                if !matches!(last, Err(PublishError::Source(_))) {
                    break;
                }
                *session = None;
            }
            last
        };
        match tokio::time::timeout(FAREWELL, farewell).await {
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

    async fn say_farewell(
        &mut self,
        session: &mut Option<Session>,
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
        // What was served stays known for the whole grace from now on; of a renamed server the newer record at its
        // address says it.
        if !renamed && let Some(record) = self.record().or(keeping.written.clone()) {
            let value = serde_json::to_vec(&record)?;
            keeping.record.put(session, value, self.record_ttl).await?;
        }
        Ok(())
    }

    /// What can be said now; nothing while it is not known what the apiserver serves, or what of that is custom.
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
