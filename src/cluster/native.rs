//! Reads the discovery of kube-apiservers without a proxy, as native peers read each other's.
//!
//! Over mTLS with the proxy client certificate, as `system:apiserver` in `system:authenticated`, and in `system:masters`
//! where it is asked whether a CRD's name is a built-in resource's ([`crate::local::reader`]). Addresses come from
//! `peerserverleases` in etcd only, never from Lease objects, which API users can write.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle};

use super::native_peer::NativePeer;
use crate::client::{self, ClientMaker, MakerError};
use crate::config::Config;
use crate::kube::gvr::Custom;
use crate::local::reader::Reader;
use crate::log_throttle::{LogThrottle, chain};
use crate::retry::jittered;
use crate::tls::credentials::Current;

/// The user of native peers in requests to each other; its group is [`GROUP`].
pub const USER: &str = "system:apiserver";
/// In `system:masters` every path may be read.
const MASTERS: &str = "system:masters";
/// The group of [`USER`].
pub const GROUP: &str = "system:authenticated";
/// Longest wait for one document.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Wait for a proxy's other keys, which come on other watches than its `peerserverleases` entry.
pub(super) const SETTLE: Duration = Duration::from_millis(250);

/// Clients for native peers.
pub fn maker(config: &Config, credentials: Current) -> Result<ClientMaker, MakerError> {
    maker_for(config, credentials, GROUP)
}

/// Clients that may read everything.
pub fn maker_of_masters(config: &Config, credentials: Current) -> Result<ClientMaker, MakerError> {
    maker_for(config, credentials, MASTERS)
}

/// Clients that ask as [`USER`] in `group`.
fn maker_for(
    config: &Config,
    credentials: Current,
    group: &str,
) -> Result<ClientMaker, MakerError> {
    let names = &config.serving.request_headers;
    ClientMaker::new(
        &config.peer.server_name,
        credentials,
        |credentials| &credentials.peers,
        client::identity(names, USER, &[group])?,
        TIMEOUT,
    )
}

/// Reads the discovery of each of `peers` about once in `every`, until the sender of `peers` is dropped. `masters`: what
/// lists resources; `custom`: `None` until etcd was read.
pub async fn run(
    (maker, masters): (Arc<ClientMaker>, Arc<ClientMaker>),
    every: Duration,
    mut peers: watch::Receiver<BTreeMap<String, SocketAddr>>,
    custom: watch::Receiver<Option<Arc<Custom>>>,
    found: mpsc::Sender<(String, NativePeer)>,
) {
    let mut asking: BTreeMap<(String, SocketAddr), Asking> = BTreeMap::new();
    loop {
        let now = peers.borrow_and_update().clone();
        asking.retain(|(id, address), _| now.get(id) == Some(address));
        for (id, address) in now {
            asking.entry((id.clone(), address)).or_insert_with(|| {
                let reader = Reader::with_lister(maker.client(address), masters.client(address));
                let peer = (id, address);
                let task = tokio::spawn(ask(reader, every, peer, custom.clone(), found.clone()));
                Asking::new(&task)
            });
        }
        if peers.changed().await.is_err() {
            return;
        }
    }
}

/// Ends its task when it is dropped.
pub(super) struct Asking(AbortHandle);

impl Asking {
    pub(super) fn new(task: &JoinHandle<()>) -> Self {
        Self(task.abort_handle())
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn ask(
    mut reader: Reader,
    every: Duration,
    (id, address): (String, SocketAddr),
    mut custom: watch::Receiver<Option<Arc<Custom>>>,
    found: mpsc::Sender<(String, NativePeer)>,
) {
    let throttle = LogThrottle::default();
    tokio::time::sleep(SETTLE).await;
    if custom.wait_for(Option::is_some).await.is_err() {
        return;
    }
    tracing::info!(id, %address, "asking a native peer for its discovery");
    loop {
        let known = custom.borrow().clone().unwrap_or_default();
        let begun = Instant::now();
        match reader.read(&known).await {
            Ok((served, versions)) => {
                if let Some(after) = throttle.recovered(&()) {
                    tracing::info!(id, %address, ?after, "discovery of a native peer is read again");
                }
                let native = NativePeer {
                    address,
                    served: Arc::new(served),
                    binary_version: versions.binary,
                    version: versions.compatibility,
                    read: begun,
                    since: begun,
                };
                if found.send((id.clone(), native)).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                if throttle.should_log((), chain(&error)) {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(id, %address, error, "discovery of a native peer cannot be read, trying on");
                }
            }
        }
        tokio::time::sleep(jittered(every)).await;
    }
}
