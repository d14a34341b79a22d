//! Keeps this server's identity Lease (KEP-1965) through the local apiserver, and collects those of dead proxies.
//!
//! Only Leases that a proxy keeps ([`object::is_published`]) are ever changed or deleted. All others belong to
//! apiservers and are left alone, whatever `publishLease` is; so is a Lease that an apiserver with our ID took over
//! from us. The keeper takes over the Lease of an earlier proxy once. If another process takes it from us, it keeps it
//! until the Lease is gone. Deletions carry UID and resourceVersion, so that no renewal is lost. Writes the API and
//! [`LeaseMetrics`].

mod api;
pub mod expiry;
pub mod object;
mod work;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use self::work::LeaseWorker;
use crate::client::Client;
use crate::local::discovery::LocalView;
use crate::local::state::LocalState;
use crate::publish::metrics::LeaseMetrics;

pub use self::expiry::ObservedLease;

/// The keeper's inputs and outputs.
pub struct LeaseKeeper {
    /// For the local apiserver.
    pub client: Client,
    /// Where our Lease is.
    pub namespace: String,
    /// Time between two renewals.
    pub renew_interval: Duration,
    /// How long the Lease is valid without a renewal.
    pub lease_duration: Duration,
    pub hostname: String,
    /// Where peers reach us.
    pub endpoint: SocketAddr,
    /// The Lease's name; `None` while unknown. May change.
    pub id: watch::Receiver<Option<Arc<str>>>,
    /// Whether to keep a Lease.
    pub wanted: watch::Receiver<bool>,
    /// Versions, for the annotations.
    pub view: watch::Receiver<LocalView>,
    /// The keeper sends no requests while the apiserver is not initialized.
    pub state: Arc<LocalState>,
    /// All identity Leases.
    pub leases: watch::Receiver<Arc<Vec<ObservedLease>>>,
    pub metrics: LeaseMetrics,
}

/// Shortest pause between two passes.
const REST: Duration = Duration::from_millis(20);
/// Time limit for the apiserver when the proxy stops.
const FAREWELL: Duration = Duration::from_secs(3);

impl LeaseKeeper {
    /// Keeps the Lease until the proxy stops, then deletes it.
    pub async fn run(self, mut stop: oneshot::Receiver<()>) {
        let mut changes = self.state.changes();
        let mut work = LeaseWorker::new(self);
        loop {
            let Some(pause) = until(&mut stop, work.pass()).await else {
                break;
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

/// The result of `passing`; `None` at a stop. A stop does not cancel it at once: its creation could overtake the
/// deletion.
async fn until<T>(stop: &mut oneshot::Receiver<()>, passing: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(passing);
    tokio::select! {
        outcome = &mut passing => Some(outcome),
        _ = stop => {
            // Finished or not, the current Leases are read before any deletion.
            let _ = tokio::time::timeout(FAREWELL / 3, passing).await;
            None
        }
    }
}
