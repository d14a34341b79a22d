//! One thread for each core, each with its own runtime, listener and upstream connections: no work is stolen, nothing
//! is shared but what is read.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::{mpsc, watch};

use super::accept::{Accepting, becomes_true};
use crate::relay::front::Front;
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

/// What the threads have in common.
#[derive(Clone)]
pub struct Common {
    /// Shared state.
    pub shared: Arc<Shared>,
    /// The TLS configuration of the moment.
    pub tls: Arc<ArcSwap<ServerConfig>>,
    /// Becomes true when connections are to end after their running requests.
    pub closing: watch::Receiver<bool>,
    /// Held by every connection while it lives, and by the threads that accept them.
    pub alive: mpsc::Sender<()>,
    /// Becomes true when what is still open is to be cut.
    pub cut: watch::Receiver<bool>,
    /// Most clients that may be connected at once, of all threads.
    pub most: usize,
}

/// Starts a thread that serves `listener` until it is told to cut.
pub fn start(index: usize, listener: TcpListener, common: Common) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::Builder::new()
        .name(format!("serve-{index}"))
        .spawn(move || {
            let Common {
                shared,
                tls,
                closing,
                alive,
                mut cut,
                most,
            } = common;
            runtime.block_on(async move {
                let listener = match tokio::net::TcpListener::from_std(listener) {
                    Ok(listener) => listener,
                    Err(error) => {
                        tracing::error!(%error, "listener cannot be used");
                        return;
                    }
                };
                let metrics = shared.metrics.clone();
                let snapshot = shared.published.snapshot.clone();
                let app = Arc::new(Front::new(shared));
                let accepting = Accepting {
                    app,
                    tls,
                    metrics,
                    most,
                    snapshot,
                    closing,
                    alive,
                };
                tokio::spawn(Arc::new(accepting).run(listener));
                becomes_true(&mut cut).await;
            });
        })
}
