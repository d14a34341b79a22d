//! Connections of unauthenticated clients: they end like those of a current kube-apiserver, other connections
//! continue, and until they end they cost the proxy little.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::timeout;

use testkit::client::Client;
use testkit::cluster::{Ground, LONG, Single};
use testkit::double::{Double, DoubleOptions, Fault, Recorded, ScriptedAnswer, v1_36};
use testkit::flood::{Flood, FloodOptions};
use testkit::modern::ModernApiServer;
use testkit::pki::LeafOptions;
use testkit::proxy::{Proxy, Until};
use testkit::raw::{
    END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, RESET, SETTINGS, frame, literal,
};
use testkit::wait::{eventually, within};
use testkit::wire::{Pieces, Wire, request};

const PODS: &str = "/api/v1/namespaces/default/pods";
const HOST: &str = "kubernetes.default.svc";
const INVENTED: &str = "Bearer invented";

/// A proxy before a double that does as 1.29 and later do.
async fn modern() -> Single {
    let ground = Ground::new().await;
    let options = DoubleOptions::new(ground.pki.dir(), v1_36()).ends_unknown();
    let double = Double::start(options).await;
    double.allow("devs", PODS);
    let options = ground.proxy("a", double.addr()).until(Until::Ready);
    let proxy = Proxy::start(options).await;
    Single {
        double,
        proxy,
        ground,
    }
}

/// Whether a connection ends after this request, over HTTP/2 and over HTTP/1.1. `due`: that it ends is expected.
async fn ends(client: &Client, authorization: Option<&str>, due: bool) -> [bool; 2] {
    let get = || {
        let mut get = request("GET", PODS, Pieces::default());
        if let Some(value) = authorization {
            let value = value.parse().unwrap();
            get.headers_mut().insert("authorization", value);
        }
        get
    };
    let (mut http1, mut http2) = (Wire::http1(client).await, Wire::http2(client).await);
    let answer = http1.send(HOST, get()).await.unwrap();
    let closes = answer.header("connection") == "close";
    let first = http2.send(HOST, get()).await.unwrap();
    assert_eq!(first.code(), answer.code());
    // A GOAWAY comes with the answer, or never.
    let patience = if due { LONG } else { Duration::from_secs(1) };
    let goes_away = within(patience, async || !http2.is_open()).await.is_ok();
    if !goes_away {
        http2.send(HOST, get()).await.unwrap();
        http1.send(HOST, get()).await.unwrap();
    }
    [goes_away, closes]
}

#[tokio::test]
async fn connections_end_after_requests_of_those_who_are_not_known() {
    let world = modern().await;
    let before = Single::new().await;
    for (what, certificate, authorization, expected) in [
        ("nobody", None, None, true),
        ("an invented token", None, Some(INVENTED), true),
        ("a certificate of nobody's", Some("rogue"), None, true),
        ("a token", None, Some("Bearer tok-bob"), false),
        ("a user", Some("alice"), None, false),
        ("a peer", Some("front-proxy-client"), None, false),
        (
            "a peer's user",
            Some("front-proxy-client"),
            Some(INVENTED),
            false,
        ),
    ] {
        let of = |world: &Single| match certificate {
            Some(name) => world.client().cert(name),
            None => world.client(),
        };
        let seen = ends(&of(&world), authorization, expected).await;
        assert_eq!(seen, [expected; 2], "{what}");
        // Before 1.29 it did not matter to be nobody.
        let expected = expected && what != "nobody";
        let seen = ends(&of(&before), authorization, expected).await;
        assert_eq!(seen, [expected; 2], "{what}, before 1.29");
    }
}

#[tokio::test]
async fn first_requests_with_a_token_that_come_together_are_all_answered() {
    let world = modern().await;
    for round in 0..5 {
        // Nobody has seen any of them on this connection; in the first round nobody has anywhere.
        let client = world.client().token("tok-bob").http2().timeout(LONG);
        let mut asking = JoinSet::new();
        for _ in 0..100 {
            let client = client.clone();
            asking.spawn(async move { client.get(PODS).await.code() });
        }
        let codes = asking.join_all().await;
        assert_eq!(codes, [200; 100], "{round}");
    }
}

#[tokio::test]
async fn what_is_no_token_never_shares_a_connection() {
    let world = modern().await;
    // Clients are spread over the proxy's threads, and each thread has connections of its own.
    for _ in 0..8 {
        let bob = world.client().token("tok-bob").http2();
        for _ in 0..2 {
            assert_eq!(bob.get(PODS).await.code(), 200);
        }
        // Anonymous to an apiserver, which answers it all the same.
        let basic = world.client().header("authorization", "Basic eDp5").http2();
        assert_eq!(basic.get("/readyz").await.code(), 200);
    }
    let seen = world.double.requests();
    let of = |path: &str, user: &str| {
        let of_user = seen.iter().filter(|it| it.path == path && it.user == user);
        of_user.map(|it| it.connection_id).collect::<BTreeSet<_>>()
    };
    let (bobs, strangers) = (of(PODS, "bob"), of("/readyz", "system:anonymous"));
    assert!(!bobs.is_empty() && strangers.len() >= 8, "{strangers:?}");
    assert!(bobs.is_disjoint(&strangers), "{bobs:?} and {strangers:?}");
}

#[tokio::test]
async fn users_named_as_if_unauthenticated_never_share_a_connection() {
    let world = modern().await;
    let anonymous = LeafOptions::client("system:anonymous");
    let unauthenticated = LeafOptions::client("mallory").org("system:unauthenticated");
    for (name, leaf) in [("x", anonymous), ("y", unauthenticated)] {
        world.ground.pki.leaf(name, "ca", &leaf);
    }
    // Clients are spread over the proxy's threads, and each thread has connections of its own.
    for _ in 0..8 {
        for name in ["alice", "x", "y", "alice"] {
            let client = world.client().cert(name).http2();
            assert_ne!(client.get(PODS).await.code(), 401, "{name}");
        }
    }
    let seen = world.double.requests();
    let seen = seen.iter().filter(|it| it.path == PODS);
    let (alices, others): (Vec<_>, Vec<_>) = seen.partition(|it| it.user == "alice");
    let connections = |of: &[&Recorded]| -> BTreeSet<_> {
        let connections = of.iter().map(|it| it.connection_id);
        connections.collect()
    };
    assert_eq!((alices.len(), others.len()), (16, 16));
    assert_eq!(connections(&others).len(), 16);
    assert!(connections(&alices).len() < 16);
    assert!(connections(&alices).is_disjoint(&connections(&others)));
}

#[tokio::test]
async fn an_answer_to_a_preflight_makes_no_token_known() {
    let world = modern().await;
    // With `--cors-allowed-origins` an apiserver answers it whatever the token is.
    let preflight = ScriptedAnswer::new(204);
    world
        .double
        .set_fault("/cors", Some(Fault::Answer(Box::new(preflight))));
    // Clients are spread over the proxy's threads, and each thread has connections of its own.
    for _ in 0..8 {
        let bob = world.client().token("tok-bob").http2();
        for _ in 0..2 {
            assert_eq!(bob.get(PODS).await.code(), 200);
        }
        let invented = world.client().token("invented").http2();
        for _ in 0..2 {
            let answer = invented.request("OPTIONS", "/cors", "").await;
            assert_eq!(answer.code(), 204, "{}", answer.text());
        }
        assert_eq!(invented.get(PODS).await.code(), 401);
    }
    let seen = world.double.requests();
    let of = |is_meant: &dyn Fn(&Recorded) -> bool| {
        let meant = seen.iter().filter(|it| it.path == PODS && is_meant(it));
        meant.map(|it| it.connection_id).collect::<BTreeSet<_>>()
    };
    let invented = of(&|it| it.header("authorization") == INVENTED);
    let bobs = of(&|it| it.header("authorization") != INVENTED);
    assert!(!bobs.is_empty() && invented.len() >= 8, "{invented:?}");
    assert!(bobs.is_disjoint(&invented), "{bobs:?} and {invented:?}");
}

#[tokio::test]
async fn a_connection_of_a_stranger_costs_an_apiserver_little() {
    let world = modern().await;
    let (before, asked) = (
        world.double.accepted_connections(),
        world.double.count(PODS),
    );
    let flood = Flood::start(&FloodOptions {
        client: world.client(),
        token: Some("invented"),
        path: PODS,
        connections: 1,
        streams: 200,
        one_each: true,
        pause: Duration::ZERO,
    });
    eventually("some have come", LONG, async || flood.ended() >= 10).await;
    let counts = flood.stop();
    let connections = counts
        .connections
        .load(std::sync::atomic::Ordering::Relaxed);
    let cost = world.double.accepted_connections() - before;
    // The proxy asks for itself, too.
    assert!(cost <= 4 * connections + 2, "{cost} for {counts:?}");
    let passed = (world.double.count(PODS) - asked) as u64;
    assert!(passed <= 4 * connections, "{passed} of {counts:?}");
}

/// What a server said on a connection.
#[derive(Debug, Default)]
struct Said {
    /// Last stream and reason.
    goaway: Option<(u32, u32)>,
    /// Streams with an answer, with their end.
    answered: BTreeSet<u32>,
    refused: BTreeSet<u32>,
    /// Whether the GOAWAY came before anything else about a stream.
    warned: bool,
    closed_after: Option<Duration>,
}

/// Asks so often at once, and listens until the connection ends, or until all is answered.
async fn said(client: &Client, token: Option<&str>, streams: usize) -> Said {
    let mut tls = client.connect_raw(&["h2"]).await.unwrap();
    let mut block = vec![0x82, 0x87];
    block.extend(literal((b":authority", HOST.as_bytes())));
    block.extend(literal((b":path", b"/version")));
    if let Some(token) = token {
        block.extend(literal((
            b"authorization",
            format!("Bearer {token}").as_bytes(),
        )));
    }
    let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    for stream in (1..).step_by(2).take(streams) {
        bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &block));
    }
    let started = Instant::now();
    tls.write_all(&bytes).await.unwrap();
    tls.flush().await.unwrap();
    let mut said = Said::default();
    let mut payload = Vec::new();
    while said.goaway.is_some() || said.answered.len() + said.refused.len() < streams {
        let mut head = [0; 9];
        let read = timeout(LONG, tls.read_exact(&mut head)).await;
        if read.expect("a frame, or the end").is_err() {
            said.closed_after = Some(started.elapsed());
            break;
        }
        let [a, b, c, kind, flags, stream @ ..] = head;
        let stream = u32::from_be_bytes(stream);
        payload.resize(u32::from_be_bytes([0, a, b, c]) as usize, 0);
        tls.read_exact(&mut payload).await.unwrap();
        let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        match kind {
            GOAWAY => {
                said.warned = said.answered.is_empty();
                said.goaway = Some((number(0), number(4)));
            }
            RESET => {
                said.refused.insert(stream);
            }
            0 | HEADERS if flags & END_STREAM != 0 => {
                said.answered.insert(stream);
            }
            _ => {}
        }
    }
    said
}

#[tokio::test]
async fn the_double_ends_connections_as_a_real_apiserver_of_today_does() {
    let world = modern().await;
    let Ground { dir, pki, etcd } = &world.ground;
    let real = ModernApiServer::start(dir.path(), pki, etcd, &[]).await;
    for addr in [real.addr(), world.double.addr()] {
        let client = Client::new(addr, pki);
        for token in [None, Some("invented")] {
            let one = said(&client, token, 1).await;
            assert_eq!(one.goaway, Some((1, 0)), "{addr} {one:?}");
            assert!(one.warned && one.answered.contains(&1), "{addr} {one:?}");
            let after = one.closed_after.unwrap();
            assert!(after >= Duration::from_millis(900), "{addr} {one:?}");

            let many = said(&client, token, 300).await;
            let (last, reason) = many.goaway.unwrap();
            assert_eq!(reason, 0);
            let covered: BTreeSet<u32> = (1..=last).step_by(2).collect();
            let seen: BTreeSet<u32> = many.answered.union(&many.refused).copied().collect();
            assert_eq!(seen, covered, "{addr}");
        }
        let known = said(&client, Some("tok-bob"), 50).await;
        assert_eq!((known.goaway, known.answered.len()), (None, 50), "{addr}");
    }
}
