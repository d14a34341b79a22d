//! A server of watches. What is no watch goes on to the double.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
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
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::Sender;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_rustls::TlsAcceptor;

/// Of a watch's events.
pub const EVENT_SIZE: usize = 300;
/// As many as kube-apiserver lets an authenticated client have.
const MOST_STREAMS: u32 = 250;

/// Answers watches at once, with an event every so often, or none.
pub struct Watched {
    address: Loopback,
    /// With it go its connections.
    _serving: JoinSet<()>,
}

struct Settings {
    every: Option<Duration>,
    double: Client,
    /// So that watches do not tick together.
    watches: AtomicU32,
}

impl Watched {
    pub async fn start(ground: &Ground, double: SocketAddr, every: Option<Duration>) -> Self {
        let (address, listener, tls) = ground.listen(&["h2", "http/1.1"]).await;
        let settings = Arc::new(Settings {
            every,
            double: Client::new(double, &ground.pki),
            watches: AtomicU32::new(0),
        });
        let mut serving = JoinSet::new();
        serving.spawn(accept(listener, tls, settings));
        Self {
            address,
            _serving: serving,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address.socket(6443)
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
    match query.is_some_and(|query| query.contains("watch=")) {
        true => Ok(watch(&settings)),
        false => pass_on(&request, &settings.double).await,
    }
}

fn watch(settings: &Settings) -> Response<Body> {
    let (sender, body) = channel();
    let turn = settings.watches.fetch_add(1, Ordering::Relaxed);
    tokio::spawn(send_events(sender, settings.every, turn));
    let mut response = Response::new(body);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

async fn send_events<E>(sender: Sender<Result<Bytes, E>>, every: Option<Duration>, turn: u32) {
    let Some(every) = every else {
        return sender.closed().await;
    };
    let phase = every * (turn.wrapping_mul(617) % 1000) / 1000;
    let mut ticks = interval_at(Instant::now() + phase, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for revision in 2_u64.. {
        tokio::select! {
            _ = ticks.tick() => {}
            () = sender.closed() => return,
        }
        if sender.send(Ok(event(revision))).await.is_err() {
            return;
        }
    }
}

fn event(revision: u64) -> Bytes {
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
