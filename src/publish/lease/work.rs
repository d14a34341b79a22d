//! The passes of the keeper: write the own Lease, delete former ones, collect expired ones.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::LeaseKeeper;
use super::api::{Answer, LeaseApi, LeaseError};
use super::expiry::LeaseTracker;
use super::object::{self, Contents};
use crate::client::ClientError;
use crate::kube::version::Versions;
use crate::log_throttle::{LogRateLimit, LogThrottle, chain};
use crate::publish::metrics::LeaseOwner;
use crate::retry::Backoff;

/// From 200 to 400 ms after the first failure, from 10 to 20 s at most.
pub(super) const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(400),
    longest: Duration::from_secs(20),
    jitter: 0.5,
};
/// Requests of one write while others change the same Lease.
const MOST_STEPS: usize = 6;

/// The Lease that is named by the server ID, as this process knows it.
enum KnownLease {
    Nothing,
    /// Another process keeps it.
    Foreign,
    /// This process keeps it; as last written.
    Ours(Value),
}

/// The next request of a write.
enum WriteStep {
    Create,
    Read,
    Renew(Value),
}

/// The state of a running keeper.
pub(super) struct LeaseWorker {
    pub(super) keeper: LeaseKeeper,
    /// Distinguishes this process from earlier ones.
    process: String,
    /// The last wanted server ID.
    target: Option<Arc<str>>,
    versions: Option<Versions>,
    known: KnownLease,
    /// This process has kept the target's Lease before: if another takes it over, it is left alone.
    held: bool,
    /// IDs for which this process may have written a Lease.
    ours: BTreeSet<Arc<str>>,
    tracker: LeaseTracker,
    due: Instant,
    failures: u32,
    throttle: LogThrottle,
}

/// As kube-apiserver distinguishes its processes: RFC 9562, version 4.
fn random_uuid() -> String {
    let random: u128 = rand::random();
    let version = random & !(0xf << 76) | 4 << 76;
    let uuid = version & !(0b11 << 62) | 0b10 << 62;
    let hex = format!("{uuid:032x}");
    let parts = [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ];
    parts.join("-")
}

impl LeaseWorker {
    /// Does what is due. Returns the pause until the next pass.
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
            (self.known, self.held) = (KnownLease::Nothing, false);
            self.keeper.metrics.is_of(target.as_deref());
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
                if let Some(after) = self.throttle.recovered(&()) {
                    tracing::info!(?after, "the own Lease is kept again");
                }
                self.keeper.renew_interval
            }
            Err(error) => {
                self.failures += 1;
                if self.throttle.should_log((), chain(&error)) {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "the own Lease cannot be kept, trying on");
                }
                self.report_refused(&error);
                BACKOFF.random_pause(self.failures)
            }
        };
        self.due = Instant::now() + pause;
        pause
    }

    /// The ID that needs a Lease.
    fn target(&mut self) -> Option<Arc<str>> {
        let id = self.keeper.id.borrow_and_update().clone();
        id.filter(|_| *self.keeper.wanted.borrow_and_update())
    }

    pub(super) fn new(keeper: LeaseKeeper) -> Self {
        Self {
            keeper,
            process: random_uuid(),
            target: None,
            versions: None,
            known: KnownLease::Nothing,
            held: false,
            ours: BTreeSet::new(),
            tracker: LeaseTracker::default(),
            due: Instant::now(),
            failures: 0,
            throttle: LogThrottle::default(),
        }
    }

    fn api(&mut self) -> LeaseApi<'_> {
        LeaseApi(&mut self.keeper.client)
    }

    /// Writes the own Lease and updates metrics.
    async fn keep(&mut self, id: &Arc<str>) -> Result<(), LeaseError> {
        let written = self.write(id).await;
        let metrics = &self.keeper.metrics;
        match &written {
            Ok(Some(at)) => {
                metrics.kept_by(Some(LeaseOwner::Proxy));
                metrics.renewed(id, *at);
            }
            Ok(None) => metrics.kept_by(Some(LeaseOwner::Other)),
            Err(_) => metrics.failed(id),
        }
        written.map(|_| ())
    }

    /// Writes the own Lease. Returns its renew time, or `None` if another process keeps it.
    async fn write(&mut self, id: &Arc<str>) -> Result<Option<OffsetDateTime>, LeaseError> {
        let namespace = self.keeper.namespace.clone();
        let (mut step, log_owner) = match std::mem::replace(&mut self.known, KnownLease::Nothing) {
            KnownLease::Nothing => (WriteStep::Create, true),
            KnownLease::Foreign => (WriteStep::Read, false),
            KnownLease::Ours(lease) => (WriteStep::Renew(lease), true),
        };
        for _ in 0..MOST_STEPS {
            let now = OffsetDateTime::now_utc();
            let (written, acquired) = match step {
                WriteStep::Read => match self.api().get(&namespace, id).await? {
                    Answer::Done(lease) if self.may_renew(id, &lease) => {
                        step = WriteStep::Renew(lease);
                        continue;
                    }
                    Answer::Done(lease) => {
                        if log_owner {
                            let holder = object::holder(&lease);
                            tracing::warn!(
                                id = &**id,
                                holder,
                                "the Lease of our name is kept by somebody else, most likely the \
                                 apiserver: it is left alone"
                            );
                        }
                        self.known = KnownLease::Foreign;
                        return Ok(None);
                    }
                    missing => (missing, true),
                },
                WriteStep::Create => {
                    let lease = self.contents(id, |contents| contents.create(now));
                    self.ours.insert(id.clone());
                    (self.api().create(&namespace, &lease).await?, true)
                }
                WriteStep::Renew(found) => {
                    let acquired = object::holder(&found) != Some(&*self.holder(id));
                    let lease = self.contents(id, |contents| contents.renew(found, now));
                    self.ours.insert(id.clone());
                    let written = self.api().update(&namespace, id, &lease).await?;
                    (written, acquired)
                }
            };
            step = match written {
                Answer::Done(lease) => {
                    if acquired {
                        tracing::info!(id = &**id, "own Lease acquired");
                        self.keeper.metrics.acquired(id, now);
                    }
                    self.held = true;
                    self.known = KnownLease::Ours(lease);
                    return Ok(Some(now));
                }
                Answer::Conflict => WriteStep::Read,
                Answer::Gone => WriteStep::Create,
            };
        }
        Err(LeaseError::Restless(id.to_string()))
    }

    /// Whether the Lease is this process's, or was left by an earlier one.
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

    /// Deletes all Leases of this process except that of `keep`.
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
            let Answer::Done(lease) = self.api().get(&namespace, id).await? else {
                return Ok(());
            };
            if !object::is_published(&lease) || object::holder(&lease) != Some(&holder) {
                return Ok(());
            }
            let Some((uid, revision)) = object::version(&lease) else {
                return Err(LeaseError::Versionless(id.to_owned()));
            };
            let written = self.api().delete(&namespace, id, uid, revision).await?;
            if !matches!(written, Answer::Conflict) {
                tracing::info!(id, "own Lease deleted");
                return Ok(());
            }
        }
        Err(LeaseError::Restless(id.to_owned()))
    }

    /// Deletes expired Leases of other proxies. Failures are retried at the next renewal.
    async fn collect(&mut self) {
        let leases = self.keeper.leases.borrow_and_update().clone();
        // A Lease that another proxy took over is collected like any other.
        let ours = self
            .target
            .as_deref()
            .filter(|_| matches!(self.known, KnownLease::Ours(_)));
        let own = ours.map(|id| (self.keeper.namespace.as_str(), id));
        for lease in self.tracker.expired(&leases, own, Instant::now()) {
            let (namespace, name) = (&lease.namespace, &lease.name);
            let revision = lease.revision.to_string();
            let mut api = LeaseApi(&mut self.keeper.client);
            match api.delete(namespace, name, &lease.uid, &revision).await {
                Ok(Answer::Done(_)) => {
                    tracing::info!(namespace, name, "expired Lease deleted")
                }
                // It was renewed or deleted meanwhile.
                Ok(Answer::Conflict | Answer::Gone) => {}
                Err(error) => {
                    static LOG_RATE: LogRateLimit = LogRateLimit::new();
                    if let Some(left_out) = LOG_RATE.admit() {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(error, left_out, "an expired Lease could not be deleted");
                    }
                    // One refused deletion must not prevent the others.
                    if matches!(error, LeaseError::Client(_)) {
                        self.report_refused(&error);
                        return;
                    }
                }
            }
        }
    }

    /// A refused connection means that the apiserver is gone.
    fn report_refused(&self, error: &LeaseError) {
        if matches!(error, LeaseError::Client(ClientError::Refused)) {
            self.keeper.state.refused();
        }
    }
}
