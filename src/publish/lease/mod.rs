//! Keeps this server's identity Lease (KEP-1965) through the local apiserver, and collects those of dead proxies.
//!
//! Only Leases that a proxy keeps ([`object::is_published`]) are ever changed or deleted. Any other is an apiserver's own,
//! also one that was ours until an apiserver of our ID took it over: it is left alone, whatever `publishLease` says.
//! The Lease that a proxy before us left is taken over once; if somebody takes it from us it stays theirs until it is
//! gone. Whatever is deleted is deleted by UID and resourceVersion, so that no renewal is lost. Writes the API and
//! [`LeaseMetrics`]; reads what others of this process know, as they know it at the time.

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

use self::work::Work;
use crate::admin::lease::LeaseMetrics;
use crate::client::Client;
use crate::local::discovery::LocalView;
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

/// Whatever makes things change: they are looked at at most so often.
const REST: Duration = Duration::from_millis(20);
/// A stop waits no longer than this for the apiserver.
const FAREWELL: Duration = Duration::from_secs(3);

impl LeaseKeeper {
    /// Keeps the Lease until told to stop, then deletes it.
    pub async fn run(self, mut stop: oneshot::Receiver<()>) {
        let mut changes = self.state.changes();
        let mut work = Work::new(self);
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

/// What `passing` says; `None` at a stop. It is not cut short at once: a creation could come after the deletion.
async fn until<T>(stop: &mut oneshot::Receiver<()>, passing: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(passing);
    tokio::select! {
        outcome = &mut passing => Some(outcome),
        _ = stop => {
            // Whether it ended or not, what there is now is read before anything is deleted.
            let _ = tokio::time::timeout(FAREWELL / 3, passing).await;
            None
        }
    }
}
