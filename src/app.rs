//! The only place where rooms are wired.
//!
//! [`build`] binds ports and starts every room; [`Bound`] has the real addresses and stops the rooms again. Control
//! work (etcd, probe, discovery, admin port) runs on one runtime; serving has one runtime for each core.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use etcd_client::TlsOptions;
use prometheus::Registry;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::predecessor::{self, AdminListener};
use crate::client::{ClientMaker, MakerError};
use crate::cluster::catalog::{CatalogInputs, OwnServer, Published};
use crate::cluster::connector::{Connector, EtcdTls};
use crate::cluster::keys::EtcdKeys;
use crate::config::Config;
use crate::config::settings::SharedSettings;
use crate::discovery::metrics::PeerDiscoveryMetrics;
use crate::discovery::peer_discovery::SharedPeerDiscovery;
use crate::local::discovery::LocalView;
use crate::local::state::LocalState;
use crate::net::files;
use crate::otlp::Tracer;
use crate::otlp::metrics::SpanMetrics;
use crate::publish::Publishing;
use crate::publish::announcement::Announcement;
use crate::publish::metrics::{IdentityMetrics, LeaseMetrics};
use crate::relay::observe::Metrics;
use crate::relay::shared::Shared;
use crate::relay::shutdown::ShutdownPhase;
use crate::reload::ReloadInputs;
use crate::reload::metrics::ReloadMetrics;
use crate::server::ServingThreads;
use crate::server::listener::{self, Presence};
use crate::server::metrics::ConnectionMetrics;
use crate::server::rotate::{self, Rotations};
use crate::tls::credentials::{Credentials, Current};
use crate::tls::error::TlsError;
use crate::tls::metrics::CertificateMetrics;
use crate::tls::serving::ServingTls;
use crate::tls::verify::ClientCas;
use crate::watches::prover::ApiServers;
use crate::{admin, cluster, discovery, local, otlp, publish, relay, reload, server, watches};

mod memory;
mod panics;
mod stopping;
mod takeover;

/// Why the program cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The clients for the local apiserver and for peers.
    #[error(transparent)]
    Client(#[from] MakerError),
    #[error("tracing.endpoint")]
    Tracing(#[from] tonic::transport::Error),
    /// Two metrics have the same name.
    #[error("metrics")]
    Metrics(#[from] prometheus::Error),
}

/// Longest wait for the removal of own keys and the Lease from etcd.
const UNPUBLISH_TIMEOUT: Duration = Duration::from_secs(5);

/// A running proxy.
pub struct Bound {
    /// Where clients and peers are served first.
    pub serving: SocketAddr,
    /// Where operators are served.
    pub admin: SocketAddr,
    shared: Arc<Shared>,
    phase: watch::Sender<ShutdownPhase>,
    server: ServingThreads,
    publishing: Publishing,
    /// All control work ends when this is dropped.
    _control: JoinSet<()>,
}

/// Binds, connects and starts everything. Must be called within a runtime, which control work then runs on. `reload`:
/// how the configuration is read again, if it is.
pub fn build(mut config: Config, reload: Option<ReloadInputs>) -> Result<Bound, BuildError> {
    files::raise_limit();
    let ports = Ports::bind(&mut config)?;
    let (serving, admin) = (ports.serving, ports.admin);
    let threads = ports.listeners.len();
    let (certificates, rotations) = rotate::begin(&config)?;
    let (phase_sender, phase) = watch::channel(ShutdownPhase::Serving);
    let (mut wiring, ends) = Wiring::new(&config, certificates.credentials, certificates.etcd)?;
    let (view, peer_discovery) = wiring.follow(&config, ends)?;
    let publishing = wiring.publish(&config, view)?;
    let shared = wiring.relay(config, certificates.cas, peer_discovery, phase)?;
    let (server, control) = wiring.serve(&shared, ports, rotations, certificates.server, reload)?;
    let version = env!("CARGO_PKG_VERSION");
    let additional = &shared.config.serving.additional_bind_addresses;
    tracing::info!(version, %serving, ?additional, %admin, threads, "serving");
    let control = panics::watched(control, shared.control_panicked.clone());
    Ok(Bound {
        serving,
        admin,
        shared,
        phase: phase_sender,
        server,
        publishing,
        _control: control,
    })
}

/// What several rooms are given while they start.
struct Wiring {
    registry: Registry,
    control: JoinSet<()>,
    settings: Arc<SharedSettings>,
    credentials: Current,
    maker: Arc<ClientMaker>,
    etcd_tls: EtcdTls,
    connector: Connector,
    keys: EtcdKeys,
    own: OwnServer,
    /// The writing ends of [`OwnServer::id`] and [`OwnServer::apiserver_id`].
    ids: [watch::Sender<Option<Arc<str>>>; 2],
    local: Arc<LocalState>,
    published: Published,
    announcement: Arc<Announcement>,
    lease_metrics: LeaseMetrics,
}

impl Wiring {
    fn new(
        config: &Config,
        credentials: Credentials,
        etcd: Option<TlsOptions>,
    ) -> Result<(Self, CatalogInputs), BuildError> {
        let registry = Registry::new();
        let credentials: Current = Arc::new(ArcSwap::from_pointee(credentials));
        let etcd_tls: EtcdTls = Arc::new(ArcSwapOption::from_pointee(etcd));
        let keys = EtcdKeys::new(&config.etcd.prefix, &config.identity.lease_namespaces);
        let (id_sender, id) = watch::channel(config.identity.server_id.as_deref().map(Arc::from));
        let (apiserver_id_sender, apiserver_id) = watch::channel(None);
        let (published, ends) = Published::new();
        let wiring = Self {
            control: JoinSet::new(),
            settings: Arc::new(SharedSettings::new(config)),
            maker: Arc::new(local::maker(config, credentials.clone())?),
            connector: Connector::new(&config.etcd, etcd_tls.clone()),
            own: OwnServer {
                id,
                apiserver_id,
                endpoint: config.peer.advertise_address,
            },
            ids: [id_sender, apiserver_id_sender],
            local: Arc::default(),
            announcement: Arc::default(),
            lease_metrics: LeaseMetrics::new(&registry)?,
            registry,
            credentials,
            etcd_tls,
            keys,
            published,
        };
        Ok((wiring, ends))
    }

    /// Starts what follows the local apiserver, etcd and peers.
    fn follow(
        &mut self,
        config: &Config,
        ends: CatalogInputs,
    ) -> Result<(watch::Receiver<LocalView>, Arc<SharedPeerDiscovery>), BuildError> {
        let published = &self.published;
        let view = local::start(
            config,
            &self.credentials,
            &self.maker,
            &self.local,
            local::EtcdFacts {
                custom: published.custom.subscribe(),
                former: published.former.clone(),
                header_names: published.header_names.subscribe(),
            },
            &mut self.control,
        );
        cluster::start(
            config,
            cluster::ClusterInputs {
                own: self.own.clone(),
                keys: self.keys.clone(),
                connector: self.connector.clone(),
                credentials: self.credentials.clone(),
                local: view.clone(),
                published: published.clone(),
                ends,
                ignored_addresses: self.settings.ignored_addresses(),
            },
            &mut self.control,
        )?;
        let peer_discovery = discovery::start(
            config,
            discovery::DiscoveryInputs {
                settings: self.settings.clone(),
                credentials: self.credentials.clone(),
                published: published.clone(),
                view: view.clone(),
                metrics: PeerDiscoveryMetrics::new(&self.registry)?,
            },
            &mut self.control,
        )?;
        Ok((view, peer_discovery))
    }

    /// Starts what announces this server.
    fn publish(
        &mut self,
        config: &Config,
        view: watch::Receiver<LocalView>,
    ) -> Result<Publishing, BuildError> {
        let [id, apiserver_id] = self.ids.clone();
        let inputs = publish::PublishInputs {
            own: self.own.clone(),
            id,
            apiserver_id,
            keys: self.keys.clone(),
            connector: self.connector.clone(),
            maker: self.maker.clone(),
            local: self.local.clone(),
            view,
            published: &self.published,
            announcement: self.announcement.clone(),
            identity_metrics: IdentityMetrics::new(&self.registry)?,
            lease_metrics: self.lease_metrics.clone(),
        };
        Ok(publish::start(config, inputs, &mut self.control))
    }

    /// Starts what requests are served by.
    fn relay(
        &mut self,
        config: Config,
        cas: ClientCas,
        peer_discovery: Arc<SharedPeerDiscovery>,
        phase: watch::Receiver<ShutdownPhase>,
    ) -> Result<Arc<Shared>, BuildError> {
        let control = &mut self.control;
        let servers = ApiServers::new(&config, &self.credentials, self.maker.clone())?;
        let (connector, keys) = (&self.connector, &self.keys);
        let inputs = relay::RelayInputs {
            settings: self.settings.clone(),
            own: self.own.clone(),
            cas,
            credentials: self.credentials.clone(),
            published: self.published.clone(),
            peer_discovery,
            local: self.local.clone(),
            announcement: self.announcement.clone(),
            watches: watches::start(connector, keys, &self.local, servers, control),
            metrics: Metrics::new(&self.registry)?,
            tracer: tracer(&config, &self.registry, control)?,
            phase,
        };
        Ok(relay::start(config, inputs, control)?)
    }

    /// Starts the listeners, and what replaces certificates and settings. Returns all control work with them.
    fn serve(
        mut self,
        shared: &Arc<Shared>,
        ports: Ports,
        rotations: Rotations,
        tls: ServingTls,
        reload: Option<ReloadInputs>,
    ) -> Result<(ServingThreads, JoinSet<()>), BuildError> {
        let certificate_metrics = Arc::new(CertificateMetrics::new(&self.registry)?);
        let reload_metrics = Arc::new(ReloadMetrics::new(&self.registry)?);
        let (start_listening, starts_listening) = watch::channel(!ports.has_predecessor);
        let tls = Arc::new(ArcSwap::from_pointee(tls));
        let admin_bound = admin::start(
            shared,
            admin::AdminInputs {
                listener: ports.admin_listener,
                secure: ports.secure_admin_listener,
                registry: &self.registry,
                certificates: certificate_metrics.clone(),
                reload: reload_metrics.clone(),
                lease: self.lease_metrics,
                tls: tls.clone(),
                maker: self.maker,
            },
            &mut self.control,
        )?;
        if let Some(inputs) = reload {
            reload::start(inputs, self.settings, reload_metrics, &mut self.control);
        }
        if ports.has_predecessor {
            tracing::info!("another proxy is stopping here: this one listens when it is ready");
            let serving = ports.serving;
            let taking_over = takeover::run(shared.clone(), serving, admin_bound, start_listening);
            self.control.spawn(taking_over);
        }
        rotations.start(
            shared,
            &certificate_metrics,
            &tls,
            &self.etcd_tls,
            &mut self.control,
        );
        let metrics = ConnectionMetrics::new(&self.registry)?;
        let server = server::start(shared, ports.listeners, starts_listening, tls, metrics)
            .map_err(BuildError::Thread)?;
        self.control.spawn(memory::give_back());
        Ok((server, self.control))
    }
}

/// What takes the spans of requests, if they have somewhere to go.
fn tracer(
    config: &Config,
    registry: &Registry,
    control: &mut JoinSet<()>,
) -> Result<Option<Tracer>, BuildError> {
    let metrics = SpanMetrics::new(registry)?;
    let Some(endpoint) = &config.tracing.endpoint else {
        return Ok(None);
    };
    let instance = config.peer.advertise_address.to_string();
    let per_million = config.tracing.sampling_rate_per_million;
    let tracer = otlp::start(endpoint, per_million, &instance, metrics, control)?;
    Ok(Some(tracer))
}

impl Bound {
    /// The state that serves requests.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Stops gracefully: `/readyz` fails first, then connections end, and last the listeners close.
    pub async fn stop(self) {
        let config = &self.shared.config.shutdown;
        tracing::info!(delay = ?config.delay, drain = ?config.drain, "stopping");
        self.phase.send_replace(ShutdownPhase::Leaving);
        self.shared.callers.revalidations.send_replace(());
        let unpublished = tokio::time::timeout(UNPUBLISH_TIMEOUT, self.publishing.stop());
        let (unpublished, ()) = tokio::join!(unpublished, tokio::time::sleep(config.delay));
        if unpublished.is_err() {
            tracing::warn!(
                "own keys and Lease could not be removed in time, they expire by themselves"
            );
        }
        // It is set nowhere else.
        self.shared.shutdown.begin_drain();
        self.phase.send_replace(ShutdownPhase::Draining);
        let enter_last = || {
            self.phase.send_replace(ShutdownPhase::Ending);
        };
        stopping::drain(&self.shared, self.server, enter_last).await;
        if let Some(tracer) = &self.shared.tracer {
            tracer.flush().await;
        }
        tracing::info!("stopped");
    }
}

/// Listeners and their real addresses.
struct Ports {
    serving: SocketAddr,
    /// For each core one of each address.
    listeners: Vec<Vec<TcpListener>>,
    admin: SocketAddr,
    admin_listener: AdminListener,
    secure_admin_listener: Option<AdminListener>,
    /// Another proxy has these addresses and is stopping.
    has_predecessor: bool,
}

impl Ports {
    /// Binds all addresses. An advertised port 0 becomes the real port.
    ///
    /// This host must have `serving.bindAddress`: otherwise a wrong address would only show when clients find nobody.
    fn bind(config: &mut Config) -> Result<Self, BuildError> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let has_predecessor = predecessor::is_stopping(config.admin.bind_address);
        // First: two proxies could share the other addresses, and neither would notice.
        let (admin, admin_listener) = bind_admin(config.admin.bind_address, has_predecessor)?;
        let secure_admin = config.admin.secure_bind_address;
        let secure_admin = secure_admin.map(|address| bind_admin(address, has_predecessor));
        let secure_admin_listener = secure_admin.transpose()?.map(|(_, listener)| listener);
        let address = config.serving.bind_address;
        let bind = |address, presence| {
            let bind = || {
                let sockets = listener::bind(address, presence, threads)?;
                if !has_predecessor {
                    sockets.iter().try_for_each(listener::listen)?;
                }
                Ok(sockets)
            };
            bind().map_err(|source| BuildError::Listen { address, source })
        };
        let first = bind(address, Presence::Required)?;
        let serving = local_addr(&first[0], address)?;
        let mut listeners: Vec<_> = first.into_iter().map(|listener| vec![listener]).collect();
        for address in &config.serving.additional_bind_addresses {
            let additional = bind(*address, Presence::Optional)?;
            for (listeners, listener) in listeners.iter_mut().zip(additional) {
                listeners.push(listener);
            }
        }
        if config.peer.advertise_address.port() == 0 {
            config.peer.advertise_address.set_port(serving.port());
        }
        Ok(Self {
            serving,
            listeners,
            admin,
            admin_listener,
            secure_admin_listener,
            has_predecessor,
        })
    }
}

fn bind_admin(
    address: SocketAddr,
    has_predecessor: bool,
) -> Result<(SocketAddr, AdminListener), BuildError> {
    match predecessor::bind(address) {
        Ok(listener) => Ok((
            local_addr(&listener, address)?,
            AdminListener::Bound(listener),
        )),
        Err(_) if has_predecessor => Ok((address, AdminListener::Awaited(address))),
        Err(source) => Err(BuildError::Listen { address, source }),
    }
}

fn local_addr(listener: &TcpListener, address: SocketAddr) -> Result<SocketAddr, BuildError> {
    listener
        .local_addr()
        .map_err(|source| BuildError::Listen { address, source })
}
