//! One pass of the keeper after the other: write our Lease, delete what was ours, collect.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use serde_json::Value;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::LeaseKeeper;
use super::api::{Api, LeaseError, Written};
use super::expiry::Tracker;
use super::object::{self, Contents};
use crate::admin::lease::LeaseOwner;
use crate::client::ClientError;
use crate::local::documents::Versions;
use crate::trouble::{Pace, Trouble, chain};

/// Shortest pause after a failure; doubles with each.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Requests that one writing may take while somebody else changes the same Lease.
const MOST_STEPS: usize = 6;

/// What is known of the Lease with our name.
enum Known {
    Nothing,
    /// Somebody else keeps it.
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

/// A keeper at work.
pub(super) struct Work {
    pub(super) keeper: LeaseKeeper,
    /// Tells this process from the one before.
    process: uuid::Uuid,
    /// The ID that was wanted last.
    target: Option<Arc<str>>,
    versions: Option<Versions>,
    known: Known,
    /// The Lease of the target was ours: whoever keeps it instead may have it.
    held: bool,
    /// IDs under which there may be a Lease of ours.
    ours: BTreeSet<Arc<str>>,
    tracker: Tracker,
    due: Instant,
    failures: u32,
    trouble: Trouble,
}

impl Work {
    /// Does what is due; says when to come again.
    pub(super) async fn pass(&mut self) -> Duration {
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
            (self.known, self.held) = (Known::Nothing, false);
        }
        self.target = target.clone();
        self.versions = versions;
        let removed = self.leave(target.as_deref()).await;
        let kept = match &target {
            Some(id) => self.keep(id).await,
            None => {
                self.keeper.metrics.kept_by(None);
                Ok(())
            }
        };
        self.collect().await;
        let pause = match removed.and(kept) {
            Ok(()) => {
                self.failures = 0;
                if let Some(after) = self.trouble.is_over(&()) {
                    tracing::info!(?after, "the own Lease is kept again");
                }
                self.keeper.renew_interval
            }
            Err(error) => {
                self.failures += 1;
                if self.trouble.is_news((), chain(&error)) {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "the own Lease cannot be kept, trying on");
                }
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

    pub(super) fn new(keeper: LeaseKeeper) -> Self {
        Self {
            keeper,
            process: uuid::Uuid::new_v4(),
            target: None,
            versions: None,
            known: Known::Nothing,
            held: false,
            ours: BTreeSet::new(),
            tracker: Tracker::default(),
            due: Instant::now(),
            failures: 0,
            trouble: Trouble::default(),
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
            Ok(Some(at)) => {
                metrics.kept_by(Some(LeaseOwner::Proxy));
                metrics.renewed(*at);
            }
            Ok(None) => metrics.kept_by(Some(LeaseOwner::Other)),
            Err(_) => metrics.failures.inc(),
        }
        written.map(|_| ())
    }

    /// Writes our Lease; the time that it now says, or `None` if somebody else keeps it.
    async fn write(&mut self, id: &Arc<str>) -> Result<Option<OffsetDateTime>, LeaseError> {
        let namespace = self.keeper.namespace.clone();
        let (mut step, news) = match std::mem::replace(&mut self.known, Known::Nothing) {
            Known::Nothing => (Step::Create, true),
            Known::Foreign => (Step::Read, false),
            Known::Ours(lease) => (Step::Renew(lease), true),
        };
        for _ in 0..MOST_STEPS {
            let now = OffsetDateTime::now_utc();
            let (written, acquired) = match step {
                Step::Read => {
                    step = match self.api().get(&namespace, id).await? {
                        None => Step::Create,
                        Some(lease) if self.may_renew(id, &lease) => Step::Renew(lease),
                        Some(lease) => {
                            if news {
                                let holder = object::holder(&lease);
                                tracing::warn!(
                                    id = &**id,
                                    holder,
                                    "the Lease of our name is kept by somebody else, most likely the \
                                     apiserver: it is left alone"
                                );
                            }
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
                    self.held = true;
                    self.known = Known::Ours(lease);
                    return Ok(Some(now));
                }
                Written::Conflict => Step::Read,
                Written::Gone => Step::Create,
            };
        }
        Err(LeaseError::Restless(id.to_string()))
    }

    /// Ours, or left by a proxy before us.
    fn may_renew(&self, id: &str, lease: &Value) -> bool {
        let ours = || object::holder(lease) == Some(&*self.holder(id));
        object::is_published(lease) && (!self.held || ours())
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
    pub(super) async fn leave(&mut self, keep: Option<&str>) -> Result<(), LeaseError> {
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
        // One that another proxy took from us is collected like any other.
        let ours = self
            .target
            .as_deref()
            .filter(|_| matches!(self.known, Known::Ours(_)));
        let own = ours.map(|id| (self.keeper.namespace.as_str(), id));
        for lease in self.tracker.expired(&leases, own, Instant::now()) {
            let (namespace, name) = (&lease.namespace, &lease.name);
            let revision = lease.revision.to_string();
            let mut api = Api(&mut self.keeper.client);
            match api.delete(namespace, name, &lease.uid, &revision).await {
                Ok(Written::Done(_)) => tracing::info!(namespace, name, "expired Lease deleted"),
                // Renewed meanwhile, or somebody else was faster.
                Ok(Written::Conflict | Written::Gone) => {}
                Err(error) => {
                    static PACE: Pace = Pace::new();
                    if let Some(left_out) = PACE.admit() {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(error, left_out, "an expired Lease could not be deleted");
                    }
                    // One that is refused must not keep the others alive.
                    if matches!(error, LeaseError::Client(_)) {
                        self.heed(&error);
                        return;
                    }
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
pub(super) fn backoff(failures: u32, random: f64) -> Duration {
    let full = FIRST_PAUSE * 2_u32.pow(failures.saturating_sub(1).min(16));
    full.min(LONGEST_PAUSE).mul_f64(1.0 + random)
}
