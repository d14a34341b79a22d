//! Starts the TLS port, the rotation of certificates and the serving threads; and stops them.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::accept::LAST_HANDSHAKES;
use super::metrics::ConnectionMetrics;
use super::rotate::Rotations;
use super::worker::{self, WorkerContext};
use crate::cluster::connector::EtcdTls;
use crate::net::files;
use crate::relay::shared::Shared;
use crate::tls::metrics::CertificateMetrics;
use crate::tls::serving::ServingTls;

/// Between two looks at what is open.
const INTERVAL: Duration = Duration::from_millis(20);

/// What connections are accepted with.
pub struct ServerInputs {
    /// For each serving thread one of each address.
    pub listeners: Vec<Vec<TcpListener>>,
    /// Becomes true when connections are to be accepted.
    pub start_listening: watch::Receiver<bool>,
    pub tls: Arc<ArcSwap<ServingTls>>,
    pub etcd_tls: EtcdTls,
    pub rotations: Rotations,
    pub certificate_metrics: Arc<CertificateMetrics>,
    pub connection_metrics: ConnectionMetrics,
}

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

/// Spawns the rotation of certificates and starts the serving threads.
pub fn start(
    shared: &Arc<Shared>,
    inputs: ServerInputs,
    control: &mut JoinSet<()>,
) -> io::Result<ServingThreads> {
    let tls = inputs.tls;
    inputs.rotations.start(
        shared,
        &inputs.certificate_metrics,
        &tls,
        &inputs.etcd_tls,
        control,
    );
    let (closing, closes) = watch::channel(false);
    let (stop_listening, stops_listening) = watch::channel(false);
    let (cut, cuts) = watch::channel(false);
    let metrics = Arc::new(inputs.connection_metrics);
    let context = WorkerContext {
        shared: shared.clone(),
        tls,
        closing: closes,
        start_listening: inputs.start_listening,
        stop_listening: stops_listening,
        cut: cuts,
        max_clients: files::for_clients(),
        metrics: metrics.clone(),
    };
    let workers = inputs
        .listeners
        .into_iter()
        .enumerate()
        .map(|(index, listeners)| worker::start(index, listeners, context.clone()))
        .collect::<Result<_, _>>()?;
    Ok(ServingThreads {
        closing,
        stop_listening,
        cut,
        metrics,
        workers,
    })
}
