//! Clients that do not read their answers: the proxy buffers little for them, disconnects them in the end, and no
//! other client is affected.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::client::TlsStream;

use crate::limits::clients::{MIB, Ordeal};
use crate::limits::http2::{get, streams};
use testkit::client::Client;
use testkit::cluster::LONG;
use testkit::proxy::{Proxy, ProxyOptions};
use testkit::raw::{DATA, PREFACE, RESET, SETTINGS, WINDOW_UPDATE, frame};
use testkit::upgraded::Upgraded;
use testkit::wait::{eventually, holds};

/// One object that somebody may read.
const OBJECT: &str = "/_double/big?bytes=230000";
/// More than any socket takes.
const BIG: &str = "/_double/big?bytes=50000000";
const WATCH: &str = "/api/v1/namespaces/busy/configmaps?watch=true";
const LOG: &str = "/api/v1/namespaces/busy/pods/x/log";
/// As many as a connection may have.
const STREAMS: usize = 250;
/// A window that is never used up.
const WIDE: u32 = (1 << 31) - 1;
/// MiB that the proxy may grow by. 256 are what unread answers may hold as it counts them, and a quarter of that until
/// they are given up; requests take more in a program that is not optimized.
const MOST: u64 = 416;
const RESETS: &str = "kube_interop_proxy_unread_resets_total";
const HELD: &str = "kube_interop_proxy_unread_bytes";
/// When a client that takes nothing is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// All is asked for in the first seconds.
const HOLD: Duration = Duration::from_secs(20);
/// It is looked once a second, on a machine that may be busy.
const SLACK: Duration = Duration::from_secs(15);

/// A connection on which so many requests were written; nothing of what comes is read. `window`: of each stream; the
/// connection's is wide.
pub async fn asked(client: &Client, window: u32, count: usize, path: &str) -> TlsStream<TcpStream> {
    let mut tls = client.connect_raw(&["h2"]).await.unwrap();
    let settings = [&[0, 4][..], &u32::to_be_bytes(window)].concat();
    let wider = u32::to_be_bytes(WIDE - 65_535);
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &settings));
    bytes.extend(frame(WINDOW_UPDATE, 0, 0, &wider));
    for stream in streams(count) {
        bytes.extend(get(stream, path));
    }
    tls.write_all(&bytes).await.unwrap();
    tls.flush().await.unwrap();
    tls
}

/// A frame: type, stream and payload; none at the connection's end.
pub async fn next(tls: &mut TlsStream<TcpStream>) -> Option<(u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    tls.read_exact(&mut head).await.ok()?;
    let [a, b, c, kind, _, stream @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    tls.read_exact(&mut payload).await.ok()?;
    Some((kind, u32::from_be_bytes(stream), payload))
}

/// Reads what comes until so many streams were reset; when the first and the last were.
fn reset(mut tls: TlsStream<TcpStream>, until: usize) -> JoinHandle<Option<[Duration; 2]>> {
    let started = Instant::now();
    tokio::spawn(async move {
        let (mut times, mut resets) = (None, 0);
        while resets < until {
            let (kind, ..) = next(&mut tls).await?;
            if kind == RESET {
                resets += 1;
                let [first, last] = times.get_or_insert([started.elapsed(); 2]);
                *last = started.elapsed().max(*first);
            }
        }
        times
    })
}

/// Takes 10 kB of an answer each second, and is not to be cut off.
struct Slow {
    task: JoinHandle<Result<(), String>>,
}

impl Slow {
    async fn begin(client: &Client) -> Self {
        const PART: u32 = 10_000;
        let mut tls = asked(client, PART, 1, "/_double/big?bytes=5000000").await;
        let task = tokio::spawn(async move {
            let started = Instant::now();
            let mut taken = 0;
            while let Some((kind, _, payload)) = next(&mut tls).await {
                match kind {
                    DATA => taken += payload.len(),
                    RESET => return Err(format!("reset after {taken} bytes: {payload:?}")),
                    _ => {}
                }
                if kind == DATA && taken % PART as usize == 0 {
                    sleep(Duration::from_secs(1)).await;
                    let more = frame(WINDOW_UPDATE, 0, 1, &PART.to_be_bytes());
                    if tls.write_all(&more).await.is_err() || tls.flush().await.is_err() {
                        break;
                    }
                }
            }
            Err(format!("{taken} bytes, after {:?}", started.elapsed()))
        });
        Self { task }
    }

    /// Panics if it was cut off, with what `proxy` says of it.
    async fn end(self, proxy: &Proxy) {
        if self.task.is_finished() {
            let end = self.task.await.unwrap();
            let budget = proxy.metric(RESETS, &[("reason", "budget")]).await;
            let timeout = proxy.metric(RESETS, &[("reason", "timeout")]).await;
            panic!(
                "cut off: {end:?}; resets: {budget} for the budget, {timeout} for timeouts\n{}",
                proxy.log_tail()
            );
        }
        self.task.abort();
    }
}

/// Objects that fill what may be unread of a watch.
async fn make_busy(ordeal: &Ordeal) {
    let [admin, _] = ordeal.world.admins();
    for number in 0..16 {
        let data = "x".repeat(10_000);
        let map = serde_json::json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": format!("busy-{number}"), "namespace": "busy"}, "data": {"a": data},
        });
        let path = "/api/v1/namespaces/busy/configmaps";
        let made = admin.request("POST", path, map.to_string()).await;
        assert_eq!(made.code(), 201, "{}", made.text());
    }
}

/// So many connections with so many requests each, of which nothing is taken: nobody else notices, and the
/// proxy does not grow by more than it may.
async fn flood(connections: usize, streams: usize, window: u32, path: &'static str) {
    let mut ordeal = Ordeal::patient().await;
    if path == WATCH {
        make_busy(&ordeal).await;
    }
    let client = ordeal.world.client().cert("admin");
    let slow = Slow::begin(&client).await;
    let mut open = JoinSet::new();
    for _ in 0..connections {
        let client = client.clone();
        open.spawn(async move {
            let mut tls = asked(&client, window, streams, path).await;
            // Without a window its socket is read: it is told of resets, and does not ask again.
            while window == 0 && next(&mut tls).await.is_some() {}
            sleep(2 * LONG).await;
        });
    }
    holds("it is little", HOLD, async || {
        let grown = ordeal.grown() / MIB;
        if grown < MOST { Ok(()) } else { Err(grown) }
    })
    .await;
    let held = ordeal.world.proxy.metric(HELD, &[]).await / f64::from(1 << 20);
    assert!(held < 320.0, "{held} MiB are held");
    slow.end(&ordeal.world.proxy).await;
    drop(open);
    ordeal.end(MOST).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_without_a_window_hold_no_more_than_the_budget() {
    flood(4, STREAMS, 0, OBJECT).await;
    flood(40, 50, 0, OBJECT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_behind_sockets_that_are_not_read_hold_no_more_than_the_budget() {
    flood(40, 50, WIDE, BIG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_that_are_not_read_hold_no_more_than_the_budget() {
    // Each may hold 224 KiB: more than the budget together. Their first events keep the double busy, which has to answer
    // pings of the proxy within 5 s on a busy machine too.
    flood(26, 50, 0, WATCH).await;
}

/// What is kept of an event that is read in part counts: the rest of the watches goes on without being parsed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_whose_clients_stop_within_an_event_hold_no_more_than_the_budget() {
    const WATCHES: usize = 150;
    const EVENT: usize = 2_900_000;
    const READ: usize = 2_500_000;
    const LARGE: &str = "/api/v1/namespaces/large/configmaps";
    let followed = |options: ProxyOptions| options.set("watch.bookmarkOnShutdown", "true");
    let mut ordeal = Ordeal::patient_with(followed).await;
    let [admin, _] = ordeal.world.admins();
    let map = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "large"}, "data": {"a": "x".repeat(EVENT)}});
    let made = admin.request("POST", LARGE, map.to_string()).await;
    assert_eq!(made.code(), 201, "{}", made.text());
    let client = ordeal.world.client().cert("admin");
    let mut stopped = Vec::new();
    for _ in 0..WATCHES {
        let watch = format!("{LARGE}?watch=true&allowWatchBookmarks=true");
        let mut tls = asked(&client, READ as u32, 1, &watch).await;
        let mut read = 0;
        while read < READ {
            let (kind, _, payload) = next(&mut tls).await.unwrap();
            read += if kind == DATA { payload.len() } else { 0 };
        }
        stopped.push(tls);
    }
    let held = ordeal.world.proxy.metric(HELD, &[]).await / f64::from(1 << 20);
    println!(
        "{WATCHES} watches: {} MiB more, {held} counted",
        ordeal.grown() / MIB
    );
    assert!((100.0..200.0).contains(&held), "{held} MiB are held");
    assert!(ordeal.grown() / MIB < MOST, "{}", ordeal.grown() / MIB);
    let budget = ordeal.world.proxy.metric(RESETS, &[("reason", "budget")]);
    assert_eq!(budget.await, 0.0, "they go on without being parsed");
    drop(stopped);
    ordeal.end(MOST).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_nothing_for_a_minute_is_cut_off_and_nobody_else_is() {
    const SOME: usize = 50;
    /// Connections of clients that go on all the time.
    const OTHERS: f64 = 4.0;
    let mut ordeal = Ordeal::patient().await;
    make_busy(&ordeal).await;
    let connections = "kube_interop_proxy_connections";
    eventually("whoever made it busy is gone", LONG, async || {
        ordeal.world.proxy.metric(connections, &[]).await == OTHERS
    })
    .await;
    let client = ordeal.world.client().cert("admin");
    let resident = |ordeal: &mut Ordeal| ordeal.world.proxy.process().memory().unwrap() as u64;
    let before = resident(&mut ordeal);

    // These go on: what is slow, what is quiet, and what lets its client wait and is long-running.
    let slow = Slow::begin(&client).await;
    let mut quiet = client.open("/api/v1/pods?watch=true").await;
    let upgrade = "GET /_double/upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
    let upgraded = Upgraded::open(&client, upgrade, b"").await.unwrap();
    let mut watch = asked(&client, 0, 1, WATCH).await;
    // A pager may wait for its user.
    let mut log = asked(&client, 0, 1, LOG).await;
    // And these do not.
    let started = Instant::now();
    let windowless = reset(asked(&client, 0, SOME, OBJECT).await, SOME);
    let unread = asked(&client, WIDE, SOME, BIG).await;
    let mut http1 = client.connect_raw(&["http/1.1"]).await.unwrap();
    let request = format!("GET {BIG} HTTP/1.1\r\nHost: x\r\n\r\n");
    http1.write_all(request.as_bytes()).await.unwrap();
    http1.flush().await.unwrap();
    let held = async || ordeal.world.proxy.metric(HELD, &[]).await;
    eventually("they wait", LONG, async || held().await > 5e6).await;

    let times = timeout(PATIENCE + SLACK, windowless).await;
    let [first, _] = times.expect("they are reset").unwrap().expect("one by one");
    assert!(first + Duration::from_secs(2) > PATIENCE, "{first:?}");
    // Five go on. Those that nobody reads end, in the same second or one after the other.
    eventually("the connections end", SLACK, async || {
        let open = ordeal.world.proxy.metric(connections, &[]).await;
        if open == OTHERS + 5.0 {
            Ok(())
        } else {
            Err(open)
        }
    })
    .await;
    assert!(started.elapsed() > PATIENCE);
    let counted = ordeal
        .world
        .proxy
        .metric(RESETS, &[("reason", "budget")])
        .await;
    assert_eq!(counted, 0.0);
    let mut rest = vec![0; 1 << 20];
    let mut taken = 0;
    while let Ok(read @ 1..) = http1.read(&mut rest).await {
        taken += read;
    }
    assert!(taken < 50_000_000, "all of it came");

    slow.end(&ordeal.world.proxy).await;
    assert!(quiet.is_quiet(Duration::from_millis(100)).await);
    for unlimited in [&mut watch, &mut log] {
        let reset = async {
            while let Some((kind, ..)) = next(unlimited).await {
                if kind == RESET {
                    return;
                }
            }
        };
        assert!(timeout(Duration::from_secs(1), reset).await.is_err());
    }
    drop((unread, upgraded, watch, log));
    eventually("nothing is held any more", LONG, async || {
        held().await == 0.0
    })
    .await;
    // What the system's memory is given back of.
    eventually("memory is given back", LONG, async || {
        let grown = resident(&mut ordeal).saturating_sub(before) / MIB;
        if grown < 40 { Ok(()) } else { Err(grown) }
    })
    .await;
    ordeal.end(128).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_pieces_that_are_unread_break_nobody_elses_answer() {
    let ordeal = Ordeal::patient().await;
    let client = ordeal.world.client().cert("admin").http2();
    let mut read = client.open("/_double/ticks?ms=100").await;
    let unread = asked(&client, 0, 30, "/_double/ticks?ms=0").await;
    let until = Instant::now() + Duration::from_secs(15);
    while Instant::now() < until {
        let line = read.next_line(LONG).await.unwrap();
        assert!(line.is_some_and(|line| line.starts_with("tick ")));
    }
    drop(unread);
    ordeal.end(256).await;
}
