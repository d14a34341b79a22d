//! Starts the serving threads of the TLS port, and stops them.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use super::accept::{ConnectionAcceptor, LAST_HANDSHAKES, WorkerContext, becomes_true};
use super::listener::listen;
use super::metrics::ConnectionMetrics;
use crate::net::files;
use crate::relay::service::RelayService;
use crate::relay::shared::Shared;
use crate::tls::serving::ServingTls;

/// Between two looks at what is open.
const INTERVAL: Duration = Duration::from_millis(20);

/// The serving threads and what stops them.
pub struct ServingThreads {
    closing: watch::Sender<bool>,
    stop_listening: watch::Sender<bool>,
    cut: watch::Sender<bool>,
    metrics: Arc<ConnectionMetrics>,
    workers: Vec<JoinHandle<()>>,
}

impl ServingThreads {
    /// Each connection ends, after its running requests; one that comes from now on after its first request.
    pub fn drain(&self) {
        self.closing.send_replace(true);
    }

    /// Client connections that are open.
    pub fn connections(&self) -> i64 {
        self.metrics.open.get()
    }

    /// Accepts no more connections, waits for the end of those that are open, at most until `deadline`, and ends the
    /// threads.
    pub async fn stop(self, deadline: Instant) {
        self.stop_listening.send_replace(true);
        // Until then connections may still be accepted.
        tokio::time::sleep(LAST_HANDSHAKES + INTERVAL).await;
        while self.connections() > 0 {
            if Instant::now() >= deadline {
                tracing::warn!("requests were still running at the end of shutdown.drain");
                break;
            }
            tokio::time::sleep(INTERVAL).await;
        }
        self.cut.send_replace(true);
        for worker in self.workers {
            if worker.join().is_err() {
                tracing::error!("a serving thread had panicked");
            }
        }
    }
}

/// Starts the serving threads. `listeners`: for each thread one of each address; `start_listening`: becomes true when
/// connections are to be accepted.
pub fn start(
    shared: &Arc<Shared>,
    listeners: Vec<Vec<TcpListener>>,
    start_listening: watch::Receiver<bool>,
    tls: Arc<ArcSwap<ServingTls>>,
    metrics: ConnectionMetrics,
) -> io::Result<ServingThreads> {
    let (closing, closes) = watch::channel(false);
    let (stop_listening, stops_listening) = watch::channel(false);
    let (cut, cuts) = watch::channel(false);
    let metrics = Arc::new(metrics);
    let context = WorkerContext {
        shared: shared.clone(),
        tls,
        closing: closes,
        start_listening,
        stop_listening: stops_listening,
        cut: cuts,
        max_clients: files::for_clients(),
        metrics: metrics.clone(),
    };
    let workers = listeners
        .into_iter()
        .enumerate()
        .map(|(index, listeners)| serve(index, listeners, context.clone()))
        .collect::<Result<_, _>>()?;
    Ok(ServingThreads {
        closing,
        stop_listening,
        cut,
        metrics,
        workers,
    })
}

/// Starts a thread that serves `listeners` until `cut` is true.
fn serve(
    index: usize,
    listeners: Vec<TcpListener>,
    mut context: WorkerContext,
) -> io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut cut = context.cut.clone();
    let serving = async move {
        let accepting = async move {
            becomes_true(&mut context.start_listening).await;
            let acceptor = Arc::new(ConnectionAcceptor {
                service: Arc::new(RelayService::new(context.shared.clone())),
                context,
                handshake_lock: Mutex::default(),
            });
            for listener in listeners {
                match begin(listener) {
                    Ok(listener) => drop(tokio::spawn(acceptor.clone().run(listener))),
                    Err(error) => tracing::error!(%error, "listener cannot be used"),
                }
            }
        };
        tokio::spawn(accepting);
        becomes_true(&mut cut).await;
    };
    std::thread::Builder::new()
        .name(format!("serve-{index}"))
        .spawn(move || runtime.block_on(serving))
}

fn begin(socket: TcpListener) -> io::Result<tokio::net::TcpListener> {
    listen(&socket)?;
    tokio::net::TcpListener::from_std(socket)
}
