//! Starts the serving threads of the TLS port, and stops them.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use super::accept::{ConnectionAcceptor, LAST_HANDSHAKES};
use super::listener::{Presence, bind_one, listen};
use super::metrics::ConnectionMetrics;
use crate::metrics::saturating;
use crate::net::files;
use crate::relay::service::RelayService;
use crate::relay::shared::Shared;
use crate::tls::serving::ServingTls;

/// Between two looks at what is open.
const INTERVAL: Duration = Duration::from_millis(20);
/// Between two counts of tasks.
const COUNTED: Duration = Duration::from_secs(5);
/// Between two attempts to listen where another process still does.
const AGAIN: Duration = Duration::from_secs(1);

/// The serving threads and what stops them.
pub struct ServingThreads {
    /// Dropping it ends the threads.
    cut: watch::Sender<()>,
    metrics: Arc<ConnectionMetrics>,
    workers: Vec<JoinHandle<()>>,
    runtimes: Vec<Handle>,
}

impl ServingThreads {
    /// Client connections that are open.
    pub fn connections(&self) -> i64 {
        self.metrics.open.get()
    }

    /// Counts the tasks of these threads, and of those that it runs in itself.
    pub fn count_tasks(&self) -> impl Future<Output = ()> + use<> {
        let (metrics, mut runtimes) = (self.metrics.clone(), self.runtimes.clone());
        async move {
            runtimes.push(Handle::current());
            loop {
                let tasks = runtimes.iter().map(|it| it.metrics().num_alive_tasks());
                metrics.tasks.set(saturating(tasks.sum::<usize>()));
                tokio::time::sleep(COUNTED).await;
            }
        }
    }

    /// Waits for the end of the connections that are open, at most until `deadline`, and ends the threads. No more are
    /// accepted.
    pub async fn stop(self, deadline: Instant) {
        // Until then connections may still be accepted.
        tokio::time::sleep(LAST_HANDSHAKES + INTERVAL).await;
        while self.connections() > 0 {
            if Instant::now() >= deadline {
                tracing::warn!("requests were still running at the end of shutdown.drain");
                break;
            }
            tokio::time::sleep(INTERVAL).await;
        }
        drop(self.cut);
        for worker in self.workers {
            if worker.join().is_err() {
                tracing::error!("a serving thread had panicked");
            }
        }
    }
}

/// Starts the serving threads. `listeners`: for each thread one of each address; `listens`: whether connections are to be
/// accepted.
pub fn start(
    shared: &Arc<Shared>,
    listeners: Vec<Vec<TcpListener>>,
    listens: watch::Receiver<bool>,
    tls: Arc<ArcSwap<ServingTls>>,
    metrics: ConnectionMetrics,
) -> io::Result<ServingThreads> {
    let (cut, cuts) = watch::channel(());
    let metrics = Arc::new(metrics);
    let mut runtimes = Vec::new();
    let serve = |(index, listeners): (usize, Vec<TcpListener>)| {
        let acceptor = Arc::new(ConnectionAcceptor {
            shared: shared.clone(),
            service: Arc::new(RelayService::new(shared.clone())),
            tls: tls.clone(),
            metrics: metrics.clone(),
            max_clients: files::for_clients(),
            handshake_lock: Mutex::default(),
        });
        let (listens, mut cut) = (listens.clone(), cuts.clone());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtimes.push(runtime.handle().clone());
        let serving = async move {
            for listener in listeners {
                tokio::spawn(accept_at(acceptor.clone(), listener, listens.clone()));
            }
            // Nothing is ever sent: this is the end of the sender.
            let _ = cut.changed().await;
        };
        std::thread::Builder::new()
            .name(format!("serve-{index}"))
            .spawn(move || runtime.block_on(serving))
    };
    let workers = listeners.into_iter().enumerate().map(serve);
    Ok(ServingThreads {
        workers: workers.collect::<Result<_, _>>()?,
        cut,
        metrics,
        runtimes,
    })
}

/// Accepts whenever it is to listen.
async fn accept_at(
    acceptor: Arc<ConnectionAcceptor>,
    listener: TcpListener,
    mut listens: watch::Receiver<bool>,
) {
    let address = listener.local_addr();
    let mut bound = Some(listener);
    while let Ok(address) = address {
        // The guard in the result must not be held.
        if listens.wait_for(|listens| *listens).await.is_err() {
            return;
        }
        let bind_again = || bind_one(address, Presence::Optional);
        let listener = bound.take().map_or_else(bind_again, Ok);
        let listening = listener.and_then(|listener| {
            listen(&listener)?;
            listener.try_into()
        });
        match listening {
            Ok(listener) => tokio::select! {
                () = acceptor.clone().run(listener) => return,
                Ok(_) = listens.wait_for(|listens| !*listens) => {}
            },
            Err(error) => {
                tracing::error!(%error, %address, "cannot listen");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}
