//! Asks kube-apiservers that have no proxy before them for their discovery, as native peers ask each other.
//!
//! Over mTLS with the proxy client certificate, as `system:apiserver` in `system:authenticated`, at addresses that only
//! etcd told: never those of Lease objects, which API users can write.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::state::Native;
use super::watch::jittered;
use crate::client::{self, ClientMaker, MakerError};
use crate::config::Config;
use crate::local::reader::Reader;
use crate::routing::table::Custom;
use crate::tls::credentials::Current;
use crate::trouble::{Trouble, chain};

/// User, and with [`GROUP`] its group, under which native peers ask each other.
pub const USER: &str = "system:apiserver";
/// The group of [`USER`].
pub const GROUP: &str = "system:authenticated";
/// Longest wait for one document.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How much later than its entry a proxy's other keys may be seen: etcd tells of each prefix by itself.
const SETTLE: Duration = Duration::from_millis(250);

/// Clients for native peers.
pub fn maker(config: &Config, credentials: Current) -> Result<ClientMaker, MakerError> {
    let names = &config.serving.request_headers;
    ClientMaker::new(
        &config.peer.server_name,
        credentials,
        |credentials| &credentials.peers,
        client::identity(names, USER, &[GROUP])?,
        TIMEOUT,
    )
}

/// Follows `peers` until nobody tells of them any more; asks each of them about once in `every`.
pub async fn run(
    maker: Arc<ClientMaker>,
    every: Duration,
    mut peers: watch::Receiver<BTreeMap<String, SocketAddr>>,
    found: mpsc::Sender<(String, Native)>,
) {
    let mut asking: BTreeMap<(String, SocketAddr), Asking> = BTreeMap::new();
    loop {
        let now = peers.borrow_and_update().clone();
        asking.retain(|(id, address), _| now.get(id) == Some(address));
        for (id, address) in now {
            asking.entry((id.clone(), address)).or_insert_with(|| {
                let reader = Reader::new(maker.client(address));
                let task = tokio::spawn(ask(reader, every, id, address, found.clone()));
                Asking(task.abort_handle())
            });
        }
        if peers.changed().await.is_err() {
            return;
        }
    }
}

/// A task that ends when nobody holds this.
struct Asking(AbortHandle);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn ask(
    mut reader: Reader,
    every: Duration,
    id: String,
    address: SocketAddr,
    found: mpsc::Sender<(String, Native)>,
) {
    let trouble = Trouble::default();
    tokio::time::sleep(SETTLE).await;
    tracing::info!(id, %address, "asking a native peer for its discovery");
    loop {
        match reader.read(&Custom::default()).await {
            Ok((served, versions)) => {
                if let Some(after) = trouble.is_over(&()) {
                    tracing::info!(id, %address, ?after, "discovery of a native peer is read again");
                }
                let native = Native {
                    address,
                    served: Arc::new(served),
                    binary_version: versions.binary,
                    version: versions.compatibility,
                    read: Instant::now(),
                };
                if found.send((id.clone(), native)).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                if trouble.is_news((), chain(&error)) {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(id, %address, error, "discovery of a native peer cannot be read, trying on");
                }
            }
        }
        tokio::time::sleep(jittered(every)).await;
    }
}
