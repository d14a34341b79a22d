//! One serving thread for each core, each with its own runtime, listeners and upstream connections. No work is stolen,
//! and shared state is only read.

use super::metrics::ConnectionMetrics;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use tokio::sync::{Mutex, watch};

use super::accept::ConnectionAcceptor;
use super::closing::becomes_true;
use super::listener::listen;
use crate::relay::service::RelayService;
use crate::relay::shared::Shared;
use crate::tls::serving::ServingTls;

/// What all serving threads get.
#[derive(Clone)]
pub struct WorkerContext {
    pub shared: Arc<Shared>,
    /// The current TLS configuration.
    pub tls: Arc<ArcSwap<ServingTls>>,
    /// Becomes true when connections are to end after their running requests.
    pub closing: watch::Receiver<bool>,
    /// Becomes true when connections are to be accepted.
    pub start_listening: watch::Receiver<bool>,
    /// Becomes true when no more connections are to be accepted.
    pub stop_listening: watch::Receiver<bool>,
    /// Becomes true when open connections are to be closed at once.
    pub cut: watch::Receiver<bool>,
    pub metrics: Arc<ConnectionMetrics>,
    /// Most clients at the same time, of all threads.
    pub max_clients: usize,
}

/// Starts a thread that serves `listeners` until `cut` is true.
pub fn start(
    index: usize,
    listeners: Vec<TcpListener>,
    context: WorkerContext,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::Builder::new()
        .name(format!("serve-{index}"))
        .spawn(move || {
            let WorkerContext {
                shared,
                tls,
                closing,
                mut start_listening,
                stop_listening,
                mut cut,
                max_clients,
                metrics,
            } = context;
            runtime.block_on(async move {
                let unread = shared.limits.unread.clone();
                let snapshot = shared.published.snapshot.clone();
                let service = Arc::new(RelayService::new(shared));
                let accepting = Arc::new(ConnectionAcceptor {
                    service,
                    tls,
                    metrics,
                    max_clients,
                    snapshot,
                    unread,
                    closing,
                    stop_listening,
                    handshake_lock: Mutex::default(),
                });
                tokio::spawn(async move {
                    becomes_true(&mut start_listening).await;
                    for listener in listeners {
                        match begin(listener) {
                            Ok(listener) => drop(tokio::spawn(accepting.clone().run(listener))),
                            Err(error) => tracing::error!(%error, "listener cannot be used"),
                        }
                    }
                });
                becomes_true(&mut cut).await;
            });
        })
}

fn begin(socket: TcpListener) -> io::Result<tokio::net::TcpListener> {
    listen(&socket)?;
    tokio::net::TcpListener::from_std(socket)
}
