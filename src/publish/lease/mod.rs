//! Keeps this server's identity Lease (KEP-1965) through the local apiserver, and collects those of dead proxies.
//!
//! Only Leases with our `managed-by` label are ever changed or deleted: one without it is an apiserver's own, and then
//! there is nothing to do. Whatever is deleted is deleted by UID and resourceVersion, so that no renewal is lost. Writes
//! the API and [`LeaseMetrics`]; reads what others of this process know, as they know it at the time.

mod api;
pub mod expiry;
pub mod object;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use serde_json::Value;
use time::OffsetDateTime;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use self::api::{Api, LeaseError, Written};
use self::expiry::Tracker;
use self::object::Contents;
use crate::admin::metrics::LeaseMetrics;
use crate::client::{Client, ClientError};
use crate::local::discovery::LocalView;
use crate::local::documents::Versions;
use crate::local::state::LocalState;

pub use self::expiry::ObservedLease;

/// Everything that keeping the Lease needs.
pub struct LeaseKeeper {
    /// For the local apiserver.
    pub client: Client,
    /// Where our Lease is.
    pub namespace: String,
    /// Time between two renewals.
    pub renew_interval: Duration,
    /// How long others believe in us without one.
    pub lease_duration: Duration,
    /// This host's name.
    pub hostname: String,
    /// Where peers reach us.
    pub endpoint: SocketAddr,
    /// Our server ID; `None` while it is not found yet. May change.
    pub id: watch::Receiver<Option<Arc<str>>>,
    /// Whether there should be a Lease of ours.
    pub wanted: watch::Receiver<bool>,
    /// Versions, for the annotations.
    pub view: watch::Receiver<LocalView>,
    /// Nothing is asked of an apiserver that is not initialized.
    pub state: Arc<LocalState>,
    /// All identity Leases.
    pub leases: watch::Receiver<Arc<Vec<ObservedLease>>>,
    /// What is counted.
    pub metrics: LeaseMetrics,
}

/// Shortest pause after a failure; doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Whatever makes things change: they are looked at at most so often.
const REST: Duration = Duration::from_millis(20);
/// A stop waits no longer than this for the apiserver.
const FAREWELL: Duration = Duration::from_secs(3);
/// Requests that one writing may take while somebody else changes the same Lease.
const MOST_STEPS: usize = 6;

impl LeaseKeeper {
    /// Keeps the Lease until told to stop, then deletes it.
    pub async fn run(self, mut stop: oneshot::Receiver<()>) {
        let mut changes = self.state.changes();
        let mut work = Work::new(self);
        loop {
            // A stop may cut a request short: what became of it is read again before anything is deleted.
            let pause = tokio::select! {
                pause = work.pass() => pause,
                _ = &mut stop => break,
            };
            let rest = tokio::time::sleep(REST);
            let keeper = &mut work.keeper;
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Ok(()) = keeper.id.changed() => {}
                Ok(()) = keeper.wanted.changed() => {}
                Ok(()) = keeper.view.changed() => {}
                Ok(()) = changes.changed() => {}
                _ = &mut stop => break,
            }
            rest.await;
        }
        match tokio::time::timeout(FAREWELL, work.leave(None)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let cause = &error as &dyn std::error::Error;
                tracing::warn!(error = cause, "own Lease could not be deleted, it expires");
            }
            Err(_) => tracing::warn!("own Lease could not be deleted in time, it expires"),
        }
    }
}

/// What is known of the Lease with our name.
enum Known {
    Nothing,
    /// It is the apiserver's own.
    Foreign,
    /// Ours, as it was written last.
    Ours(Value),
}

/// The next request of a writing.
enum Step {
    Create,
    Read,
    Renew(Value),
}

struct Work {
    keeper: LeaseKeeper,
    /// Tells this process from the one before.
    process: uuid::Uuid,
    /// The ID that was wanted last.
    target: Option<Arc<str>>,
    versions: Option<Versions>,
    known: Known,
    /// IDs under which there may be a Lease of ours.
    ours: BTreeSet<Arc<str>>,
    tracker: Tracker,
    due: Instant,
    failures: u32,
}

impl Work {
    /// Does what is due; says when to come again.
    async fn pass(&mut self) -> Duration {
        let target = self.target();
        let versions = self.keeper.view.borrow_and_update().versions.clone();
        let changed = target != self.target || versions != self.versions;
        if !self.keeper.state.is_initialized() {
            return self.keeper.renew_interval;
        }
        let left = self.due.saturating_duration_since(Instant::now());
        if !changed && !left.is_zero() {
            return left;
        }
        if target != self.target {
            self.known = Known::Nothing;
        }
        self.target = target.clone();
        self.versions = versions;
        let removed = self.leave(target.as_deref()).await;
        let kept = match &target {
            Some(id) => self.keep(id).await,
            None => Ok(()),
        };
        self.collect().await;
        let pause = match removed.and(kept) {
            Ok(()) => {
                self.failures = 0;
                self.keeper.renew_interval
            }
            Err(error) => {
                self.failures += 1;
                let cause = &error as &dyn std::error::Error;
                tracing::warn!(
                    error = cause,
                    failures = self.failures,
                    "the own Lease cannot be kept"
                );
                self.heed(&error);
                backoff(self.failures, rand::thread_rng().r#gen())
            }
        };
        self.due = Instant::now() + pause;
        pause
    }

    /// The ID that there should be a Lease for.
    fn target(&mut self) -> Option<Arc<str>> {
        let id = self.keeper.id.borrow_and_update().clone();
        id.filter(|_| *self.keeper.wanted.borrow_and_update())
    }

    fn new(keeper: LeaseKeeper) -> Self {
        Self {
            keeper,
            process: uuid::Uuid::new_v4(),
            target: None,
            versions: None,
            known: Known::Nothing,
            ours: BTreeSet::new(),
            tracker: Tracker::default(),
            due: Instant::now(),
            failures: 0,
        }
    }

    fn api(&mut self) -> Api<'_> {
        Api(&mut self.keeper.client)
    }

    /// Writes our Lease, and counts.
    async fn keep(&mut self, id: &Arc<str>) -> Result<(), LeaseError> {
        let written = self.write(id).await;
        let metrics = &self.keeper.metrics;
        match &written {
            Ok(Some(at)) => metrics.renewed(*at),
            Ok(None) => {}
            Err(_) => metrics.failures.inc(),
        }
        written.map(|_| ())
    }

    /// Writes our Lease; the time that it now says, or `None` if it is the apiserver's.
    async fn write(&mut self, id: &Arc<str>) -> Result<Option<OffsetDateTime>, LeaseError> {
        let namespace = self.keeper.namespace.clone();
        let mut step = match std::mem::replace(&mut self.known, Known::Nothing) {
            Known::Nothing => Step::Create,
            Known::Foreign => Step::Read,
            Known::Ours(lease) => Step::Renew(lease),
        };
        for _ in 0..MOST_STEPS {
            let now = OffsetDateTime::now_utc();
            let (written, acquired) = match step {
                Step::Read => {
                    step = match self.api().get(&namespace, id).await? {
                        None => Step::Create,
                        Some(lease) if object::is_published(&lease) => Step::Renew(lease),
                        Some(_) => {
                            self.known = Known::Foreign;
                            return Ok(None);
                        }
                    };
                    continue;
                }
                Step::Create => {
                    let lease = self.contents(id, |contents| contents.create(now));
                    self.ours.insert(id.clone());
                    (self.api().create(&namespace, &lease).await?, true)
                }
                Step::Renew(found) => {
                    let acquired = object::holder(&found) != Some(&*self.holder(id));
                    let lease = self.contents(id, |contents| contents.renew(found, now));
                    self.ours.insert(id.clone());
                    let written = self.api().update(&namespace, id, &lease).await?;
                    (written, acquired)
                }
            };
            step = match written {
                Written::Done(lease) => {
                    if acquired {
                        tracing::info!(id = &**id, "own Lease acquired");
                        self.keeper.metrics.acquired(now);
                    }
                    self.known = Known::Ours(lease);
                    return Ok(Some(now));
                }
                Written::Conflict => Step::Read,
                Written::Gone => Step::Create,
            };
        }
        Err(LeaseError::Restless(id.to_string()))
    }

    fn holder(&self, id: &str) -> String {
        format!("{id}_{}", self.process)
    }

    fn contents(&self, id: &str, make: impl FnOnce(Contents<'_>) -> Value) -> Value {
        make(Contents {
            id,
            holder: &self.holder(id),
            hostname: &self.keeper.hostname,
            endpoint: self.keeper.endpoint,
            versions: self.versions.as_ref(),
            duration: self.keeper.lease_duration,
        })
    }

    /// Deletes every Lease of ours but that of `keep`.
    async fn leave(&mut self, keep: Option<&str>) -> Result<(), LeaseError> {
        let leaving: Vec<_> = self
            .ours
            .iter()
            .filter(|id| keep != Some(&***id))
            .cloned()
            .collect();
        let mut outcome = Ok(());
        for id in leaving {
            match self.remove(&id).await {
                Ok(()) => {
                    self.ours.remove(&id);
                }
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    /// Deletes the Lease of this name if this process holds it.
    async fn remove(&mut self, id: &str) -> Result<(), LeaseError> {
        let namespace = self.keeper.namespace.clone();
        let holder = self.holder(id);
        for _ in 0..MOST_STEPS {
            let Some(lease) = self.api().get(&namespace, id).await? else {
                return Ok(());
            };
            if !object::is_published(&lease) || object::holder(&lease) != Some(&holder) {
                return Ok(());
            }
            let Some((uid, revision)) = object::version(&lease) else {
                return Err(LeaseError::Versionless(id.to_owned()));
            };
            let written = self.api().delete(&namespace, id, uid, revision).await?;
            if !matches!(written, Written::Conflict) {
                tracing::info!(id, "own Lease deleted");
                return Ok(());
            }
        }
        Err(LeaseError::Restless(id.to_owned()))
    }

    /// Deletes expired Leases of other proxies. What fails now is tried at the next renewal.
    async fn collect(&mut self) {
        let leases = self.keeper.leases.borrow_and_update().clone();
        let own = self
            .target
            .as_deref()
            .map(|id| (self.keeper.namespace.as_str(), id));
        for lease in self.tracker.expired(&leases, own, Instant::now()) {
            let (namespace, name) = (&lease.namespace, &lease.name);
            let revision = lease.revision.to_string();
            let mut api = Api(&mut self.keeper.client);
            match api.delete(namespace, name, &lease.uid, &revision).await {
                Ok(Written::Done(_)) => tracing::info!(namespace, name, "expired Lease deleted"),
                // Renewed meanwhile, or somebody else was faster.
                Ok(Written::Conflict | Written::Gone) => {}
                Err(error) => {
                    let cause = &error as &dyn std::error::Error;
                    tracing::warn!(error = cause, "an expired Lease could not be deleted");
                    self.heed(&error);
                    return;
                }
            }
        }
    }

    /// A refused connection says that the apiserver is gone.
    fn heed(&self, error: &LeaseError) {
        if matches!(error, LeaseError::Client(ClientError::Refused)) {
            self.keeper.state.refused();
        }
    }
}

/// Once to twice of a pause that doubles with each failure, so that many proxies do not come back at once.
fn backoff(failures: u32, random: f64) -> Duration {
    let full = FIRST_PAUSE * 2_u32.pow(failures.saturating_sub(1).min(16));
    full.min(LONGEST_PAUSE).mul_f64(1.0 + random)
}
