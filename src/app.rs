//! The only place where things are wired.
//!
//! [`build`] binds ports and starts everything; [`Bound`] tells the real addresses and stops it again. Control
//! work (etcd, probe, discovery, admin port) has one runtime, serving has one for each core.

use std::collections::BTreeMap;
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
use crate::cluster::catalog::{Catalog, Ends, Own, Published};
use crate::cluster::connector::{Connector, EtcdTls};
use crate::cluster::etcd::EtcdSource;
use crate::cluster::keys::{Keys, Topic};
use crate::cluster::native;
use crate::cluster::state::State;
use crate::cluster::watch::follow;
use crate::config::{Config, PublishLease};
use crate::discovery::clients::Clients;
use crate::discovery::gather::Gather;
use crate::local::discovery::{self, LocalView};
use crate::local::state::LocalState;
use crate::local::{self, probe, requestheader};
use crate::publish::identify::Identify;
use crate::publish::identity::host_name;
use crate::publish::lease::LeaseKeeper;
use crate::publish::record::Publisher;
use crate::publish::rhythm;
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
use crate::watches::archive::{self, Archive};
use crate::watches::book::Book;
use crate::watches::history;
use crate::watches::samples::Samples;

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
/// Messages of one list that may wait to be read.
const QUEUE: usize = 4096;

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
    let (publisher, keeper) = start_control(
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

/// Followers of etcd, the catalog, the probe and discovery; those that tell others of us are returned, because they end
/// in their own way. With `identity.publishLease: Never` nobody keeps or collects Leases.
fn start_control(
    shared: &Arc<Shared>,
    connector: Connector,
    keys: Keys,
    id: watch::Sender<Option<Arc<str>>>,
    ends: Ends,
    books: mpsc::Receiver<Arc<Book>>,
    control: &mut JoinSet<()>,
) -> Result<(Publisher, Option<LeaseKeeper>), BuildError> {
    let config = &shared.config;
    let (view_sender, view) = watch::channel(LocalView::default());
    let (custom_sender, custom) = watch::channel(None);
    let (peers_sender, native_peers) = watch::channel(BTreeMap::new());
    let (natives_sender, natives) = mpsc::channel(QUEUE);
    let (leases_sender, leases) = watch::channel(None);
    let (wanted_sender, wanted) = watch::channel(false);
    let (observed_sender, observed) = watch::channel(Arc::default());

    let (sink, messages) = mpsc::channel(QUEUE);
    let trouble = Arc::default();
    for topic in keys.topics() {
        let connector = connector.starting_at(topic.index());
        let source = EtcdSource::new(connector, config.peer.lease_ttl);
        let keys_only = topic == Topic::Definitions;
        control.spawn(follow(
            source,
            topic,
            keys.of(topic),
            keys_only,
            sink.clone(),
            Arc::clone(&trouble),
        ));
    }
    let catalog = Catalog {
        own: shared.own.clone(),
        messages,
        local: view.clone(),
        natives,
        refused: ends.refused,
        reports: ends.reports,
        custom: custom_sender,
        native_peers: peers_sender,
        leases: leases_sender,
        published: shared.published.clone(),
        state: State::new(
            shared.own.endpoint,
            config.identity.lease_namespaces.len(),
            config.peer.lease_ttl,
            config.rerouting.absent_server_grace,
        ),
    };
    control.spawn(catalog.run());
    control.spawn(archive::run(connector.clone(), books));
    control.spawn(history::run(
        connector.starting_at(keys.topics().count() + 1),
        keys.of(Topic::Servers),
        shared.local.clone(),
    ));
    control.spawn(native::run(
        Arc::new(native::maker(config, shared.credentials.clone())?),
        config.api_server.discovery_interval,
        native_peers,
        natives_sender,
    ));
    let gather = Gather {
        published: shared.published.clone(),
        view: view.clone(),
        gathering: shared.gathering.clone(),
        clients: Clients::new(config, &shared.credentials)?,
        discovery_interval: config.api_server.discovery_interval,
        metrics: shared.metrics.gathering.clone(),
    };
    control.spawn(gather.run());
    let identify = Identify {
        config: config.identity.clone(),
        host: host_name(),
        leases,
        state: shared.local.clone(),
        id,
        wanted: wanted_sender,
        observed: observed_sender,
        metrics: shared.metrics.clone(),
    };
    control.spawn(identify.run());

    let maker = Arc::new(local::maker(config, shared.credentials.clone())?);
    let api_server = config.api_server.address;
    control.spawn(probe::run(
        maker.client(api_server),
        shared.local.clone(),
        config.api_server.probe_interval,
    ));
    control.spawn(discovery::run(
        maker.client(api_server),
        shared.local.clone(),
        config.api_server.discovery_interval,
        custom.clone(),
        view_sender,
    ));
    control.spawn(requestheader::run(
        config.clone(),
        shared.credentials.clone(),
        shared.local.clone(),
    ));
    let identity = &config.identity;
    let keeper = (identity.publish_lease != PublishLease::Never).then(|| LeaseKeeper {
        client: maker.client(api_server),
        namespace: identity
            .lease_namespaces
            .first()
            .cloned()
            .unwrap_or_default(),
        renew_interval: identity.renew_interval,
        lease_duration: identity.lease_duration,
        hostname: host_name(),
        endpoint: shared.own.endpoint,
        id: shared.own.id.clone(),
        wanted,
        view: view.clone(),
        state: shared.local.clone(),
        leases: observed,
        metrics: shared.metrics.lease.clone(),
    });
    let publisher = Publisher {
        connector: connector
            .starting_at(keys.topics().count())
            .limited(rhythm::request_limit(config.peer.lease_ttl)),
        keys,
        own: shared.own.clone(),
        state: shared.local.clone(),
        view,
        custom,
        duplicate: shared.metrics.duplicate_id.clone(),
        live_ttl: config.peer.lease_ttl,
        record_ttl: config.rerouting.absent_server_grace,
    };
    Ok((publisher, keeper))
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
