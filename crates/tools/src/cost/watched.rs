//! A server of watches. What is no watch goes on to the double.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use testkit::addr::Loopback;
use testkit::client::Client;
use testkit::cluster::Ground;
use testkit::double::body::{Answer, Body, channel, full};
use testkit::double::tls::server_config;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_rustls::TlsAcceptor;

/// Of a watch's events.
pub const EVENT_SIZE: usize = 300;
/// Of all namespaces.
const LIST: &str = "/api/v1/configmaps";
/// As many as kube-apiserver lets an authenticated client have.
const MOST_STREAMS: u32 = 250;
const PORT: u16 = 6443;
const ALPN: &[&str] = &["h2", "http/1.1"];

/// Answers watches at once, with an event every so often, or none.
pub struct Watched {
    address: Loopback,
    settings: Arc<Settings>,
    /// With it go its connections.
    serving: JoinSet<()>,
}

struct Settings {
    every: Option<Duration>,
    double: Client,
    /// The etcd that it says it keeps its objects in.
    etcd: etcd_client::Client,
    /// So that watches do not tick together.
    watches: AtomicU32,
    /// When each watch began.
    begun: Mutex<Vec<Instant>>,
    connections: AtomicUsize,
    /// The revision of an event that all watches get now.
    event: watch::Sender<i64>,
}

impl Watched {
    pub async fn start(ground: &Ground, double: SocketAddr, every: Option<Duration>) -> Self {
        let (address, listener, tls) = ground.listen(ALPN).await;
        let settings = Arc::new(Settings {
            every,
            double: Client::new(double, &ground.pki),
            etcd: ground.etcd.client().await,
            watches: AtomicU32::new(0),
            begun: Mutex::default(),
            connections: AtomicUsize::new(0),
            event: watch::Sender::new(0),
        });
        let mut serving = JoinSet::new();
        serving.spawn(accept(listener, tls, Arc::clone(&settings)));
        Self {
            address,
            settings,
            serving,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address.socket(PORT)
    }

    /// Breaks all connections, as a process does that is killed. What it has counted is forgotten.
    pub async fn stop(&mut self) {
        self.serving.shutdown().await;
        self.settings.begun.lock().unwrap().clear();
        self.settings.connections.store(0, Ordering::Relaxed);
    }

    /// Listens again.
    pub async fn start_again(&mut self, ground: &Ground) {
        let listener = TcpListener::bind(self.address()).await.expect("a listener");
        let tls = TlsAcceptor::from(Arc::new(server_config(ground.pki.dir(), ALPN)));
        self.serving
            .spawn(accept(listener, tls, Arc::clone(&self.settings)));
    }

    /// When each watch began.
    pub fn begun(&self) -> Vec<Instant> {
        self.settings.begun.lock().unwrap().clone()
    }

    /// Connections that it has taken.
    pub fn connections(&self) -> usize {
        self.settings.connections.load(Ordering::Relaxed)
    }

    /// All watches that are open get an event of this revision.
    pub fn send(&self, revision: i64) {
        self.settings.event.send_replace(revision);
    }
}

async fn accept(listener: TcpListener, tls: TlsAcceptor, settings: Arc<Settings>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (tcp, _) = accepted.expect("a connection");
                connections.spawn(serve(tcp, tls.clone(), Arc::clone(&settings)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(tcp: TcpStream, tls: TlsAcceptor, settings: Arc<Settings>) {
    let nodelay = tcp.set_nodelay(true);
    let (Ok(()), Ok(stream)) = (nodelay, tls.accept(tcp).await) else {
        return;
    };
    settings.connections.fetch_add(1, Ordering::Relaxed);
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http2().max_concurrent_streams(MOST_STREAMS);
    let service = service_fn(|request| answer(request, Arc::clone(&settings)));
    // How a connection ends is its client's doing.
    let _ = builder
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(request: Request<Incoming>, settings: Arc<Settings>) -> Answer {
    let query = request.uri().query();
    let has = |part| query.is_some_and(|query| query.contains(part));
    match (has("watch="), request.uri().path()) {
        (true, _) => Ok(watch(&settings)),
        (false, LIST) if has("limit=1") => list(settings.etcd.clone()).await,
        _ => pass_on(&request, &settings.double).await,
    }
}

/// What proves that a server keeps its objects in this etcd: there are none.
async fn list(mut etcd: etcd_client::Client) -> Answer {
    let answer = etcd.get("any", None).await?;
    let revision = answer.header().map_or(0, |header| header.revision());
    let metadata = format!(r#""metadata":{{"resourceVersion":"{revision}"}},"items":[]"#);
    let kind = r#""kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1""#;
    Ok(of_json(full(format!("{{{kind},{metadata}}}"))))
}

fn of_json(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

fn watch(settings: &Arc<Settings>) -> Response<Body> {
    let (sender, body) = channel();
    let turn = settings.watches.fetch_add(1, Ordering::Relaxed);
    settings.begun.lock().unwrap().push(Instant::now());
    match settings.every {
        Some(every) => tokio::spawn(send_events(sender, every, turn)),
        None => tokio::spawn(send_wanted(sender, settings.event.subscribe())),
    };
    of_json(body)
}

async fn send_events<E>(sender: Sender<Result<Bytes, E>>, every: Duration, turn: u32) {
    let phase = every * (turn.wrapping_mul(617) % 1000) / 1000;
    let mut ticks = interval_at(Instant::now() + phase, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for revision in 2.. {
        tokio::select! {
            _ = ticks.tick() => {}
            () = sender.closed() => return,
        }
        if sender.send(Ok(event(revision))).await.is_err() {
            return;
        }
    }
}

async fn send_wanted<E>(sender: Sender<Result<Bytes, E>>, mut wanted: watch::Receiver<i64>) {
    loop {
        tokio::select! {
            _ = wanted.changed() => {}
            () = sender.closed() => return,
        }
        let revision = *wanted.borrow_and_update();
        if sender.send(Ok(event(revision))).await.is_err() {
            return;
        }
    }
}

fn event(revision: i64) -> Bytes {
    let head = format!(
        r#"{{"type":"MODIFIED","object":{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"x","namespace":"default","resourceVersion":"{revision}"}},"data":{{"x":""#
    );
    let tail = "\"}}}\n";
    let fill = EVENT_SIZE.saturating_sub(head.len() + tail.len());
    format!("{head}{}{tail}", "x".repeat(fill)).into()
}

/// What proxies ask for themselves: documents, without a body.
async fn pass_on(request: &Request<Incoming>, double: &Client) -> Answer {
    let mut client = double.clone();
    if request.headers().contains_key("x-remote-user") {
        client = client.cert("front-proxy-client");
    }
    for (name, value) in request
        .headers()
        .iter()
        .filter(|(name, _)| *name != header::HOST)
    {
        client = client.header(name.as_str(), value.to_str()?);
    }
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", |path| path.as_str());
    let answer = client
        .try_request(request.method().as_str(), path, "")
        .await?;
    let mut response = Response::new(full(answer.body));
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    Ok(response)
}
