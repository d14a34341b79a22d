//! Keeps this server's identity Lease (KEP-1965) through the local apiserver, and collects those of dead proxies.
//!
//! Only Leases that a proxy keeps ([`object::is_published`]) are ever changed or deleted. All others belong to
//! apiservers and are left alone, whatever `publishLease` is; so is a Lease that an apiserver with our ID took over
//! from us. The keeper takes over the Lease of an earlier proxy once. If another process takes it from us, it keeps it
//! until the Lease is gone. Updates and deletions carry the resourceVersion that was read, so that no renewal is lost.
//! Writes the API and metrics of [`IdentityMetrics`].

pub mod object;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use serde_json::Value;
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use self::object::Contents;
use super::metrics::{IdentityMetrics, OTHER, PROXY};
use crate::client::{Client, ClientError};
use crate::cluster::leases::NamedLease;
use crate::config::{IdentityConfig, is_subdomain};
use crate::kube::version::Versions;
use crate::local::discovery::LocalView;
use crate::local::state::LocalState;
use crate::log_throttle::{LogThrottle, chain, log_rarely, warn_new};
use crate::retry::Backoff;

/// From 200 to 400 ms after the first failure, from 10 to 20 s at most.
const BACKOFF: Backoff = Backoff::between(Duration::from_millis(400), Duration::from_secs(20));
/// How often one write is tried while others change the same Lease.
const MOST_TRIES: usize = 6;
/// How long one request is tried.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time limit for the apiserver when the proxy stops.
const FAREWELL: Duration = Duration::from_secs(3);

/// The keeper's inputs and outputs.
pub struct LeaseKeeper {
    /// For the local apiserver.
    pub client: Client,
    /// Our Lease is in the first of its namespaces.
    pub config: IdentityConfig,
    pub hostname: String,
    /// Where peers reach us.
    pub endpoint: SocketAddr,
    /// The name of the Lease to keep, if there is one. May change.
    pub id: watch::Receiver<Option<Arc<str>>>,
    /// Versions, for the annotations.
    pub view: watch::Receiver<LocalView>,
    /// The keeper sends no requests while the apiserver is not initialized.
    pub state: Arc<LocalState>,
    /// All identity Leases.
    pub leases: watch::Receiver<Option<Arc<Vec<Arc<NamedLease>>>>>,
    pub metrics: IdentityMetrics,
}

/// Why a Lease could not be read, written or deleted.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{method} {path} answered {status}")]
    Status {
        method: Method,
        path: String,
        status: StatusCode,
    },
    #[error("the answer cannot be read")]
    Parse(#[from] serde_json::Error),
    #[error("{0} changes all the time")]
    Restless(String),
}

/// The answer to a request.
enum Answer {
    /// The Lease as read or written, or what is said of its deletion.
    Done(Value),
    /// The Lease has changed since, or exists already.
    Conflict,
    /// There is no such Lease.
    Gone,
}

/// A running keeper.
struct Running {
    keeper: LeaseKeeper,
    /// Distinguishes this process from earlier ones.
    process: String,
    /// The Lease to keep.
    target: Option<Arc<str>>,
    /// Who keeps it, as the last write found.
    owner: Option<&'static str>,
    /// This process has kept it before: if another takes it over, it is left alone.
    held: bool,
    /// IDs for which this process may have written a Lease.
    ours: BTreeSet<Arc<str>>,
    /// See [`expired`].
    seen: HashMap<(String, i64), Instant>,
    failures: u32,
    throttle: LogThrottle,
}

impl LeaseKeeper {
    /// Keeps the Lease until the proxy stops, then deletes it.
    pub async fn run(self, mut stop: watch::Receiver<()>) {
        let mut changes = self.state.changes();
        let mut running = Running {
            keeper: self,
            process: format!("{:032x}", rand::random::<u128>()),
            target: None,
            owner: None,
            held: false,
            ours: BTreeSet::new(),
            seen: HashMap::new(),
            failures: 0,
            throttle: LogThrottle::default(),
        };
        loop {
            let versions = running.keeper.view.borrow_and_update().versions.clone();
            let is_initialized = running.keeper.state.is_initialized();
            let pass = async {
                match is_initialized {
                    true => running.pass(versions.as_ref()).await,
                    false => running.keeper.config.renew_interval,
                }
            };
            let Some(pause) = until(&mut stop, pass).await else {
                break;
            };
            let LeaseKeeper { id, view, .. } = &mut running.keeper;
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Ok(()) = id.changed() => {}
                Ok(_) = view.wait_for(|view| view.versions != versions) => {}
                Ok(()) = changes.changed(), if !is_initialized => {}
                _ = stop.changed() => break,
            }
        }
        let left = timeout(FAREWELL, running.leave(None)).await;
        let left = left.unwrap_or(Err(ClientError::Timeout(FAREWELL).into()));
        if let Err(error) = left {
            let error = chain(&error);
            tracing::warn!(error, "the Lease could not be deleted: it expires");
        }
    }
}

/// The result of `passing`; `None` at a stop. A stop does not cancel it at once: its creation could overtake the
/// deletion.
async fn until<T>(stop: &mut watch::Receiver<()>, passing: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(passing);
    tokio::select! {
        outcome = &mut passing => Some(outcome),
        _ = stop.changed() => {
            // Finished or not, the current Leases are read before any deletion.
            let _ = timeout(FAREWELL / 3, passing).await;
            None
        }
    }
}

impl Running {
    /// Writes the own Lease, deletes former ones, collects expired ones. Returns the pause until the next pass.
    async fn pass(&mut self, versions: Option<&Versions>) -> Duration {
        let target = self.keeper.id.borrow_and_update().clone();
        if target != self.target {
            (self.owner, self.held) = (None, false);
            self.keeper.metrics.is_of(target.as_deref());
            self.target = target.clone();
        }
        let removed = self.leave(target.as_deref()).await;
        let kept = match &target {
            Some(id) => self.keep(id, versions).await,
            None => Ok(()),
        };
        if let (Some(id), Err(_)) = (&target, &kept) {
            self.keeper.metrics.failed(id);
        }
        self.keeper.metrics.kept_by(self.owner);
        self.collect().await;
        match removed.and(kept) {
            Ok(()) => {
                self.failures = 0;
                if let Some(after) = self.throttle.recovered(&()) {
                    tracing::info!(?after, "the Lease is renewed again");
                }
                self.keeper.config.renew_interval
            }
            Err(error) => {
                self.failures += 1;
                let text = "the Lease cannot be renewed, retrying";
                warn_new!(self.throttle, (), &error, "{text}");
                BACKOFF.random_pause(self.failures)
            }
        }
    }

    /// Writes the own Lease, unless another process keeps it.
    async fn keep(&mut self, id: &Arc<str>, versions: Option<&Versions>) -> Result<(), LeaseError> {
        let collection = collection(namespace(&self.keeper.config));
        let (path, holder) = (format!("{collection}/{id}"), self.holder(id));
        for _ in 0..MOST_TRIES {
            let found = match ask(&mut self.keeper.client, Method::GET, &path, None).await? {
                Answer::Done(lease) => Some(lease),
                Answer::Conflict | Answer::Gone => None,
            };
            let ours = found.as_ref().is_some_and(|lease| is_held(lease, &holder));
            // The Lease that an earlier process has left is taken over.
            let may_renew = |lease| ours || (!self.held && object::is_published(lease));
            if !found.as_ref().is_none_or(may_renew) {
                if self.owner.replace(OTHER) != Some(OTHER) {
                    tracing::warn!(
                        id = &**id,
                        "another process holds the Lease of this name, most likely the apiserver: it is left alone"
                    );
                }
                return Ok(());
            }
            let now = OffsetDateTime::now_utc();
            let (method, path) = match found {
                Some(_) => (Method::PUT, &path),
                None => (Method::POST, &collection),
            };
            let contents = Contents {
                id,
                holder: &holder,
                hostname: &self.keeper.hostname,
                endpoint: self.keeper.endpoint,
                versions,
                duration: self.keeper.config.lease_duration,
            };
            let lease = contents.renew(found, now);
            self.ours.insert(id.clone());
            let client = &mut self.keeper.client;
            if let Answer::Done(_) = ask(client, method, path, Some(&lease)).await? {
                if !ours {
                    tracing::info!(id = &**id, "Lease acquired");
                    self.keeper.metrics.acquired(id, now);
                }
                self.keeper.metrics.renewed(id, now);
                (self.owner, self.held) = (Some(PROXY), true);
                return Ok(());
            }
        }
        Err(LeaseError::Restless(id.to_string()))
    }

    /// Deletes all Leases of this process except that of `keep`.
    async fn leave(&mut self, keep: Option<&str>) -> Result<(), LeaseError> {
        let mut outcome = Ok(());
        let mut others = self.ours.clone();
        others.retain(|id| keep != Some(&**id));
        for id in others {
            match self.remove(&id).await {
                Ok(()) => drop(self.ours.remove(&id)),
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    /// Deletes the Lease of this name if this process holds it.
    async fn remove(&mut self, id: &str) -> Result<(), LeaseError> {
        let (path, holder) = (path(&self.keeper.config, id), self.holder(id));
        let is_ours = |lease: &Value| is_held(lease, &holder);
        if remove(&mut self.keeper.client, &path, is_ours).await? {
            tracing::info!(id, "Lease deleted");
        }
        Ok(())
    }

    /// Deletes Leases of other proxies that have not changed for their duration. Times in Leases do not count, so that
    /// clocks are never compared. Failures are retried at the next renewal.
    async fn collect(&mut self) {
        let leases = self.keeper.leases.borrow_and_update().clone();
        // A Lease that another proxy took over is collected like any other.
        let own = self.target.clone();
        let own = own.filter(|_| self.owner == Some(PROXY));
        let own = own.as_deref().map(|id| (0, id));
        let leases = leases.as_deref().map_or(&[][..], Vec::as_slice);
        for lease in expired(&mut self.seen, leases, Instant::now()) {
            let (namespace, name) = (lease.namespace, &*lease.name);
            if own == Some((namespace, name)) {
                continue;
            }
            let Some(namespace) = self.keeper.config.lease_namespaces.get(namespace) else {
                continue;
            };
            let path = format!("{}/{name}", collection(namespace));
            let options = object::deletion(&lease.value.uid, &lease.revision.to_string());
            let client = &mut self.keeper.client;
            match ask(client, Method::DELETE, &path, Some(&options)).await {
                Ok(Answer::Done(_)) => tracing::info!(path, "expired Lease deleted"),
                // It was renewed or deleted meanwhile.
                Ok(Answer::Conflict | Answer::Gone) => {}
                Err(error) => {
                    let cause = chain(&error);
                    log_rarely!(warn, error = cause, "an expired Lease could not be deleted");
                    // One refused deletion must not prevent the others.
                    if matches!(error, LeaseError::Client(_)) {
                        return;
                    }
                }
            }
        }
    }

    fn holder(&self, id: &str) -> String {
        format!("{id}_{}", self.process)
    }
}

/// Whether the proxy with this identity was the last to renew the Lease.
fn is_held(lease: &Value, holder: &str) -> bool {
    object::is_published(lease) && object::holder(lease) == Some(holder)
}

/// Deletes the Lease that the proxy with this server ID and endpoint has left, if there is one; [`LeaseKeeper`] deletes its own.
pub async fn remove_left(
    client: &mut Client,
    config: &IdentityConfig,
    (id, endpoint): (&str, SocketAddr),
) -> Result<bool, LeaseError> {
    let is_left = |lease: &Value| object::is_published(lease) && object::is_of(lease, endpoint);
    // Others name no Lease.
    Ok(is_subdomain(id) && remove(client, &path(config, id), is_left).await?)
}

/// Deletes the Lease at `path` if it `is_ours`; whether it did.
async fn remove(
    client: &mut Client,
    path: &str,
    is_ours: impl Fn(&Value) -> bool,
) -> Result<bool, LeaseError> {
    for _ in 0..MOST_TRIES {
        let Answer::Done(lease) = ask(client, Method::GET, path, None).await? else {
            return Ok(false);
        };
        if !is_ours(&lease) {
            return Ok(false);
        }
        let version = |key: &str| lease["metadata"][key].as_str().unwrap_or_default();
        let options = object::deletion(version("uid"), version("resourceVersion"));
        if !matches!(
            ask(client, Method::DELETE, path, Some(&options)).await?,
            Answer::Conflict
        ) {
            return Ok(true);
        }
    }
    Err(LeaseError::Restless(path.to_owned()))
}

async fn ask(
    client: &mut Client,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<Answer, LeaseError> {
    let deadline = Instant::now() + PATIENCE;
    let body = body.map(|value| Bytes::from(value.to_string()));
    let answer = client.call(method.clone(), path, HeaderMap::new(), body, deadline);
    let answer = answer.await?;
    match answer.status {
        StatusCode::CONFLICT => Ok(Answer::Conflict),
        // Else the namespace is missing.
        StatusCode::NOT_FOUND if method != Method::POST => Ok(Answer::Gone),
        status if status.is_success() => Ok(Answer::Done(serde_json::from_slice(&answer.body)?)),
        status => Err(LeaseError::Status {
            method,
            path: path.to_owned(),
            status,
        }),
    }
}

fn path(config: &IdentityConfig, id: &str) -> String {
    format!("{}/{id}", collection(namespace(config)))
}

/// Of our Lease.
fn namespace(config: &IdentityConfig) -> &str {
    config.lease_namespaces.first().map_or("", String::as_str)
}

fn collection(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
}

/// Leases that a proxy published, and nobody has changed for their duration, by this process's clock. `seen`: when each
/// state of a Lease was seen first, by its UID and revision.
fn expired(
    seen: &mut HashMap<(String, i64), Instant>,
    leases: &[Arc<NamedLease>],
    now: Instant,
) -> Vec<Arc<NamedLease>> {
    let before = std::mem::take(seen);
    let published = leases.iter().filter(|lease| lease.value.published);
    let named = published.filter(|lease| is_subdomain(&lease.name));
    let is_expired = |lease: &&Arc<NamedLease>| {
        let state = (lease.value.uid.clone(), lease.revision);
        let since = before.get(&state).copied().unwrap_or(now);
        seen.insert(state, since);
        let duration = lease.value.duration;
        duration.is_some_and(|duration| now - since > duration)
    };
    named.filter(is_expired).cloned().collect()
}
