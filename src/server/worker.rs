//! One serving thread for each core, each with its own runtime, listener and upstream connections. No work is stolen,
//! and shared state is only read.

use super::metrics::ConnectionMetrics;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::{Mutex, mpsc, watch};

use super::accept::ConnectionAcceptor;
use super::closing::becomes_true;
use crate::relay::service::RelayService;
use crate::relay::shared::Shared;

const BACKLOG: i32 = 1024;

/// Binds `count` listeners to one address. Port 0 becomes the same free port for all.
pub fn bind(address: SocketAddr, count: usize) -> io::Result<Vec<TcpListener>> {
    let first = listener(address)?;
    let address = first.local_addr()?;
    std::iter::once(Ok(first))
        .chain((1..count).map(|_| listener(address)))
        .collect()
}

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// What all serving threads get.
#[derive(Clone)]
pub struct WorkerContext {
    pub shared: Arc<Shared>,
    /// The current TLS configuration.
    pub tls: Arc<ArcSwap<ServerConfig>>,
    /// Becomes true when connections are to end after their running requests.
    pub closing: watch::Receiver<bool>,
    /// Held by every connection and by the serving threads.
    pub alive: mpsc::Sender<()>,
    /// Becomes true when open connections are to be closed at once.
    pub cut: watch::Receiver<bool>,
    pub metrics: Arc<ConnectionMetrics>,
    /// Most clients at the same time, of all threads.
    pub max_clients: usize,
}

/// Starts a thread that serves `listener` until `cut` is true.
pub fn start(
    index: usize,
    listener: TcpListener,
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
                alive,
                mut cut,
                max_clients,
                metrics,
            } = context;
            runtime.block_on(async move {
                let listener = match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => listener,
                    Err(error) => {
                        tracing::error!(%error, "listener cannot be used");
                        return;
                    }
                };
                let unread = shared.unread.clone();
                let snapshot = shared.published.snapshot.clone();
                let service = Arc::new(RelayService::new(shared));
                let accepting = ConnectionAcceptor {
                    service,
                    tls,
                    metrics,
                    max_clients,
                    snapshot,
                    unread,
                    closing,
                    alive,
                    handshake_lock: Mutex::default(),
                };
                tokio::spawn(Arc::new(accepting).run(listener));
                becomes_true(&mut cut).await;
            });
        })
}
