//! The listener, its connections, and the handle by which tests hold the double.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use super::auth::{Rule, subject};
use super::client_connection::ClientConnection;
use super::front_door::{FrontDoor, Watched};
use super::handler::handle;
use super::record::Recorded;
use super::resources::{Preset, ServedResource};
use super::state::{DoubleOptions, Fault, Phase, State};
use super::store::Store;
use super::tls::server_config;
use super::upgrade;
use crate::addr::Loopback;

const PORT: u16 = 6443;
/// Of bytes, and for both versions of HTTP.
const LARGEST_HEADER: u32 = (1 << 20) + (8 << 10);
const STREAM_WINDOW: u32 = 256 << 10;

pub struct Double {
    state: Arc<State>,
    server: Arc<Server>,
    running: Option<Running>,
    /// Keeps the address ours; `None` if it was given.
    _address: Option<Loopback>,
}

struct Server {
    state: Arc<State>,
    tls: ArcSwap<ServerConfig>,
    files: (PathBuf, Vec<&'static str>),
    max_streams: u32,
    settings_after: Duration,
    ends_unknown: bool,
    connections: AtomicU64,
    open: Mutex<HashSet<u64>>,
    orders: watch::Sender<Order>,
}

/// What all connections that are open when it is given are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Serve,
    /// GOAWAY, or `Connection: close`; what runs may finish.
    GoAway,
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Nothing,
    Listening,
    All,
}

struct Running {
    stop: watch::Sender<Stop>,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // With the task go its listener and all connections.
        self.task.abort();
    }
}

impl Double {
    pub async fn start(options: DoubleOptions) -> Self {
        let (own, addr) = match options.listen {
            Some(addr) => (None, addr),
            None => {
                let own = Loopback::new();
                let addr = own.socket(PORT);
                (Some(own), addr)
            }
        };
        let listener = listen(addr).await;
        let addr = listener.local_addr().expect("the listener's address");
        let state = Arc::new(State::new(&options, addr));
        let server = Arc::new(Server {
            state: Arc::clone(&state),
            tls: ArcSwap::from_pointee(server_config(&options.pki, &options.alpn)),
            files: (options.pki.clone(), options.alpn.clone()),
            max_streams: options.max_streams,
            settings_after: options.settings_after,
            ends_unknown: options.ends_unknown,
            connections: AtomicU64::new(0),
            open: Mutex::default(),
            orders: watch::Sender::new(Order::Serve),
        });
        let running = Some(run(&server, listener));
        Self {
            state,
            server,
            running,
            _address: own,
        }
    }

    pub fn addr(&self) -> SocketAddr {
        self.state.addr
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.state.store
    }

    // What arrived.

    pub fn requests(&self) -> Vec<Recorded> {
        self.state.recorder.all()
    }

    /// The requests so far, which are forgotten.
    pub fn take_requests(&self) -> Vec<Recorded> {
        self.state.recorder.take()
    }

    pub fn count(&self, path_prefix: &str) -> usize {
        self.state.recorder.count(path_prefix)
    }

    pub fn open_connections(&self) -> usize {
        self.server.open.lock().unwrap().len()
    }

    pub fn connection_is_closed(&self, id: u64) -> bool {
        !self.server.open.lock().unwrap().contains(&id)
    }

    /// Upgraded ones, which are not among the open connections.
    pub fn open_upgrades(&self) -> usize {
        self.state.upgraded.load(Ordering::SeqCst)
    }

    /// How many there have been since the start.
    pub fn accepted_connections(&self) -> u64 {
        self.server.connections.load(Ordering::SeqCst)
    }

    // How it behaves.

    pub fn set_ready(&self, ready: bool) {
        self.set_phase(if ready { Phase::Ready } else { Phase::NotReady });
    }

    pub fn set_phase(&self, phase: Phase) {
        self.state.write(|settings| settings.phase = phase);
    }

    pub fn add_resource(&self, resource: ServedResource) {
        self.state
            .write(|settings| settings.preset.resources.push(resource));
    }

    pub fn remove_group(&self, group: &str) {
        self.change_preset(|preset| preset.without_group(group));
    }

    pub fn remove_resource(&self, group: &str, resource: &str) {
        self.change_preset(|preset| preset.without_resource(group, resource));
    }

    pub fn change_preset(&self, change: impl FnOnce(Preset) -> Preset) {
        self.state
            .write(|settings| settings.preset = change(settings.preset.clone()));
    }

    /// `/apis` no longer names a group (`autoscaling`) or group version (`autoscaling/v1`) that is served all the same,
    /// nor does `/apis/<group>` while another version of the group is named.
    pub fn hide_from_group_list(&self, name: &str) {
        self.state
            .write(|settings| settings.hidden.insert(name.to_owned()));
    }

    /// Aggregated discovery does not name what is hidden either.
    pub fn hide_from_aggregated(&self) {
        self.state
            .write(|settings| settings.hidden_from_aggregated = true);
    }

    /// Everything that is served is named again.
    pub fn hide_nothing(&self) {
        self.state.write(|settings| {
            settings.hidden.clear();
            settings.hidden_from_aggregated = false;
        });
    }

    /// Lets a user or a group ask for everything below a path.
    pub fn allow(&self, who: &str, path_prefix: &str) {
        let rule = Rule {
            who: who.to_owned(),
            path_prefix: path_prefix.to_owned(),
        };
        self.state.write(|settings| settings.rules.push(rule));
    }

    /// Sets or clears what happens to requests below `path_prefix`.
    pub fn set_fault(&self, path_prefix: &str, fault: Option<Fault>) {
        self.state.write(|settings| {
            settings.faults.retain(|(prefix, _)| prefix != path_prefix);
            settings
                .faults
                .extend(fault.map(|fault| (path_prefix.to_owned(), fault)));
        });
    }

    /// Answers 101 to HTTP/1.1 connections before anything was read of them.
    pub fn set_instant_upgrades(&self, instant: bool) {
        self.state
            .write(|settings| settings.instant_upgrades = instant);
    }

    /// Watches that start at an older revision get 410.
    pub fn set_history_start(&self, revision: u64) {
        self.state
            .write(|settings| settings.history_start = revision);
    }

    /// Their 410 is the HTTP status, not the first event.
    pub fn set_expired_as_status(&self, is_status: bool) {
        self.state
            .write(|settings| settings.expired_as_status = is_status);
    }

    /// Every watch that wants bookmarks gets one.
    pub fn bookmark_now(&self) {
        self.state.bookmarks.send_modify(|asked| *asked += 1);
    }

    /// Reads its certificate and CA files again, as kube-apiserver does by itself.
    pub fn reload_certificates(&self) {
        let (pki, alpn) = &self.server.files;
        self.server.tls.store(Arc::new(server_config(pki, alpn)));
        self.state.reload_authorities(pki);
    }

    // Coming and going.

    /// HTTP/2 connections get GOAWAY, HTTP/1.1 ones are closed after their answer; new ones are accepted.
    pub fn go_away(&self) {
        self.server.orders.send_replace(Order::GoAway);
    }

    /// Cuts every connection; new ones are accepted.
    pub fn drop_connections(&self) {
        self.server.orders.send_replace(Order::Close);
    }

    /// As an apiserver without a shutdown delay that is told to stop: new connections are refused, open ones last for as long
    /// as what runs on them.
    pub fn close_port(&mut self) {
        if let Some(running) = &self.running {
            running.stop.send_replace(Stop::Listening);
        }
        self.go_away();
    }

    /// Ends all running watches cleanly.
    pub fn end_watches(&self) {
        self.state.watches_end.send_replace(());
    }

    /// Cuts every connection; new ones are refused.
    pub async fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            running.stop.send_replace(Stop::All);
            // An error means that the task has ended, as wanted.
            let _ = (&mut running.task).await;
        }
    }

    /// Listens again at the same address, not ready, with no watch history from before.
    pub async fn start_again(&mut self) {
        self.stop().await;
        let revision = self.state.store.revision();
        self.state.write(|settings| {
            settings.phase = Phase::Bootstrapping;
            settings.history_start = revision;
        });
        let listener = listen(self.addr()).await;
        self.running = Some(run(&self.server, listener));
    }

    /// Simulates a restart of the process. Ready only after [`Double::set_ready`].
    pub async fn restart(&mut self) {
        self.start_again().await;
    }
}

async fn listen(addr: SocketAddr) -> TcpListener {
    TcpListener::bind(addr)
        .await
        .unwrap_or_else(|error| panic!("cannot listen on {addr}: {error}"))
}

fn run(server: &Arc<Server>, listener: TcpListener) -> Running {
    let (stop, stopped) = watch::channel(Stop::Nothing);
    let task = tokio::spawn(accept(Arc::clone(server), listener, stopped));
    Running { stop, task }
}

async fn accept(server: Arc<Server>, listener: TcpListener, mut stop: watch::Receiver<Stop>) {
    let mut connections = JoinSet::new();
    let mut listener = Some(listener);
    loop {
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            accepted = accepted => {
                if let Ok((tcp, _)) = accepted {
                    connections.spawn(serve(Arc::clone(&server), tcp));
                }
            }
            Some(_) = connections.join_next() => {}
            _ = stop.changed() => match *stop.borrow_and_update() {
                Stop::Listening => listener = None,
                _ => break,
            },
        }
    }
    drop(listener);
    connections.shutdown().await;
}

/// Counts a connection while it lives.
struct Open<'a>(&'a Mutex<HashSet<u64>>, u64);

impl<'a> Open<'a> {
    fn new(open: &'a Mutex<HashSet<u64>>, id: u64) -> Self {
        open.lock().unwrap().insert(id);
        Self(open, id)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.lock().unwrap().remove(&self.1);
    }
}

async fn serve(server: Arc<Server>, tcp: TcpStream) {
    let connection_id = server.connections.fetch_add(1, Ordering::SeqCst) + 1;
    let _open = Open::new(&server.open, connection_id);
    let mut orders = server.orders.subscribe();
    let nodelay = tcp.set_nodelay(true);
    let accepted = TlsAcceptor::from(server.tls.load_full()).accept(tcp).await;
    // A handshake that fails is the client's to notice.
    let (Ok(()), Ok(tls)) = (nodelay, accepted) else {
        return;
    };
    let instant = server.state.read(|settings| settings.instant_upgrades);
    if instant && tls.get_ref().1.alpn_protocol() == Some(b"http/1.1") {
        // How the stream ends is its client's doing.
        let _ = upgrade::at_once(&server.state, tls).await;
        return;
    }
    tokio::time::sleep(server.settings_after).await;
    let chain = tls
        .get_ref()
        .1
        .peer_certificates()
        .unwrap_or_default()
        .to_vec();
    let cn = chain
        .first()
        .and_then(|leaf| subject(leaf))
        .and_then(|subject| subject.cn);
    let http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
    let door = (http2 && server.ends_unknown).then(Arc::<FrontDoor>::default);
    let tls = Watched::new(tls, door.clone());
    let client = Arc::new(ClientConnection {
        connection_id,
        goaway: Notify::new(),
        chain,
        cn,
        door,
    });
    let service =
        service_fn(|request| handle(Arc::clone(&server.state), Arc::clone(&client), request));
    let mut builder = Builder::new(TokioExecutor::new());
    // As kube-apiserver: what one stream leaves unread takes nothing from the others.
    let connection_window = STREAM_WINDOW.saturating_mul(server.max_streams);
    builder
        .http2()
        .max_concurrent_streams(server.max_streams)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(connection_window)
        .max_header_list_size(LARGEST_HEADER);
    let largest = LARGEST_HEADER as usize;
    builder.http1().max_headers(8192).max_buf_size(largest);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(tls), service);
    let mut connection = std::pin::pin!(connection);
    loop {
        tokio::select! {
            // How a connection ends is no concern of the server.
            _ = connection.as_mut() => return,
            () = client.goaway.notified() => connection.as_mut().graceful_shutdown(),
            _ = orders.changed() => match *orders.borrow_and_update() {
                Order::Serve => {}
                Order::GoAway => connection.as_mut().graceful_shutdown(),
                Order::Close => return,
            },
        }
    }
}
