//! Starts the TLS port: the rotation of certificates and one serving thread for each listener.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::metrics::ConnectionMetrics;
use super::rotate::Rotations;
use super::worker::{self, WorkerContext};
use crate::cluster::connector::EtcdTls;
use crate::relay::files;
use crate::relay::shared::Shared;
use crate::tls::metrics::CertificateMetrics;

/// What connections are accepted with.
pub struct ServerInputs {
    /// One for each serving thread.
    pub listeners: Vec<TcpListener>,
    pub tls: Arc<ServerConfig>,
    pub etcd_tls: EtcdTls,
    pub rotations: Rotations,
    pub certificate_metrics: Arc<CertificateMetrics>,
    pub connection_metrics: ConnectionMetrics,
}

/// The serving threads and what stops them.
pub struct ServingThreads {
    closing: watch::Sender<bool>,
    cut: watch::Sender<bool>,
    connections: mpsc::Receiver<()>,
    workers: Vec<JoinHandle<()>>,
}

impl ServingThreads {
    /// Accepts no more connections, waits for the end of those that are open, at most for `drain`, and ends the threads.
    pub async fn stop(mut self, drain: Duration) {
        self.closing.send_replace(true);
        if tokio::time::timeout(drain, self.connections.recv())
            .await
            .is_err()
        {
            tracing::warn!("requests were still running at the end of shutdown.drain");
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
    let tls = Arc::new(ArcSwap::from(inputs.tls));
    inputs.rotations.start(
        shared,
        &inputs.certificate_metrics,
        &tls,
        &inputs.etcd_tls,
        control,
    );
    let (closing, closes) = watch::channel(false);
    let (cut, cuts) = watch::channel(false);
    let (alive, connections) = mpsc::channel(1);
    let context = WorkerContext {
        shared: shared.clone(),
        tls,
        closing: closes,
        alive,
        cut: cuts,
        max_clients: files::for_clients(),
        metrics: Arc::new(inputs.connection_metrics),
    };
    let workers = inputs
        .listeners
        .into_iter()
        .enumerate()
        .map(|(index, listener)| worker::start(index, listener, context.clone()))
        .collect::<Result<_, _>>()?;
    Ok(ServingThreads {
        closing,
        cut,
        connections,
        workers,
    })
}
