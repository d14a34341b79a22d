//! The only place where things are wired.
//!
//! [`build`] binds ports and starts everything; [`Bound`] tells the real addresses and stops it again. Control
//! work (etcd, probe, discovery, admin port) has one runtime, serving has one for each core.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::admin::pages::Pages;
use crate::admin::{self, metrics::Metrics};
use crate::client::MakerError;
use crate::cluster::catalog::{Own, Published};
use crate::cluster::connector::{Connector, EtcdTls};
use crate::cluster::keys::Keys;
use crate::config::Config;
use crate::local::state::LocalState;
use crate::relay::files;
use crate::relay::health::{self, Health};
use crate::relay::overlay::cache::Cache;
use crate::relay::shared::{Phase, Shared};
use crate::request::headers::Privileged;
use crate::request::who::Judge;
use crate::routing::decide::Policy;
use crate::server::rotate;
use crate::server::worker::{self, Common};
use crate::tls::store::TlsError;
use crate::watches::archive::Archive;
use crate::watches::samples::Samples;

mod control;

/// Why the program cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A port cannot be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// Certificate files.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The clients for the local apiserver and for peers.
    #[error(transparent)]
    Client(#[from] MakerError),
    /// Two metrics have one name.
    #[error("metrics")]
    Metrics(#[from] prometheus::Error),
}

/// Longest wait for own keys to leave etcd.
const FAREWELL: Duration = Duration::from_secs(5);

/// A running proxy.
pub struct Bound {
    /// Where clients and peers are served.
    pub serving: SocketAddr,
    /// Where operators are served.
    pub admin: SocketAddr,
    shared: Arc<Shared>,
    phase: watch::Sender<Phase>,
    closing: watch::Sender<bool>,
    cut: watch::Sender<bool>,
    connections: mpsc::Receiver<()>,
    workers: Vec<JoinHandle<()>>,
    stop_publishing: Vec<oneshot::Sender<()>>,
    publishers: Vec<tokio::task::JoinHandle<()>>,
    /// Ends all control work with it.
    _control: JoinSet<()>,
}

/// Binds, connects and starts everything. Must be called within a runtime, which control work then runs on.
pub fn build(mut config: Config) -> Result<Bound, BuildError> {
    files::raise_limit();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let address = config.serving.bind_address;
    let listeners =
        worker::bind(address, threads).map_err(|source| BuildError::Listen { address, source })?;
    let serving = local_addr(&listeners[0], address)?;
    let admin_listener = bind_admin(config.admin.bind_address)?;
    let admin = local_addr(&admin_listener, config.admin.bind_address)?;
    if config.peer.advertise_address.port() == 0 {
        config.peer.advertise_address.set_port(serving.port());
    }

    let (certificates, rotations) = rotate::begin(&config)?;
    let configured = config.identity.server_id.as_deref().map(Arc::from);
    let (id_sender, id) = watch::channel(configured);
    let own = Own {
        id,
        endpoint: config.peer.advertise_address,
    };
    let keys = Keys::new(&config.etcd.prefix, &config.identity.lease_namespaces);
    let (published, ends) = Published::new(keys.topics().count());
    let (phase, phases) = watch::channel(Phase::Serving);
    let local = Arc::new(LocalState::default());
    let (archive, books) = Archive::new();
    let shared = Arc::new(Shared {
        own: own.clone(),
        judge: ArcSwap::from_pointee(Judge {
            generation: 0,
            cas: certificates.cas,
            allowed_names: config.serving.request_header_allowed_names.clone(),
        }),
        credentials: Arc::new(ArcSwap::from_pointee(certificates.credentials)),
        rotated: watch::Sender::new(()),
        privileged: Privileged::new(&config.serving.request_headers),
        policy: Policy {
            rerouting: config.rerouting.enabled,
            unsynced: config.rerouting.unsynced,
        },
        published,
        gathering: Arc::default(),
        local: local.clone(),
        health: Health::default(),
        merges: Cache::default(),
        archive,
        samples: Samples::default(),
        crippled: Arc::default(),
        recent: admin::recent::Recent::default(),
        metrics: Arc::new(Metrics::new()?),
        phase: phases,
        config,
    });

    let etcd: EtcdTls = Arc::new(ArcSwapOption::from_pointee(certificates.etcd));
    let tls = Arc::new(ArcSwap::from(certificates.server));
    let mut control = JoinSet::new();
    rotations.start(&shared, &tls, &etcd, &mut control);
    let connector = Connector::new(&shared.config.etcd, etcd);
    let (publisher, keeper) = control::start_control(
        &shared,
        connector,
        keys,
        id_sender,
        ends,
        books,
        &mut control,
    )?;
    let (stop_publisher, stop) = oneshot::channel();
    let mut stop_publishing = vec![stop_publisher];
    let mut publishers = vec![tokio::spawn(publisher.run(stop))];
    if let Some(keeper) = keeper {
        let (stop_keeper, stop) = oneshot::channel();
        stop_publishing.push(stop_keeper);
        publishers.push(tokio::spawn(keeper.run(stop)));
    }
    let peers = Arc::new(health::maker(&shared.config, shared.credentials.clone())?);
    control.spawn(health::run(peers, shared.clone()));
    control.spawn(admin::serve::run(
        admin_listener,
        Arc::new(Pages::new(shared.clone())),
    ));

    let (closing, closes) = watch::channel(false);
    let (cut, cuts) = watch::channel(false);
    let (alive, connections) = mpsc::channel(1);
    let common = Common {
        shared: shared.clone(),
        tls,
        closing: closes,
        alive,
        cut: cuts,
        most: files::for_clients(),
    };
    let workers = listeners
        .into_iter()
        .enumerate()
        .map(|(index, listener)| worker::start(index, listener, common.clone()))
        .collect::<Result<_, _>>()
        .map_err(BuildError::Thread)?;
    let version = env!("CARGO_PKG_VERSION");
    tracing::info!(version, %serving, %admin, threads, "serving");
    let control = control::watched(control, shared.crippled.clone());
    Ok(Bound {
        serving,
        admin,
        shared,
        phase,
        closing,
        cut,
        connections,
        workers,
        stop_publishing,
        publishers,
        _control: control,
    })
}

impl Bound {
    /// What requests are planned by.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Stops gracefully: unready first, then no new connections, then the end of what runs.
    pub async fn stop(mut self) {
        let config = &self.shared.config.shutdown;
        tracing::info!(delay = ?config.delay, drain = ?config.drain, "stopping");
        self.phase.send_replace(Phase::Leaving);
        for stop in self.stop_publishing {
            // It has ended already if sending fails.
            let _ = stop.send(());
        }
        let farewell = async {
            for publisher in self.publishers {
                // One that panicked has nothing more to say.
                let _ = publisher.await;
            }
        };
        let farewell = tokio::time::timeout(FAREWELL, farewell);
        let (farewell, ()) = tokio::join!(farewell, tokio::time::sleep(config.delay));
        if farewell.is_err() {
            tracing::warn!(
                "own keys and Lease could not be removed in time, they expire by themselves"
            );
        }
        self.phase.send_replace(Phase::Draining);
        self.closing.send_replace(true);
        if tokio::time::timeout(config.drain, self.connections.recv())
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
        tracing::info!("stopped");
    }
}

fn bind_admin(address: SocketAddr) -> Result<TcpListener, BuildError> {
    let bind = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    bind().map_err(|source| BuildError::Listen { address, source })
}

fn local_addr(listener: &TcpListener, address: SocketAddr) -> Result<SocketAddr, BuildError> {
    listener
        .local_addr()
        .map_err(|source| BuildError::Listen { address, source })
}
