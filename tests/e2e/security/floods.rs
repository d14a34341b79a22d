//! Floods of unauthenticated requests: the apiserver ends their connections, as it does since 1.29, and no other
//! client waits for a new connection, is refused, or loses a request.
//!
//! With `FLOOD_SECONDS=8` the tests measure instead: the latency of requests while the flood goes to another stack on
//! this machine (the same CPU use), and while it goes to their own; through the proxy and directly.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::timeout;

use crate::http::bodies::peak;
use testkit::client::Client;
use testkit::cluster::{Ground, LONG};
use testkit::double::{Double, DoubleOptions, v1_36};
use testkit::flood::{Flood, FloodOptions};
use testkit::modern::ModernApiServer;
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const ONE: &str = "/api/v1/namespaces/default/configmaps/one";
/// What everybody else may take for one request while they are flooded: generous, for a machine that does much else.
const MOST: Duration = Duration::from_secs(30);
/// And for all that they ask in one flood.
const ALL: Duration = Duration::from_secs(120);
/// MiB that a flood may make the proxy take: of 40 connections with 200 requests each, each some 24 KiB until it is
/// answered or refused.
const MEMORY: u64 = 320;

/// For how long each figure is taken; none are if it is not said.
fn seconds() -> Option<Duration> {
    let seconds = std::env::var("FLOOD_SECONDS").ok()?;
    Some(Duration::from_secs(seconds.parse().expect("a number")))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Anonymous,
    InvalidTokens,
    Unverifiable,
    /// Without an identity and with a new connection for each request.
    Handshakes,
}

const KINDS: [Kind; 4] = [
    Kind::Anonymous,
    Kind::InvalidTokens,
    Kind::Unverifiable,
    Kind::Handshakes,
];

impl Kind {
    /// From so many connections at once.
    fn flood(self, client: &Client, connections: usize) -> FloodOptions {
        let client = match self {
            Self::Unverifiable => client.cert("rogue"),
            _ => client.fresh(),
        };
        let one_each = self == Self::Handshakes;
        FloodOptions {
            client,
            token: (self == Self::InvalidTokens).then_some("invented"),
            path: CONFIG_MAPS,
            connections,
            streams: if one_each { 1 } else { 200 },
            one_each,
            pause: Duration::ZERO,
        }
    }
}

/// A client that asks in one way or another.
type Way = fn(&Stack) -> Client;

enum Server {
    Double(Double),
    Real(Box<ModernApiServer>),
}

/// An apiserver of today with a proxy beside it.
struct Stack {
    proxy: Proxy,
    server: Server,
    ground: Ground,
}

impl Stack {
    async fn double() -> Self {
        let ground = Ground::new().await;
        let options = DoubleOptions::new(ground.pki.dir(), v1_36()).ends_unknown();
        let double = Double::start(options).await;
        double.allow("devs", "/api/v1/namespaces/default");
        Self::with(ground, Server::Double(double)).await
    }

    async fn real() -> Self {
        let ground = Ground::new().await;
        let Ground { dir, pki, etcd } = &ground;
        let server = ModernApiServer::start(dir.path(), pki, etcd, &[]).await;
        Self::with(ground, Server::Real(Box::new(server))).await
    }

    async fn with(ground: Ground, server: Server) -> Self {
        let addr = match &server {
            Server::Double(double) => double.addr(),
            Server::Real(real) => real.addr(),
        };
        let proxy = Proxy::start(ground.proxy("a", addr).until(Until::Ready)).await;
        let stack = Self {
            proxy,
            server,
            ground,
        };
        let admin = stack.through().cert("admin");
        let one = admin.request("POST", CONFIG_MAPS, object("one", 300)).await;
        assert_eq!(one.code(), 201, "{}", one.text());
        stack
    }

    fn through(&self) -> Client {
        self.client(self.proxy.addr())
    }

    fn straight(&self) -> Client {
        self.client(match &self.server {
            Server::Double(double) => double.addr(),
            Server::Real(real) => real.addr(),
        })
    }

    fn client(&self, addr: SocketAddr) -> Client {
        let client = Client::new(addr, &self.ground.pki).http2().timeout(MOST);
        client.header("content-type", "application/json")
    }

    /// What the doubles keep for tests to look at.
    fn forget(&self) {
        if let Server::Double(double) = &self.server {
            double.take_requests();
        }
    }
}

/// A `ConfigMap` whose JSON has so many bytes.
fn object(name: &str, length: usize) -> String {
    let of = |fill: &str| {
        let (meta, data) = (json!({"name": name}), json!({"fill": fill}));
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}).to_string()
    };
    of(&"x".repeat(length - of("").len()))
}

/// Somebody whom the apiserver knows.
#[derive(Clone)]
struct User {
    name: &'static str,
    client: Client,
    /// Each request on a connection of its own.
    fresh: bool,
}

fn users(client: &Client) -> [User; 3] {
    let user = |name, client, fresh| User {
        name,
        client,
        fresh,
    };
    let token = client.token("tok-bob");
    [
        user("token", token.fresh(), false),
        user("token, new connections", token, true),
        user("certificate", client.cert("alice"), false),
    ]
}

/// How long a request took, or what became of it.
type Asked = Vec<Result<Duration, String>>;

impl User {
    /// Reads and writes, one after the other.
    async fn ask(&self, until: impl Fn(usize) -> bool) -> Asked {
        let mut asked = Vec::new();
        while !until(asked.len()) {
            // A read, a small write, a read, a large write.
            let length = [0, 300, 0, 200 << 10][asked.len() % 4];
            let client = match self.fresh {
                true => self.client.fresh(),
                false => self.client.clone(),
            };
            let started = Instant::now();
            let (wanted, answer) = match length {
                0 => (200, client.try_get(ONE).await),
                _ => {
                    let body = object(&new_name(), length);
                    (201, client.try_request("POST", CONFIG_MAPS, body).await)
                }
            };
            let took = started.elapsed();
            asked.push(match answer {
                Ok(answer) if answer.code() == wanted => Ok(took),
                Ok(answer) => Err(format!("after {took:?}: {}", answer.text())),
                Err(error) => Err(format!("after {took:?}: {error:#}")),
            });
        }
        asked
    }
}

fn new_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("n{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// All users at once.
async fn all_ask(client: &Client, until: impl Fn(usize) -> bool + Copy) -> [Asked; 3] {
    let [token, fresh, certificate] = users(client);
    let (token, fresh, certificate) =
        tokio::join!(token.ask(until), fresh.ask(until), certificate.ask(until));
    [token, fresh, certificate]
}

/// How many of these objects there are, and how many there should be.
async fn nothing_is_lost_or_doubled(stack: &Stack, created: usize) {
    let admin = stack.straight().cert("admin");
    let list = admin.get(CONFIG_MAPS).await;
    let items = list.json()["items"].as_array().map(Vec::len);
    // And the one to be read.
    assert_eq!(items, Some(created + 1));
}

async fn floods_hold_nobody_up(mut stack: Stack, cases: &[(Kind, usize)], most: usize) {
    let before = peak(stack.proxy.process().pid());
    let mut created = 0;
    for &(kind, connections) in cases {
        let flood = Flood::start(&kind.flood(&stack.through(), connections));
        eventually("the flood is there", LONG, async || flood.ended() > 0).await;
        let client = stack.through();
        let asked = timeout(ALL, all_ask(&client, |count| count == most)).await;
        let counts = flood.stop();
        let asked = asked.unwrap_or_else(|_| panic!("{kind:?} from {connections}: {counts:?}"));
        for (user, asked) in users(&client).iter().zip(asked) {
            for (number, asked) in asked.into_iter().enumerate() {
                let what = format!("{kind:?} from {connections}: {}, {number}", user.name);
                let took = asked.unwrap_or_else(|why| panic!("{what} {why}"));
                assert!(took < MOST, "{what}: {took:?}");
            }
        }
        created += 3 * most / 2;
        stack.forget();
    }
    nothing_is_lost_or_doubled(&stack, created).await;
    let grown = peak(stack.proxy.process().pid()).saturating_sub(before) >> 10;
    assert!(grown < MEMORY, "{grown} MiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_strangers_hold_up_nobody_who_is_known() {
    if let Some(seconds) = seconds() {
        let stacks = [Stack::double().await, Stack::double().await];
        return measure("double", &stacks, &cases(), seconds).await;
    }
    floods_hold_nobody_up(Stack::double().await, &cases(), 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_strangers_hold_up_nobody_at_a_real_apiserver_of_today() {
    let cases = [
        (Kind::Anonymous, 4),
        (Kind::InvalidTokens, 4),
        (Kind::Handshakes, 40),
    ];
    if let Some(seconds) = seconds() {
        let stacks = [Stack::real().await, Stack::real().await];
        return measure("real", &stacks, &cases, seconds).await;
    }
    floods_hold_nobody_up(Stack::real().await, &cases, 24).await;
}

fn cases() -> Vec<(Kind, usize)> {
    let sizes = [1, 4, 40].into_iter();
    sizes
        .flat_map(|size| KINDS.map(|kind| (kind, size)))
        .collect()
}

/// Prints what everybody else feels of each flood.
async fn measure(what: &str, stacks: &[Stack; 2], cases: &[(Kind, usize)], time: Duration) {
    let [here, elsewhere] = stacks;
    let ways: [(&str, Way); 2] = [("proxy", Stack::through), ("straight", Stack::straight)];
    for &(kind, connections) in cases {
        for (way, client) in ways {
            for (place, flooded) in [("elsewhere", elsewhere), ("here", here)] {
                let options = kind.flood(&client(flooded), connections);
                let flood = Flood::start(&options);
                eventually("the flood is there", LONG, async || flood.ended() > 0).await;
                let end = Instant::now() + time;
                let asked = all_ask(&client(here), |_| Instant::now() > end).await;
                let counts = flood.stop();
                let mut line = format!("{what} {kind:?} {connections} {way} {place}:");
                for (user, asked) in users(&client(here)).iter().zip(asked) {
                    write!(line, " {} {};", user.name, figures(asked)).unwrap();
                }
                println!("{line} {counts:?}");
                stacks.iter().for_each(Stack::forget);
            }
        }
    }
}

fn figures(asked: Asked) -> String {
    let all = asked.len();
    let mut took: Vec<_> = asked.into_iter().flatten().collect();
    took.sort();
    let at = |part: usize| match took.len() {
        0 => f64::NAN,
        count => took[(count - 1) * part / 100].as_secs_f64() * 1e3,
    };
    format!(
        "{all} requests, {} failed, p50 {:.1} ms, p99 {:.1} ms, most {:.1} ms",
        all - took.len(),
        at(50),
        at(99),
        at(100)
    )
}
