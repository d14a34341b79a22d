//! Servers and clients that abuse HTTP/2: nothing is executed twice, and no complete answer counts as broken.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::http::scripted_server::{OK, Script, go_away, reset, scripted};
use testkit::client::Client;
use testkit::cluster::{Cluster, HPAS, HPAS_IN_DEFAULT, LONG, Single};
use testkit::double::{Fault, v1_20};
use testkit::pki::SERVER_NAME;
use testkit::proxy::ProxyOptions;
use testkit::raw::{
    DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, RESET, SETTINGS, WINDOW_UPDATE, frame, literal,
};
use testkit::wait::eventually;
use testkit::wire::{Pieces, Wire, request};

const PODS: &str = "/api/v1/namespaces/default/pods";

#[tokio::test]
async fn an_answer_before_the_end_of_its_request_is_whole() {
    // As Go's server does it when a handler has not read the body: the whole answer, then RST_STREAM(NO_ERROR).
    let script: Script = |stream| {
        [
            frame(HEADERS, END_HEADERS, stream, OK),
            frame(DATA, END_STREAM, stream, b"early"),
            reset(stream, h2::Reason::NO_ERROR),
        ]
        .concat()
    };
    let (ground, _server, proxy) = scripted(script).await;
    for wire in Wire::each(&proxy.client(&ground.pki).cert("admin")) {
        let mut wire = wire.await;
        let body = Pieces::of([Bytes::from_static(b"half")]).unfinished();
        let answer = wire.send(SERVER_NAME, request("POST", "/told", body)).await;
        let answer = answer.unwrap();
        assert_eq!((answer.code(), answer.text()), (200, "early".to_owned()));
    }
}

#[tokio::test]
async fn an_answer_without_a_body_before_the_end_of_its_request_is_whole() {
    let script: Script = |stream| {
        [
            frame(HEADERS, END_HEADERS | END_STREAM, stream, OK),
            reset(stream, h2::Reason::NO_ERROR),
        ]
        .concat()
    };
    let (ground, _server, proxy) = scripted(script).await;
    for wire in Wire::each(&proxy.client(&ground.pki).cert("admin")) {
        let mut wire = wire.await;
        let body = Pieces::of([Bytes::from_static(b"half")]).unfinished();
        let answer = wire.send(SERVER_NAME, request("POST", "/told", body)).await;
        assert_eq!(answer.unwrap().code(), 200);
    }
}

/// What becomes of one write: its answer's code, whether it may be repeated, and how often it was sent.
async fn write_once(script: Script) -> (u16, bool, usize) {
    let (ground, server, proxy) = scripted(script).await;
    let admin = proxy.client(&ground.pki).cert("admin");
    let answer = admin.request("POST", "/told", "a body").await;
    let repeatable = answer.headers.contains_key("retry-after");
    (answer.code(), repeatable, server.asked())
}

#[tokio::test]
async fn a_write_that_the_server_wants_over_http1_is_not_sent_twice() {
    let seen = write_once(|stream| reset(stream, h2::Reason::HTTP_1_1_REQUIRED)).await;
    assert_eq!(seen, (503, false, 1));
}

#[tokio::test]
async fn a_write_that_is_cancelled_is_not_sent_twice() {
    let seen = write_once(|stream| reset(stream, h2::Reason::CANCEL)).await;
    assert_eq!(seen, (503, false, 1));
    let seen = write_once(|stream| reset(stream, h2::Reason::NO_ERROR)).await;
    assert_eq!(seen, (503, false, 1));
}

#[tokio::test]
async fn a_write_that_a_goaway_covers_is_not_sent_twice() {
    let seen =
        write_once(|stream| [go_away(stream), reset(stream, h2::Reason::INTERNAL_ERROR)].concat())
            .await;
    assert_eq!(seen, (503, false, 1));
}

#[tokio::test]
async fn a_write_whose_connection_ends_is_not_sent_twice() {
    assert_eq!(write_once(|_| Vec::new()).await, (503, false, 1));
}

#[tokio::test]
async fn a_write_that_was_refused_unseen_may_be_repeated() {
    let (code, repeatable, asked) =
        write_once(|stream| reset(stream, h2::Reason::REFUSED_STREAM)).await;
    assert_eq!((code, repeatable), (503, true));
    assert!(asked > 1);
    let (code, repeatable, asked) = write_once(|_| go_away(0)).await;
    assert_eq!((code, repeatable), (503, true));
    assert!(asked > 1);
}

#[tokio::test]
async fn odd_interim_answers_over_http2_are_dropped() {
    // 101 and 103, literal, and then the answer.
    let script: Script = |stream| {
        [
            frame(HEADERS, END_HEADERS, stream, b"\x08\x03101"),
            frame(HEADERS, END_HEADERS, stream, b"\x08\x03103"),
            frame(HEADERS, END_HEADERS, stream, OK),
            frame(DATA, END_STREAM, stream, b"final"),
        ]
        .concat()
    };
    let (ground, _server, proxy) = scripted(script).await;
    for wire in Wire::each(&proxy.client(&ground.pki).cert("admin")) {
        let mut wire = wire.await;
        let asked = request("GET", "/told", Pieces::default());
        let answer = wire.send(SERVER_NAME, asked).await.unwrap();
        assert_eq!((answer.code(), answer.text()), (200, "final".to_owned()));
    }
}

/// What an answer may have on its way to the client.
const ROOM: u32 = 32 << 10;

/// A stream of HTTP/2 on a connection of its own, whose request has no end yet.
async fn h2_stream(
    client: &Client,
    path: &str,
) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
    let tls = client.connect_raw(&["h2"]).await.unwrap();
    let mut builder = h2::client::Builder::new();
    let opening = builder.initial_window_size(ROOM).handshake(tls).await;
    let (mut sender, connection) = opening.unwrap();
    tokio::spawn(connection);
    let asked = http::Request::post(format!("https://x{path}")).body(());
    sender.send_request(asked.unwrap(), false).unwrap()
}

/// Sends as much of `data` as is wanted at once.
async fn send_some(body: &mut h2::SendStream<Bytes>, data: &mut Bytes) {
    body.reserve_capacity(data.len());
    let room = std::future::poll_fn(|context| body.poll_capacity(context)).await;
    let part = data.split_to(room.unwrap().unwrap().min(data.len()));
    body.send_data(part, data.is_empty()).unwrap();
}

#[tokio::test]
async fn a_client_that_goes_away_while_the_server_takes_no_more_is_noticed() {
    const HANG: &str = "/_double/hang";
    let world = Single::new().await;
    let (answer, mut body) = h2_stream(&world.client().cert("admin"), HANG).await;
    let mut data = Bytes::from(vec![b'x'; 16 << 20]);
    // Until every window on the way is full.
    while timeout(Duration::from_secs(1), send_some(&mut body, &mut data))
        .await
        .is_ok()
    {}
    assert!(!data.is_empty());
    let over = || {
        let seen = world.double.requests().into_iter();
        seen.filter(|request| request.path == HANG)
            .map(|request| request.over)
            .collect::<Vec<_>>()
    };
    assert_eq!(over(), [false]);
    drop((answer, body));
    eventually("the apiserver's side is over", LONG, async || {
        over() == [true]
    })
    .await;
}

#[tokio::test]
async fn a_client_that_reads_only_after_it_has_written_all_is_served() {
    // Takes all, and answers at once with more than the client has room for.
    let script: Script = |stream| {
        let piece = frame(DATA, 0, stream, &[b'x'; 16_000]);
        let room = (16_u32 << 20).to_be_bytes();
        [
            frame(HEADERS, END_HEADERS, stream, OK),
            piece.repeat(4),
            frame(WINDOW_UPDATE, 0, 0, &room),
            frame(WINDOW_UPDATE, 0, stream, &room),
        ]
        .concat()
    };
    let (ground, _server, proxy) = scripted(script).await;
    let admin = proxy.client(&ground.pki).cert("admin");
    let (answer, mut body) = h2_stream(&admin, "/told").await;
    let exchange = async {
        let mut data = Bytes::from(vec![b'x'; 4 << 20]);
        while !data.is_empty() {
            send_some(&mut body, &mut data).await;
        }
        let mut answer = answer.await.unwrap().into_body();
        let mut count = 0;
        while count < 4 * 16_000 {
            let piece = answer.data().await.unwrap().unwrap();
            count += piece.len();
            answer.flow_control().release_capacity(piece.len()).unwrap();
        }
    };
    let exchange = timeout(LONG, exchange).await;
    exchange.expect("nobody waits for ever");
}

#[tokio::test]
async fn odd_hosts_are_not_held_against_servers() {
    let cluster = Cluster::new().await;
    let admin = cluster.client().cert("admin");
    for (host, code) in [
        // A client that has no name for a server says so with an empty one.
        ("", 200),
        ("a_b", 200),
        ("[::1]:6443", 200),
        ("a b", 400),
        ("[", 400),
        ("a:b:c", 400),
        ("%zz", 400),
        ("\u{e9}", 400),
        ("a/b", 400),
        ("a?b", 400),
        ("a@b", 400),
    ] {
        let head = format!("GET {HPAS} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let mut tls = admin.connect_raw(&["http/1.1"]).await.unwrap();
        tls.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // A close without close_notify is an end too.
        let _ = timeout(LONG, tls.read_to_end(&mut answer))
            .await
            .expect("an end");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {code} ")),
            "{host:?}: {answer}"
        );
        let status = cluster.proxy_a.statusz().await;
        assert_eq!(status["peers"][0]["unhealthy"], false, "{host:?}");
    }
}

#[tokio::test]
async fn annotations_tell_of_an_apiserver_that_went_down_meanwhile() {
    let settings = [
        ("ifReady.mode", "Annotate"),
        ("apiServer.probeInterval", "1h"),
    ];
    let set = |options: ProxyOptions| {
        let set = |options: ProxyOptions, (key, value): (&str, &str)| options.set(key, value);
        settings.into_iter().fold(options, set)
    };
    let mut cluster = Cluster::with(v1_20(), set).await;
    let asking = cluster
        .client()
        .cert("admin")
        .header("X-Kubernetes-If-Ready", "1");
    let told = async |path: &str| {
        let answer = asking.fresh().get(path).await;
        (
            answer.code(),
            answer.header("x-kubernetes-ready").to_owned(),
        )
    };
    assert_eq!(told(PODS).await, (200, "true".to_owned()));
    cluster.a.stop().await;
    // Found down by the first of these, if not by the probe: answered by B, or by nobody.
    assert_eq!(told(PODS).await, (200, "false".to_owned()));
    assert_eq!(told("/version").await, (503, "false".to_owned()));
}

/// Writes of one user through A to B, each of them some time under way, while `attack` goes on.
async fn others_are_served_during(attack: impl AsyncFn(&Client)) {
    let cluster = Cluster::new().await;
    cluster.b.set_fault(
        HPAS_IN_DEFAULT,
        Some(Fault::Delay(Duration::from_millis(1500))),
    );
    let anonymous = cluster.client();
    // On several connections, so that there is one on each of the proxy's threads.
    let victims = (0..12).map(|number| {
        let admin = cluster.client().cert("admin");
        let body = serde_json::json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": format!("victim-{number}")}});
        async move {
            let written = admin.request("POST", HPAS_IN_DEFAULT, body.to_string());
            written.await
        }
    });
    let victims: JoinSet<_> = victims.collect();
    eventually("all of them are on their way", LONG, async || {
        cluster.b.count(HPAS_IN_DEFAULT) == 12
    })
    .await;
    attack(&anonymous).await;
    for written in victims.join_all().await {
        assert_eq!(written.code(), 201, "{}", written.text());
    }
}

#[tokio::test]
async fn headers_that_are_too_large_for_a_peer_break_nobody_elses_connection() {
    others_are_served_during(async |client: &Client| {
        for size in [10_000, 70_000, 900_000, 1_040_000, 1_100_000] {
            for _ in 0..6 {
                let wide = client.fresh().http1().header("x-wide", &"x".repeat(size));
                let answer = wide.get(HPAS).await;
                let expected = if size < 1_048_576 { 403 } else { 431 };
                assert_eq!(answer.code(), expected, "{size}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn streams_that_are_opened_and_reset_break_nobody_elses_connection() {
    let field = |index: u8, value: &str| {
        let length = u8::try_from(value.len()).unwrap();
        [&[index, length], value.as_bytes()].concat()
    };
    // GET, https, and two literals that are not indexed.
    let block = [vec![0x82, 0x87], field(0x04, HPAS), field(0x01, "x")].concat();
    let opened = |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &block);
    let mut bytes = PREFACE.to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    for stream in (1..31).step_by(2) {
        bytes.extend(opened(stream));
        bytes.extend(reset(stream, h2::Reason::CANCEL));
    }
    others_are_served_during(async |client: &Client| {
        let mut connections = Vec::new();
        for _ in 0..60 {
            connections.push(client.connect_raw(&["h2"]).await.unwrap());
        }
        let attacks = connections.into_iter().map(|mut tls| {
            let bytes = bytes.clone();
            async move {
                tls.write_all(&bytes).await.unwrap();
                tls.flush().await.unwrap();
                tls
            }
        });
        attacks.collect::<JoinSet<_>>().join_all().await;
    })
    .await;
}

#[tokio::test]
async fn odd_bytes_are_not_held_against_peers() {
    let cluster = Cluster::new().await;
    let admin = cluster.client().cert("admin");
    let ask = async |target: Vec<u8>, header: Vec<u8>| {
        let mut tls = admin.connect_raw(&["http/1.1"]).await.unwrap();
        let rest = b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
        let bytes = [b"GET ", &target[..], rest, &header, b"\r\n\r\n"].concat();
        tls.write_all(&bytes).await.unwrap();
        let mut answer = Vec::new();
        // A close without close_notify is an end too.
        let _ = timeout(LONG, tls.read_to_end(&mut answer))
            .await
            .expect("an end");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let code: Option<u16> = answer.get(9..12).and_then(|code| code.parse().ok());
        let asked = format!("{} {}", target.escape_ascii(), header.escape_ascii());
        assert!(matches!(code, Some(200 | 400 | 404)), "{asked}: {answer}");
        let status = cluster.proxy_a.statusz().await;
        assert_eq!(status["peers"][0]["unhealthy"], false, "{asked}");
    };
    let object = format!("{HPAS_IN_DEFAULT}/a");
    let odd = (0x21..=0xff_u8).filter(|byte| !byte.is_ascii_alphanumeric());
    for byte in odd {
        let known = b"X-Known: yes".to_vec();
        ask([object.as_bytes(), &[byte]].concat(), known.clone()).await;
        ask([HPAS.as_bytes(), b"?q=", &[byte]].concat(), known).await;
        ask(HPAS.into(), [b"X-Value: a", &[byte][..], b"b"].concat()).await;
        ask(HPAS.into(), [b"X-Na", &[byte][..], b"me: a"].concat()).await;
    }
    for letters in ["\u{e9}", "\u{20ac}", "\u{1f600}"] {
        ask(format!("{object}{letters}").into(), Vec::new()).await;
        ask(format!("{HPAS}?q={letters}").into(), Vec::new()).await;
    }
}

#[tokio::test]
async fn no_hop_by_hop_header_passes_in_a_block_that_is_cut_within_a_field() {
    const CONTINUATION: u8 = 9;
    let world = Single::new().await;
    let client = world.client().cert("admin");
    let fields: [(&str, &str); 8] = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", SERVER_NAME),
        (":path", "/_double/echo"),
        ("connection", "x-listed"),
        ("keep-alive", "timeout=5"),
        ("x-listed", "listed"),
        ("x-last", "the last"),
    ];
    let block = fields.map(|(name, value)| literal((name.as_bytes(), value.as_bytes())));
    let block = block.concat();
    let (first, rest) = block.split_at(block.len() - 3);
    let bytes = [
        PREFACE,
        &frame(SETTINGS, 0, 0, &[]),
        &frame(HEADERS, END_STREAM, 1, first),
        &frame(CONTINUATION, END_HEADERS, 1, rest),
    ];
    let mut tls = client.connect_raw(&["h2"]).await.unwrap();
    tls.write_all(&bytes.concat()).await.unwrap();
    tls.flush().await.unwrap();
    let told = timeout(LONG, async {
        let mut told = Vec::new();
        loop {
            let mut head = [0; 9];
            tls.read_exact(&mut head).await.unwrap();
            let [a, b, c, kind, flags, stream @ ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            tls.read_exact(&mut payload).await.unwrap();
            match (kind, u32::from_be_bytes(stream)) {
                (RESET, 1) => return None,
                (DATA, 1) => told.extend(payload),
                _ => continue,
            }
            if flags & END_STREAM != 0 {
                return Some(String::from_utf8(told).unwrap());
            }
        }
    });
    // h2 resets a stream whose block is whole, and may overlook the fields before the cut.
    if let Some(told) = told.await.expect("an answer, or a reset") {
        assert!(told.contains("the last"), "{told}");
        for header in ["connection", "keep-alive"] {
            assert!(!told.contains(&format!("[\"{header}\",")), "{told}");
        }
    }
}
