//! Finds the server ID of the local apiserver, whether it keeps its own Lease, and whether that Lease has a new holder.
//!
//! Leases come from etcd. Until a Lease shows the ID, or the apiserver has been initialized for a short time without one,
//! there is no ID, and nothing is published. A generated ID is replaced by one that a Lease shows later.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::identity::{self, LeaseCandidate};
use super::lease::ObservedLease;
use super::metrics::IdentityMetrics;
use crate::cluster::catalog::NamedLease;
use crate::config::{IdentityConfig, PublishLease};
use crate::local::state::LocalState;

/// An apiserver publishes its Lease when it starts, sometimes shortly after it is ready.
const PATIENCE: Duration = Duration::from_secs(2);

/// The task: its inputs and outputs.
pub struct Identify {
    pub config: IdentityConfig,
    /// This host's name.
    pub host: String,
    /// Identity leases in etcd.
    pub leases: watch::Receiver<Option<Arc<Vec<NamedLease>>>>,
    /// Whether the apiserver is initialized; notified of a new holder.
    pub state: Arc<LocalState>,
    /// The ID, once it is found.
    pub id: watch::Sender<Option<Arc<str>>>,
    /// Whether the proxy keeps the Lease.
    pub wanted: watch::Sender<bool>,
    /// All identity leases, for the collection of those of dead proxies.
    pub observed: watch::Sender<Arc<Vec<ObservedLease>>>,
    pub metrics: IdentityMetrics,
}

impl Identify {
    /// Runs until the sender of `leases` is dropped.
    pub async fn run(mut self) {
        if let Some(configured) = self.id.borrow().as_deref() {
            self.metrics.identity(configured);
        }
        let mut initialized = None;
        let mut changes = self.state.changes();
        let mut holder: Option<(Arc<str>, String)> = None;
        loop {
            let leases = self.leases.borrow_and_update().clone();
            if self.state.is_initialized() {
                initialized.get_or_insert_with(Instant::now);
            }
            let patience = initialized.map(|since: Instant| since + PATIENCE);
            let waited = patience.is_some_and(|end| end <= Instant::now());
            if let Some(leases) = leases.as_deref().map(|leases| named(leases)) {
                self.decide(&leases, waited);
                self.look_at_holder(&leases, &mut holder);
                let observed = leases.iter().filter_map(|lease| self.observe(lease));
                self.observed.send_replace(Arc::new(observed.collect()));
            }
            let patience = async {
                match patience.filter(|_| !waited) {
                    Some(end) => tokio::time::sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.leases.changed() => if changed.is_err() { return },
                Ok(()) = changes.changed() => {}
                () = patience => {}
            }
        }
    }

    fn decide(&self, leases: &[&NamedLease], waited: bool) {
        let candidates: Vec<_> = leases.iter().copied().map(candidate).collect();
        let configured = self.config.server_id.as_deref();
        let found = configured.or_else(|| identity::found(&self.host, &candidates));
        self.id.send_if_modified(|id| {
            let new = match found {
                Some(found) if id.as_deref() != Some(found) => Arc::from(found),
                None if id.is_none() && waited => identity::own(),
                _ => return false,
            };
            self.metrics.identity(&new);
            tracing::info!(server_id = &*new, before = id.as_deref(), "server ID");
            *id = Some(new);
            true
        });
        let id = self.id.borrow().clone();
        let kept_by_server = |lease: &&NamedLease| {
            Some(lease.name.as_str()) == id.as_deref() && !lease.at.value.published
        };
        let wanted = match self.config.publish_lease {
            PublishLease::Never => false,
            PublishLease::Always => true,
            PublishLease::Auto => id.is_some() && !leases.iter().any(kept_by_server),
        };
        self.wanted
            .send_if_modified(|before| std::mem::replace(before, wanted) != wanted);
    }

    fn observe(&self, lease: &NamedLease) -> Option<ObservedLease> {
        let NamedLease { name, at, .. } = lease;
        let namespace = self.config.lease_namespaces.get(lease.namespace)?;
        Some(ObservedLease {
            namespace: namespace.clone(),
            name: name.clone(),
            revision: at.revision,
            uid: at.value.uid.clone(),
            duration: at.value.duration?,
            published: at.value.published,
        })
    }

    /// An apiserver writes a new holder each time it starts.
    fn look_at_holder(&self, leases: &[&NamedLease], known: &mut Option<(Arc<str>, String)>) {
        let Some(id) = self.id.borrow().clone() else {
            return;
        };
        let ours = leases
            .iter()
            .find(|lease| lease.name == *id && !lease.at.value.published);
        let Some(now) = ours.and_then(|lease| lease.at.value.holder.clone()) else {
            return;
        };
        let now = (id, now);
        let before = known.replace(now.clone());
        if before.is_some_and(|before| before != now) {
            tracing::info!("the apiserver's lease has a new holder");
            self.state.suspect();
        }
    }
}

/// Leases with names that the API allows.
fn named(leases: &[NamedLease]) -> Vec<&NamedLease> {
    let named = |lease: &&NamedLease| identity::can_name_a_lease(&lease.name);
    leases.iter().filter(named).collect()
}

fn candidate(lease: &NamedLease) -> LeaseCandidate<'_> {
    LeaseCandidate {
        name: &lease.name,
        hostname: lease.at.value.hostname.as_deref(),
        identity: lease.at.value.identity && !lease.at.value.published,
    }
}
