//! Slow clients, and as many clients as open files allow: the proxy disconnects or rejects them, and no other client
//! is affected.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::client::TlsStream;

use crate::etcd::outages::asking_every;
use crate::http::bodies::peak;
use crate::limits::unread::next;
use testkit::client::Client;
use testkit::cluster::{LONG, Single};
use testkit::process::Process;
use testkit::proxy::ProxyOptions;
use testkit::raw::{END_STREAM, GOAWAY, HEADERS, PREFACE, SETTINGS, frame};
use testkit::registry::Registry;
use testkit::steady::Steady;
use testkit::upgraded::Upgraded;
use testkit::wait::eventually;

/// For a handshake, for a header, and between two requests.
const HANDSHAKE: Duration = Duration::from_secs(10);
const HEADER: Duration = Duration::from_secs(32);
const IDLE: Duration = Duration::from_secs(90);
/// A machine that is busy.
const SLACK: Duration = Duration::from_secs(10);
/// Between two signs of life of a client that dawdles.
const DRIP: Duration = Duration::from_millis(500);
/// Of those who are to be served.
const PACE: Duration = Duration::from_millis(250);
/// In KiB.
pub const MIB: u64 = 1 << 10;

/// These tests last: what the proxy does beside them is done no more often than it is by default.
fn rarely(options: ProxyOptions) -> ProxyOptions {
    let options = options.set("apiServer.probeInterval", "500ms");
    options.set("apiServer.discoveryInterval", "10s")
}

/// A proxy under attack: others, who are served all the time, and what memory it had before.
pub struct Ordeal {
    pub world: Single,
    others: Vec<Steady>,
    before: u64,
}

impl Ordeal {
    pub async fn begin() -> Self {
        Self::of(Single::with(rarely).await).await
    }

    /// On a machine that has much to do for the attack alone.
    pub async fn patient() -> Self {
        Self::patient_with(|options| options).await
    }

    /// `change`: of the proxy's options.
    pub async fn patient_with(change: impl Fn(ProxyOptions) -> ProxyOptions) -> Self {
        let world = Single::with(|options| change(rarely(options))).await;
        let clients = [world.admins(), world.admins()];
        let patient = |client: Client| client.timeout(2 * LONG);
        let clients = clients.map(|both| both.map(patient));
        Self::beside(world, clients).await
    }

    async fn of(world: Single) -> Self {
        let clients = [world.admins(), world.admins()];
        Self::beside(world, clients).await
    }

    async fn beside(mut world: Single, clients: [[Client; 2]; 2]) -> Self {
        for client in clients.as_flattened() {
            assert_eq!(client.get("/api/v1/pods").await.code(), 200);
        }
        let others = clients.as_flattened().iter();
        let others = others
            .map(|client| asking_every(PACE, client, "/api/v1/pods"))
            .collect();
        let before = peak(world.proxy.process().pid());
        Self {
            world,
            others,
            before,
        }
    }

    /// KiB that it ever had more than before.
    pub fn grown(&mut self) -> u64 {
        // The kernel counts in steps.
        peak(self.world.proxy.process().pid()).saturating_sub(self.before)
    }

    /// Panics if anybody else was not served, or if the proxy ever had so many MiB more than before.
    pub async fn end(mut self, most: u64) {
        for other in std::mem::take(&mut self.others) {
            other.stop().await;
        }
        let grown = self.grown();
        assert!(grown < most * MIB, "{grown} KiB more than before");
    }
}

/// Writes piece after piece, one every [`DRIP`], until the other side ends the connection: when that was.
async fn dawdle(connection: impl AsyncRead + AsyncWrite, pieces: Vec<Vec<u8>>) -> Duration {
    let started = Instant::now();
    let (mut from, mut to) = split(connection);
    let writing = async {
        for piece in pieces {
            if to.write_all(&piece).await.is_err() || to.flush().await.is_err() {
                return;
            }
            sleep(DRIP).await;
        }
        std::future::pending().await
    };
    let reading = async {
        let mut scrap = vec![0; 4096];
        while matches!(from.read(&mut scrap).await, Ok(1..)) {}
    };
    tokio::select! {
        () = writing => {}
        () = reading => {}
    }
    started.elapsed()
}

fn byte_by_byte(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.iter().map(|byte| vec![*byte]).collect()
}

/// A header that goes on for minutes.
fn endless_header() -> Vec<Vec<u8>> {
    byte_by_byte(
        format!(
            "GET /version HTTP/1.1\r\nHost: x\r\nX-A: {}",
            "a".repeat(300)
        )
        .as_bytes(),
    )
}

fn then(first: &[u8], pieces: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    [vec![first.to_vec()], pieces].concat()
}

/// The beginning of a connection of HTTP/2.
pub fn beginning() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

fn pings() -> Vec<Vec<u8>> {
    const PING: u8 = 6;
    vec![frame(PING, 0, 0, &[0; 8]); 300]
}

#[tokio::test]
async fn clients_that_dawdle_are_cut_off_and_nobody_else_is() {
    let ordeal = Ordeal::begin().await;
    let (addr, client) = (ordeal.world.proxy.addr(), ordeal.world.client());
    // The record of a ClientHello of 512 bytes.
    let hello = [&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3][..], &[0; 400]].concat();
    let request = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n";
    let half_a_header = frame(HEADERS, END_STREAM, 1, &[0x82, 0x87]);
    let cases = [
        ("says nothing", None, Vec::new(), HANDSHAKE),
        ("shakes hands slowly", None, byte_by_byte(&hello), HANDSHAKE),
        ("asks for nothing", Some("http/1.1"), Vec::new(), HEADER),
        ("asks slowly", Some("http/1.1"), endless_header(), HEADER),
        (
            "asks slowly again",
            Some("http/1.1"),
            then(request, endless_header()),
            HEADER,
        ),
        (
            "asks for nothing over HTTP/2",
            Some("h2"),
            Vec::new(),
            HEADER,
        ),
        (
            "begins HTTP/2 slowly",
            Some("h2"),
            byte_by_byte(PREFACE),
            HEADER,
        ),
        (
            "only pings",
            Some("h2"),
            then(&beginning(), pings()),
            HEADER,
        ),
        (
            "has no end of its header",
            Some("h2"),
            then(&beginning(), vec![half_a_header]),
            HEADER,
        ),
    ];
    let mut dawdlers = JoinSet::new();
    for (name, alpn, pieces, limit) in cases {
        for _ in 0..10 {
            let (client, pieces) = (client.clone(), pieces.clone());
            dawdlers.spawn(async move {
                let ended = async {
                    match alpn {
                        None => dawdle(TcpStream::connect(addr).await.unwrap(), pieces).await,
                        Some(alpn) => {
                            dawdle(client.connect_raw(&[alpn]).await.unwrap(), pieces).await
                        }
                    }
                };
                let ended = timeout(limit + SLACK, ended).await;
                (name, limit, ended.ok())
            });
        }
    }
    let mut wrong = Vec::new();
    for (name, limit, ended) in dawdlers.join_all().await {
        // Not for another reason either.
        if ended.is_none_or(|ended| ended + Duration::from_secs(1) < limit) {
            wrong.push(format!("{name}: {ended:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    ordeal.end(16).await;
}

#[tokio::test]
async fn connections_without_a_request_are_kept_for_ninety_seconds() {
    let world = Single::with(rarely).await;
    let client = world.client();
    let request = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n";
    // GET, https, /, and a host that is not indexed.
    let block = [0x82, 0x87, 0x84, 0x01, 1, b'x'];
    let asked = [beginning(), frame(HEADERS, END_STREAM | 4, 1, &block)].concat();
    let (http1, http2) = tokio::join!(
        client.connect_raw(&["http/1.1"]),
        client.connect_raw(&["h2"])
    );
    // A client that is about to ask learns that it was not.
    let told = async {
        let mut told = client.connect_raw(&["h2"]).await.unwrap();
        told.write_all(&asked).await.unwrap();
        told.flush().await.unwrap();
        let mut kinds = Vec::new();
        while let Some((kind, ..)) = next(&mut told).await {
            kinds.push(kind);
        }
        kinds
    };
    let all = async {
        tokio::join!(
            dawdle(http1.unwrap(), then(request, Vec::new())),
            dawdle(http2.unwrap(), then(&asked, pings())),
            told,
        )
    };
    let (http1, http2, told) = timeout(IDLE + SLACK, all).await.expect("all end");
    assert!(http1 > IDLE && http2 > IDLE, "{http1:?} {http2:?}");
    assert!(told.contains(&GOAWAY), "{told:?}");
}

/// A connection on which a request was answered; `None`: it was turned away.
async fn knock(client: &Client) -> Option<TlsStream<TcpStream>> {
    let mut tls = client.connect_raw(&["http/1.1"]).await.ok()?;
    ask(&mut tls).await.then_some(tls)
}

/// Whether it is answered.
async fn ask(tls: &mut TlsStream<TcpStream>) -> bool {
    let asked = tls
        .write_all(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        .await;
    let mut answer = Vec::new();
    let is_whole = |answer: &[u8]| match answer.windows(7).any(|window| window == b"chunked") {
        true => answer.ends_with(b"\r\n0\r\n\r\n"),
        false => answer.trim_ascii_end().ends_with(b"}"),
    };
    while asked.is_ok() && !is_whole(&answer) {
        if !matches!(tls.read_buf(&mut answer).await, Ok(1..)) {
            return false;
        }
    }
    answer.starts_with(b"HTTP/1.1 200 ")
}

/// Seconds of a processor that a process has used.
fn used(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<_> = fields.split(' ').collect();
    // User and system time, in hundredths.
    let hundredths = |index: usize| fields[index].parse::<f64>().unwrap();
    (hundredths(11) + hundredths(12)) / 100.0
}

/// Panics if it is busy for most of the next seconds. It has some to do for others.
async fn is_calm(process: &mut Process) {
    let (before, time) = (used(process.pid()), Duration::from_secs(3));
    sleep(time).await;
    let busy = (used(process.pid()) - before) / time.as_secs_f64();
    assert!(busy < 0.6, "{:.0} % of a processor", busy * 100.0);
}

/// Panics if what is written to etcd is not seen on the status page.
async fn follows_etcd(world: &Single, id: &str) {
    let registry = Registry::new(world.ground.etcd.client().await, "/registry");
    let revision = registry
        .put_record(id, 20001, "w.example/v1", &["things"])
        .await;
    registry.put_live(id, 20001, true, revision).await;
    eventually("etcd is followed", LONG, async || {
        let status = world.proxy.statusz().await;
        let peers = status["peers"].as_array().unwrap();
        peers
            .iter()
            .any(|peer| peer["id"] == id && peer["target"] == true)
    })
    .await;
}

/// Files that the proxy may have, and how many of them clients may.
const FILES: usize = 200;
const CLIENTS: usize = (FILES - 64) / 2;

async fn with_few_files() -> Ordeal {
    let few = |options| rarely(options).files(FILES);
    Ordeal::of(Single::with(few).await).await
}

#[tokio::test]
async fn clients_beyond_what_files_allow_are_turned_away() {
    let mut ordeal = with_few_files().await;
    let client = ordeal.world.client();
    let (mut open, mut refused) = (Vec::new(), 0);
    for _ in 0..2 * CLIENTS {
        match timeout(LONG, knock(&client)).await.expect("yes or no") {
            Some(tls) => open.push(tls),
            None => refused += 1,
        }
    }
    // Those that are served all the time are four.
    assert_eq!(open.len(), CLIENTS - 4);
    let world = &mut ordeal.world;
    let metric = async |name| world.proxy.metric(name, &[]).await;
    let counted = metric("kube_interop_proxy_refused_connections_total").await;
    assert_eq!(counted, f64::from(refused));
    let counted = metric("kube_interop_proxy_connections").await;
    assert_eq!(counted, CLIENTS as f64);
    for tls in &mut open {
        assert!(timeout(LONG, ask(tls)).await.expect("an answer"));
    }
    follows_etcd(world, "seen-when-full").await;
    is_calm(world.proxy.process()).await;
    drop(open);
    eventually("others are let in", LONG, async || {
        knock(&client).await.is_some()
    })
    .await;
    ordeal.end(32).await;
}

#[tokio::test]
async fn requests_do_not_take_the_files_that_the_proxy_needs_itself() {
    const UPGRADE: &str = "GET /_double/upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
    let mut ordeal = with_few_files().await;
    let client = ordeal.world.client().cert("admin");
    // Each has a connection of its own on both sides.
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..CLIENTS - 4 {
        let upgraded = timeout(LONG, Upgraded::open(&client, UPGRADE, b""));
        match upgraded.await.expect("yes or no") {
            Ok(upgraded) => open.push(upgraded),
            Err(_) => refused += 1,
        }
    }
    assert!(open.len() > 20 && refused > 0, "{} {refused}", open.len());
    let world = &mut ordeal.world;
    let files = world.proxy.process().files();
    assert!(files <= FILES - 32, "{files}");
    follows_etcd(world, "seen-when-full").await;
    is_calm(world.proxy.process()).await;
    drop(open);
    eventually("upgrades are possible again", LONG, async || {
        Upgraded::open(&client, UPGRADE, b"").await
    })
    .await;
    ordeal.end(32).await;
}

/// Sets the limit of open files of a running process.
fn limit_files(pid: u32, most: &str) {
    let limit = format!("--nofile={most}:");
    let mut command = std::process::Command::new("prlimit");
    command.args(["--pid", &pid.to_string(), &limit]);
    let status = command.status().expect("prlimit");
    assert!(status.success(), "prlimit {limit}: {status}");
}

#[tokio::test]
async fn without_any_file_left_open_connections_are_served_and_later_ones_wait() {
    let mut ordeal = Ordeal::begin().await;
    let (pid, client) = (ordeal.world.proxy.process().pid(), ordeal.world.client());
    follows_etcd(&ordeal.world, "seen-before").await;
    limit_files(pid, "16");
    let mut waiting = JoinSet::new();
    for _ in 0..30 {
        let client = client.clone();
        waiting.spawn(async move { knock(&client).await.is_some() });
    }
    is_calm(ordeal.world.proxy.process()).await;
    assert!(waiting.try_join_next().is_none(), "nobody was let in");
    let log = std::fs::read_to_string(ordeal.world.proxy.process().log()).unwrap();
    let warnings = log.matches("new clients are refused").count();
    let threads = std::thread::available_parallelism().unwrap().get();
    assert!((1..=threads).contains(&warnings), "{log}");

    limit_files(pid, "4096");
    let let_in = timeout(LONG, waiting.join_all()).await.expect("answers");
    assert!(let_in.into_iter().all(|let_in| let_in));
    follows_etcd(&ordeal.world, "seen-after").await;
    ordeal.end(32).await;
}
