//! The whole service, as it runs in a serving thread: clients are in memory, servers on loopback addresses.
//!
//! The clock is paused: it moves on when everybody waits. Each run has a service of its own; what takes long to make is
//! made once.
#![allow(dead_code, reason = "each target uses a part of it")]

pub mod frames;
mod pki;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use kube_interop_proxy::cluster::catalog::{OwnServer, Published};
use kube_interop_proxy::config::settings::SharedSettings;
use kube_interop_proxy::config::{Config, parse};
use kube_interop_proxy::kube::gvr::{Custom, Definition, Gvr, Pair, ServedSet};
use kube_interop_proxy::kube::requestheader::{NameList, PublishedNames};
use kube_interop_proxy::local::state::LocalState;
use kube_interop_proxy::relay::client::Downstream;
use kube_interop_proxy::relay::documents::Cache;
use kube_interop_proxy::relay::observe::Metrics;
use kube_interop_proxy::relay::recovery;
use kube_interop_proxy::relay::service::RelayService;
use kube_interop_proxy::relay::shared::{Callers, Limits, ServerStates, Shared};
use kube_interop_proxy::request::caller::ClientConnection;
use kube_interop_proxy::request::headers::PrivilegedHeaders;
use kube_interop_proxy::routing::table::{Server, ServerKind, Snapshot};
use kube_interop_proxy::server::socket::ClientSocket;
use kube_interop_proxy::server::{http2, rotate};
use kube_interop_proxy::shutdown::{Shutdown, ShutdownPhase};
use kube_interop_proxy::tls::credentials::{Credentials, Current};
use kube_interop_proxy::tls::verify::ClientCas;
use kube_interop_proxy::watches::WatchState;
use kube_interop_proxy::watches::change_logs::ChangeLogs;
use kube_interop_proxy::watches::stored_here::StoredHere;
use kube_interop_proxy::x509::Roots;
use prometheus::Registry;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use tokio::io::DuplexStream;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use self::pki::{Pki, SERVER_NAME};

/// The address of all clients.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
const BUFFER: usize = 64 << 10;
/// What has not ended after this time will never end.
pub const LONG: Duration = Duration::from_secs(900);

pub static WORLD: LazyLock<World> = LazyLock::new(World::new);

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, arbitrary::Arbitrary)]
pub enum Client {
    Anonymous,
    /// The user `alice` of the group `devs`.
    Alice,
    Peer,
    /// With a certificate of an unknown CA.
    Stranger,
}

pub struct World {
    pki: Pki,
    config: Config,
    credentials: Arc<Credentials>,
    /// Of the proxy, and of the servers.
    tls: Arc<ServerConfig>,
    local: std::net::TcpListener,
    peer: std::net::TcpListener,
}

/// Where the servers of one run are reached.
pub struct Servers {
    pub local: TcpListener,
    pub peer: TcpListener,
}

/// A runtime whose clock is paused.
pub fn runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().start_paused(true);
    builder.build().expect("a runtime")
}

impl World {
    /// Within a runtime.
    fn new() -> Self {
        // As Rust's runtime does, which libFuzzer's programs do not have. It stays in force without the handle.
        drop(signal(SignalKind::pipe()).expect("a runtime"));
        let listen = || std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let (local, peer) = (listen(), listen());
        for listener in [&local, &peer] {
            listener.set_nonblocking(true).expect("a socket");
        }
        let pki = Pki::new();
        let config = pki.config(local.local_addr().expect("an address"));
        let config = parse(&config).expect("a configuration");
        let (certificates, _, _) = rotate::begin(&config).expect("certificates");
        Self {
            pki,
            config,
            credentials: certificates.credentials.load_full(),
            tls: certificates.server.load().at(None).clone(),
            local,
            peer,
        }
    }

    /// TLS of a server. `http2`: whether it has HTTP/2.
    pub fn server_tls(&self, http2: bool) -> Arc<ServerConfig> {
        if http2 {
            return self.tls.clone();
        }
        let mut tls = ServerConfig::clone(&self.tls);
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(tls)
    }

    /// Within a runtime.
    pub fn servers(&self) -> Servers {
        let listen = |listener: &std::net::TcpListener| {
            let listener = listener.try_clone().expect("a socket");
            TcpListener::from_std(listener).expect("a socket")
        };
        Servers {
            local: listen(&self.local),
            peer: listen(&self.peer),
        }
    }

    /// A service of its own. `tasks`: what it needs in the background.
    pub fn service(&self, tasks: &mut JoinSet<()>) -> Service {
        let peer = self.peer.local_addr().expect("an address");
        let local_state = Arc::new(LocalState::default());
        local_state.answered(true, 0);
        local_state.is_of_version("v1.36.0", 0);
        local_state.begins_at(100, 0);
        let names = &self.config.serving.request_headers;
        local_state
            .surplus_headers
            .set(&PrivilegedHeaders::new(names), &published_names());
        let (published, _) = Published::new();
        published.snapshot.store(Arc::new(snapshot(peer)));
        let own = OwnServer {
            id: watch::channel(Some("a".into())).1,
            apiserver_id: watch::channel(None).1,
            endpoint: self.config.peer.advertise_address,
        };
        let credentials: Current = Arc::new(ArcSwap::from(self.credentials.clone()));
        let metrics = Metrics::new(&Registry::new()).expect("metrics");
        let [users, peers] =
            [&self.pki.users, &self.pki.peers].map(|ca| Roots::new(&[ca.der()]).expect("a CA"));
        let cas = ClientCas { users, peers };
        let config = self.config.clone();
        let shared = Arc::new(Shared {
            settings: Arc::new(SharedSettings::new(&config)),
            own,
            callers: Callers::new(&config.serving, cas),
            credentials,
            published,
            peer_discovery: Arc::default(),
            local: local_state,
            announcement: Arc::default(),
            servers: ServerStates::default(),
            merge_cache: Cache::default(),
            watches: WatchState {
                change_logs: ChangeLogs::new().0,
                stored_here: Arc::new(StoredHere::new().0),
            },
            limits: Limits::new(metrics.unread.clone()),
            metrics,
            tracer: None,
            shutdown: Shutdown::new(config.shutdown.drain),
            control_panicked: Arc::default(),
            config,
        });
        recovery::start(&shared, tasks).expect("clients");
        Service {
            relay: Arc::new(RelayService::new(shared.clone())),
            shared,
        }
    }

    /// TLS of a client over HTTP/1.1.
    fn client_tls(&self, client: Client) -> Arc<ClientConfig> {
        self.pki.client_tls(client, &self.credentials.local.without)
    }
}

pub struct Service {
    relay: Arc<RelayService>,
    shared: Arc<Shared>,
}

impl Service {
    /// The proxy stops: connections end after their requests.
    pub fn close(&self) {
        self.shared.shutdown.enter(ShutdownPhase::Draining);
    }

    /// Requests that have not ended.
    pub fn running(&self) -> i64 {
        let metrics = &self.shared.metrics;
        metrics.in_flight.get() + metrics.long_running.get()
    }

    /// A connection of HTTP/2, without TLS. The future is to be spawned.
    pub fn http2(&self, client: Client) -> (DuplexStream, impl Future<Output = ()> + use<>) {
        let (ours, theirs) = tokio::io::duplex(BUFFER);
        let chain = WORLD.pki.chain(client);
        let connection = ClientConnection::new(CLIENT.into(), 7, chain);
        let downstream = Arc::new(Downstream::new(connection));
        let unread = self.shared.limits.unread.clone();
        let socket = ClientSocket::new(theirs, downstream.clone(), unread);
        let relay = self.relay.clone();
        let serving = async move { http2::serve(&relay, socket, &downstream).await };
        (ours, serving)
    }

    /// A connection of HTTP/1.1, over TLS.
    pub async fn http1(
        &self,
        client: Client,
    ) -> (TlsStream<DuplexStream>, impl Future<Output = ()> + use<>) {
        let (ours, theirs) = tokio::io::duplex(BUFFER);
        let accept = TlsAcceptor::from(WORLD.tls.clone()).accept(theirs);
        let connector = TlsConnector::from(WORLD.client_tls(client));
        let name = ServerName::try_from(SERVER_NAME).expect("a name");
        let (theirs, ours) = tokio::join!(accept, connector.connect(name, ours));
        let relay = self.relay.clone();
        let theirs = theirs.expect("a handshake");
        let chain = theirs.get_ref().1.peer_certificates().unwrap_or_default();
        let connection = ClientConnection::new(CLIENT.into(), 7, chain.to_vec());
        let downstream = Arc::new(Downstream::new(connection));
        let unread = self.shared.limits.unread.clone();
        let socket = ClientSocket::new(theirs, downstream.clone(), unread);
        let serving = async move { relay.serve_http1(socket, &downstream).await };
        (ours.expect("a handshake"), serving)
    }
}

/// Those of the configuration.
fn published_names() -> PublishedNames {
    let users = r#"["X-Remote-User"]"#.to_owned();
    let data = BTreeMap::from([(NameList::Username.field().to_owned(), users)]);
    PublishedNames::read(&data).expect("names")
}

/// `pods` is served here, `things` by a peer, `deployments` by both, and `widgets` is custom.
fn snapshot(peer: SocketAddr) -> Snapshot {
    let gvr = |(group, resource, subresource): (&str, &str, &str)| Gvr {
        group: group.to_owned(),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        subresource: subresource.to_owned(),
    };
    let subresources = ["", "exec", "log", "proxy"].map(|name| gvr(("", "pods", name)));
    let deployments = gvr(("apps", "deployments", ""));
    let local: ServedSet = subresources
        .into_iter()
        .chain([deployments.clone()])
        .collect();
    let served: ServedSet = [deployments, gvr(("example.com", "things", ""))].into();
    let server = Server {
        id: "b".into(),
        endpoint: peer,
        kind: ServerKind::Proxied,
        live: true,
        initialized: true,
        target: true,
        ready: true,
        binary_version: Some("v1.20.2".to_owned()),
        version: "1.20".parse().ok(),
        history_start: Some(10),
        history_void: false,
        draining: false,
        known: true,
        served: Some(Arc::new(served)),
    };
    let mut custom = Custom::default();
    let widgets = Pair("example.com".to_owned(), "widgets".to_owned());
    custom.definitions.insert(widgets, Definition::default());
    Snapshot::new(true, vec![server], Some(&local), Arc::new(custom))
}
