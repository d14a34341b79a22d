//! The only place where rooms are wired.
//!
//! [`build`] binds ports and starts every room; [`Bound`] has the real addresses and stops the rooms again. Control
//! work (etcd, probe, discovery, admin port) runs on one runtime; serving has one runtime for each core.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use prometheus::Registry;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::metrics::Gauges;
use crate::admin::pages::Pages;
use crate::admin::predecessor::{self, AdminListener};
use crate::cluster::Foundation;
use crate::cluster::catalog::{CatalogInputs, OwnServer, Published};
use crate::cluster::connector::Connector;
use crate::cluster::keys::EtcdKeys;
use crate::cluster::record::canonical;
use crate::config::Config;
use crate::config::settings::SharedSettings;
use crate::discovery::metrics::PeerDiscoveryMetrics;
use crate::discovery::peer_discovery::SharedPeerDiscovery;
use crate::local::state::LocalState;
use crate::net::files;
use crate::otlp::metrics::SpanMetrics;
use crate::publish::Publishing;
use crate::publish::metrics::IdentityMetrics;
use crate::relay::documents::Cache;
use crate::relay::observe::Metrics;
use crate::relay::recovery;
use crate::relay::shared::{Callers, Limits, ServerStates, Shared};
use crate::reload::ReloadInputs;
use crate::reload::metrics::ReloadMetrics;
use crate::server::ServingThreads;
use crate::server::listener::{self, Presence};
use crate::server::metrics::ConnectionMetrics;
use crate::server::rotate::{self, Certificates, Rotations};
use crate::shutdown::{Shutdown, ShutdownPhase};
use crate::tls::metrics::CertificateMetrics;
use crate::tls::verify::ClientCas;
use crate::watches::prover::ApiServers;
use crate::{admin, cluster, discovery, local, otlp, publish, reload, server, watches};

mod memory;
mod panics;
mod stopping;
mod takeover;

pub use takeover::room;

/// Longest wait for the removal of own keys and the Lease from etcd.
const UNPUBLISH_TIMEOUT: Duration = Duration::from_secs(5);

/// A running proxy.
pub struct Bound {
    /// Where clients and peers are served first.
    pub serving: SocketAddr,
    /// Where operators are served.
    pub admin: SocketAddr,
    shared: Arc<Shared>,
    server: ServingThreads,
    publishing: Publishing,
    /// All control work ends when this is dropped.
    _control: JoinSet<()>,
}

/// Binds, connects and starts everything. Must be called within a runtime, which control work then runs on. `reload`:
/// how the configuration is read again, if it is.
pub fn build(mut config: Config, reload: Option<ReloadInputs>) -> anyhow::Result<Bound> {
    files::raise_limit();
    let ports = Ports::bind(&mut config)?;
    let (serving, admin) = (ports.serving, ports.admin.address);
    let threads = ports.listeners.len();
    let (certificates, cas, rotations) = rotate::begin(&config)?;
    let (mut wiring, ends) = Wiring::new(&config, &certificates)?;
    let (peer_discovery, publishing) = wiring.follow(&config, ends)?;
    let shared = wiring.relay(config, cas, peer_discovery, &publishing)?;
    let (server, control) = wiring.serve(&shared, ports, rotations, certificates, reload)?;
    let version = env!("CARGO_PKG_VERSION");
    let additional = &shared.config.serving.additional_bind_addresses;
    tracing::info!(version, %serving, ?additional, %admin, threads, "serving");
    let control = panics::watched(control, shared.control_panicked.clone());
    Ok(Bound {
        serving,
        admin,
        shared,
        server,
        publishing,
        _control: control,
    })
}

/// What several rooms are given while they start.
struct Wiring {
    registry: Registry,
    control: JoinSet<()>,
    given: Foundation,
    /// The writing ends of [`OwnServer::id`] and [`OwnServer::apiserver_id`].
    ids: [watch::Sender<Option<Arc<str>>>; 2],
    identity_metrics: IdentityMetrics,
}

impl Wiring {
    fn new(config: &Config, certificates: &Certificates) -> anyhow::Result<(Self, CatalogInputs)> {
        let registry = Registry::new();
        let (id_sender, id) = watch::channel(config.identity.server_id.as_deref().map(Arc::from));
        let (apiserver_id_sender, apiserver_id) = watch::channel(None);
        let (published, ends) = Published::new();
        let local = LocalState::new(published.former.clone());
        let given = Foundation {
            settings: Arc::new(SharedSettings::new(config)),
            maker: Arc::new(local::maker(config, certificates.credentials.clone())?),
            connector: Connector::new(&config.etcd, certificates.etcd.clone()),
            own: OwnServer {
                id,
                apiserver_id,
                endpoint: canonical(config.peer.advertise_address),
            },
            local: Arc::new(local),
            keys: EtcdKeys::new(&config.etcd.prefix, &config.identity.lease_namespaces),
            published,
        };
        let wiring = Self {
            control: JoinSet::new(),
            given,
            ids: [id_sender, apiserver_id_sender],
            identity_metrics: IdentityMetrics::new(&registry)?,
            registry,
        };
        Ok((wiring, ends))
    }

    /// Starts what follows the local apiserver, etcd and peers, and what announces this server.
    fn follow(
        &mut self,
        config: &Config,
        ends: CatalogInputs,
    ) -> anyhow::Result<(Arc<SharedPeerDiscovery>, Publishing)> {
        let (given, control) = (&self.given, &mut self.control);
        let published = &given.published;
        let custom = published.custom.subscribe();
        let names = published.header_names.subscribe();
        let view = local::start(config, &given.maker, &given.local, custom, names, control);
        cluster::start(config, given, ends, view.clone(), control)?;
        let metrics = PeerDiscoveryMetrics::new(&self.registry)?;
        let peer_discovery = discovery::start(config, given, view.clone(), metrics, control)?;
        let (ids, metrics) = (self.ids.clone(), self.identity_metrics.clone());
        let publishing = publish::start(config, given, ids, view, metrics, control);
        Ok((peer_discovery, publishing))
    }

    /// Starts what requests are served by.
    fn relay(
        &mut self,
        config: Config,
        cas: ClientCas,
        peer_discovery: Arc<SharedPeerDiscovery>,
        publishing: &Publishing,
    ) -> anyhow::Result<Arc<Shared>> {
        let (given, control) = (&self.given, &mut self.control);
        let servers = ApiServers::new(&config, given.maker.clone())?;
        let (connector, keys, local) = (&given.connector, &given.keys, &given.local);
        let metrics = Metrics::new(&self.registry)?;
        let spans = SpanMetrics::new(&self.registry)?;
        let shared = Arc::new(Shared {
            settings: given.settings.clone(),
            own: given.own.clone(),
            callers: Callers::new(&config.serving, cas),
            credentials: given.maker.credentials.clone(),
            published: given.published.clone(),
            peer_discovery,
            local: given.local.clone(),
            announcement: publishing.announcement.clone(),
            servers: ServerStates::default(),
            merge_cache: Cache::default(),
            watches: watches::start(connector, keys, local, servers, control),
            limits: Limits::new(metrics.unread.clone()),
            metrics,
            tracer: otlp::start(&config.tracing, config.peer.advertise_address, spans)
                .context("tracing.endpoint")?,
            shutdown: Shutdown::new(config.shutdown.drain),
            control_panicked: Arc::default(),
            config,
        });
        recovery::start(&shared, control)?;
        Ok(shared)
    }

    /// Starts the listeners, and what replaces certificates and settings. Returns all control work with them.
    fn serve(
        mut self,
        shared: &Arc<Shared>,
        ports: Ports,
        rotations: Rotations,
        certificates: Certificates,
        reload: Option<ReloadInputs>,
    ) -> anyhow::Result<(ServingThreads, JoinSet<()>)> {
        let (control, tls) = (&mut self.control, certificates.server.clone());
        let metrics = Arc::new(CertificateMetrics::new(&self.registry)?);
        rotate::start(rotations, certificates, shared, &metrics, control);
        let reload_metrics = Arc::new(ReloadMetrics::new(&self.registry)?);
        let connections = ConnectionMetrics::new(&self.registry)?;
        let pages = Pages {
            shared: shared.clone(),
            certificates: metrics,
            reload: reload_metrics.clone(),
            identity: self.identity_metrics,
            gauges: Gauges::new(&self.registry)?,
            registry: self.registry,
        };
        let (admin, maker) = ((ports.admin, ports.secure_admin), self.given.maker);
        let admin_bound = admin::start(admin, pages, tls.clone(), maker, control);
        let file = reload.as_ref().map(|it| it.path.clone());
        if let Some(inputs) = reload {
            reload::start(inputs, self.given.settings, reload_metrics, control);
        }
        let (listens, listening) = watch::channel(!ports.has_predecessor);
        let (relay, serving) = (shared.clone(), ports.serving);
        control.spawn(async move {
            if ports.has_predecessor {
                tracing::info!("another proxy is stopping here: this one listens when it is ready");
                takeover::run(&relay, serving, admin_bound, &listens).await;
            }
            takeover::give_way(&relay, serving, file.as_deref(), listens).await;
        });
        let (owner, mut changes) = (shared.clone(), shared.local.changes());
        control.spawn(async move {
            while changes.changed().await.is_ok() {
                owner.callers.revalidations.send_replace(());
            }
        });
        let server = server::start(shared, ports.listeners, listening, tls, connections)
            .context("cannot start a thread")?;
        control.spawn(server.count_tasks());
        control.spawn(memory::give_back());
        Ok((server, self.control))
    }
}

impl Bound {
    /// The state that serves requests.
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Stops gracefully: `/readyz` fails first, then connections end, and last the listeners close.
    pub async fn stop(mut self) {
        let config = &self.shared.config.shutdown;
        tracing::info!(delay = ?config.delay, drain = ?config.drain, "stopping");
        self.shared.shutdown.enter(ShutdownPhase::Leaving);
        self.shared.limits.hand_overs.close();
        self.shared.callers.revalidations.send_replace(());
        let unpublished = tokio::time::timeout(UNPUBLISH_TIMEOUT, self.publishing.leave());
        let (unpublished, ()) = tokio::join!(unpublished, tokio::time::sleep(config.delay));
        if unpublished.is_err() {
            tracing::warn!("keys and Lease could not be removed in time: they expire");
        }
        self.shared.shutdown.enter(ShutdownPhase::Draining);
        stopping::drain(&self.shared, self.server).await;
        self.publishing.end().await;
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
    admin: AdminListener,
    secure_admin: Option<AdminListener>,
    /// Another proxy has these addresses and is stopping.
    has_predecessor: bool,
}

impl Ports {
    /// Binds all addresses. An advertised port 0 becomes the real port.
    ///
    /// This host must have `serving.bindAddress`: otherwise a wrong address would only show when clients find nobody.
    fn bind(config: &mut Config) -> anyhow::Result<Self> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let has_predecessor = predecessor::is_stopping(config.admin.bind_address);
        let bind_admin = |address| {
            AdminListener::bind(address, has_predecessor)
                .with_context(|| format!("cannot listen on {address}"))
        };
        // First: two proxies could share the other addresses, and neither would notice.
        let admin = bind_admin(config.admin.bind_address)?;
        let secure_admin = config.admin.secure_bind_address.map(bind_admin);
        let secure_admin = secure_admin.transpose()?;
        let address = config.serving.bind_address;
        let bind = |address, presence| {
            let bind = || {
                let sockets = listener::bind(address, presence, threads)?;
                if !has_predecessor {
                    sockets.iter().try_for_each(listener::listen)?;
                }
                std::io::Result::Ok((sockets[0].local_addr()?, sockets))
            };
            bind().with_context(|| format!("cannot listen on {address}"))
        };
        let (serving, first) = bind(address, Presence::Required)?;
        let mut listeners: Vec<_> = first.into_iter().map(|listener| vec![listener]).collect();
        for address in &config.serving.additional_bind_addresses {
            let (_, additional) = bind(*address, Presence::Optional)?;
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
            secure_admin,
            has_predecessor,
        })
    }
}
