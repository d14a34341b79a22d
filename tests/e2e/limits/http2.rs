//! Clients that flood or stall their HTTP/2 connection: the connection is closed or uses little memory, and no other
//! client is affected.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::http::scripted_server::reset;
use crate::limits::clients::{MIB, Ordeal, beginning};
use testkit::cluster::LONG;
use testkit::raw::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, RESET, SETTINGS, WINDOW_UPDATE, frame,
};
use testkit::wait::{eventually, holds};

const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const FLOW_CONTROL_ERROR: u32 = 3;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;
/// Most streams of one connection, of a peer's and of anybody else's.
const PEERS_STREAMS: usize = 1000;
const STREAMS: usize = 250;

/// A header block: method, https, path, and a host; nothing is indexed.
fn block(post: bool, path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).unwrap();
    let method = if post { 0x83 } else { 0x82 };
    let head = [method, 0x87, 0x01, 1, b'x', 0x04, length];
    [&head, path.as_bytes()].concat()
}

pub fn get(stream: u32, path: &str) -> Vec<u8> {
    frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        stream,
        &block(false, path),
    )
}

/// The numbers of a client's streams.
pub fn streams(count: usize) -> impl Iterator<Item = u32> {
    (1..).step_by(2).take(count)
}

type From = ReadHalf<TlsStream<TcpStream>>;
type To = WriteHalf<TlsStream<TcpStream>>;

/// The attacker's connection, as somebody who may read everything.
async fn attack(ordeal: &Ordeal, first: &[u8]) -> (From, To) {
    connect(ordeal, "admin", first).await
}

async fn connect(ordeal: &Ordeal, who: &str, first: &[u8]) -> (From, To) {
    let client = ordeal.world.client().cert(who);
    let (from, mut to) = split(client.connect_raw(&["h2"]).await.unwrap());
    to.write_all(first).await.unwrap();
    to.flush().await.unwrap();
    (from, to)
}

/// What a proxy says on a connection, frame by frame.
#[derive(Debug, Default)]
struct Said {
    answers: usize,
    /// Reasons of streams that were reset.
    resets: Vec<u32>,
    /// The reason that it gave for the end.
    farewell: Option<u32>,
}

/// Reads until so many streams were answered or reset, or to the end.
fn listen(mut from: From, streams: usize) -> JoinHandle<Said> {
    tokio::spawn(async move {
        let mut said = Said::default();
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        while said.answers + said.resets.len() < streams {
            let mut head = [0; 9];
            let next = timeout(LONG, from.read_exact(&mut head)).await;
            if !matches!(next, Ok(Ok(_))) {
                return said;
            }
            let [a, b, c, kind, ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            if from.read_exact(&mut payload).await.is_err() {
                return said;
            }
            match kind {
                HEADERS => said.answers += 1,
                RESET => said.resets.push(number(&payload)),
                GOAWAY => said.farewell = Some(number(&payload[4..8])),
                _ => {}
            }
        }
        said
    })
}

/// Writes `bytes` again and again, so often at most.
async fn flood(to: &mut To, bytes: &[u8], most: usize) -> Flooded {
    for _ in 0..most {
        match timeout(Duration::from_secs(5), to.write_all(bytes)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Flooded::CutOff,
            Err(_) => return Flooded::Stalled,
        }
    }
    Flooded::Taken
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flooded {
    /// The connection was ended.
    CutOff,
    /// Nothing more was taken.
    Stalled,
    Taken,
}

#[tokio::test]
async fn streams_beyond_the_limit_are_refused_and_the_others_go_on() {
    const HANG: &str = "/_double/hang";
    const MORE: usize = 50;
    let ordeal = Ordeal::begin().await;
    for (who, most) in [("admin", STREAMS), ("front-proxy-client", PEERS_STREAMS)] {
        ordeal.world.double.take_requests();
        let (from, mut to) = connect(&ordeal, who, &beginning()).await;
        let said = listen(from, MORE);
        for stream in streams(most + MORE) {
            to.write_all(&get(stream, HANG)).await.unwrap();
        }
        to.flush().await.unwrap();
        let said = said.await.unwrap();
        assert_eq!((said.answers, said.farewell), (0, None), "{who}");
        assert_eq!(said.resets, [REFUSED_STREAM; MORE], "{who}");
        eventually("the others are under way", LONG, async || {
            ordeal.world.double.count(HANG) == most
        })
        .await;
    }
    ordeal.end(128).await;
}

#[tokio::test]
async fn a_header_that_goes_on_for_ever_is_cut_off() {
    // A name, and a value of 16256 bytes.
    let field = [&[0, 1, b'a', 127, 0x81, 0x7e][..], &[b'x'; 16_256]].concat();
    // The same with one of 256 MiB.
    let endless = [0, 1, b'a', 127, 0xff, 0xff, 0xff, 0x7f];
    let ordeal = Ordeal::begin().await;
    for (name, begun, piece) in [
        ("fields", &[][..], field),
        ("nothing", &[], Vec::new()),
        ("one field", &endless, vec![b'x'; 16_384]),
    ] {
        let half = frame(HEADERS, END_STREAM, 1, &[&[0x82, 0x87], begun].concat());
        let first = [beginning(), half].concat();
        let (from, mut to) = attack(&ordeal, &first).await;
        let said = listen(from, usize::MAX);
        let ended = flood(&mut to, &frame(CONTINUATION, 0, 1, &piece), 10_000).await;
        assert_eq!(ended, Flooded::CutOff, "{name}");
        said.await.unwrap();
    }
    ordeal.end(16).await;
}

#[tokio::test]
async fn requests_that_are_reset_at_once_cost_little() {
    let ordeal = Ordeal::begin().await;
    // One by one, and all that are allowed at once.
    for together in [1, 500] {
        let mut cut_off = 0;
        for _ in 0..10 {
            let (from, mut to) = attack(&ordeal, &beginning()).await;
            let said = listen(from, usize::MAX);
            let pair = |stream| {
                [
                    get(stream, "/api/v1/pods"),
                    reset(stream, h2::Reason::CANCEL),
                ]
                .concat()
            };
            let all: Vec<_> = streams(5000).collect();
            for some in all.chunks(together) {
                let bytes = some.iter().copied().flat_map(pair).collect::<Vec<_>>();
                if flood(&mut to, &bytes, 1).await != Flooded::Taken {
                    break;
                }
            }
            // An error says that it was cut off.
            let _ = to.shutdown().await;
            let farewell = said.await.unwrap().farewell;
            cut_off += usize::from(farewell == Some(ENHANCE_YOUR_CALM));
        }
        assert!(together == 1 || cut_off > 0, "none was cut off");
    }
    ordeal.end(48).await;
}

#[tokio::test]
async fn frames_that_say_nothing_are_not_taken_for_ever() {
    let ordeal = Ordeal::begin().await;
    let upload = frame(HEADERS, END_HEADERS, 1, &block(true, "/_double/hang"));
    let settings = [0, 4, 0, 1, 0, 0];
    for (name, piece) in [
        ("pings", frame(PING, 0, 0, &[0; 8])),
        ("settings", frame(SETTINGS, 0, 0, &settings)),
        ("windows of no size", frame(WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("pieces of a body without a byte", frame(DATA, 0, 1, b"")),
    ] {
        // What is said to it is not read: nobody may be made to keep it.
        let (_from, mut to) = attack(&ordeal, &[beginning(), upload.clone()].concat()).await;
        let ended = timeout(LONG, flood(&mut to, &piece.repeat(1000), 5000)).await;
        let ended = ended.expect("it is not even slow");
        assert_ne!(ended, Flooded::Taken, "{name}");
    }
    ordeal.end(32).await;
}

#[tokio::test]
async fn frames_that_ask_for_nothing_are_read_no_faster_than_they_may_come() {
    const PRIORITY: u8 = 2;
    const UNKNOWN: u8 = 200;
    // More than all buffers of a socket hold, and some 20 s at the rate that is allowed.
    const PIECE: usize = 20_000;
    let ordeal = Ordeal::begin().await;
    let first = [beginning(), get(1, "/api/v1/pods")].concat();
    let mut floods = JoinSet::new();
    for (name, frame) in [
        ("pings", frame(PING, 0, 0, &[0; 8])),
        ("settings", frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0])),
        ("windows", frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])),
        ("priorities", frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 7])),
        ("resets", frame(RESET, 0, 1, &[0, 0, 0, 8])),
        ("unknown frames", frame(UNKNOWN, 0, 0, b"")),
    ] {
        for who in ["admin", "front-proxy-client"] {
            let (from, mut to) = connect(&ordeal, who, &first).await;
            let frames = frame.repeat(PIECE);
            floods.spawn(async move {
                // Everything that is said to this client is read.
                let said = listen(from, usize::MAX);
                let ended = timeout(4 * LONG, flood(&mut to, &frames, 500)).await;
                said.abort();
                (name, who, ended.expect("it is not even slow"))
            });
        }
    }
    for (name, who, ended) in floods.join_all().await {
        assert_eq!(ended, Flooded::Stalled, "{name} of {who}");
    }
    ordeal.end(64).await;
}

#[tokio::test]
async fn answers_that_nobody_takes_hold_little() {
    const BIG: &str = "/_double/big?bytes=50000000";
    const STALLED: usize = 100;
    /// 128 KiB of each wait for the client, 256 KiB to be read by the proxy; and what holds them.
    const MOST: u64 = 60;
    // No window at all, and one that is filled at once.
    for window in [0, 65_535] {
        let mut ordeal = Ordeal::begin().await;
        let settings = [&[0, 4][..], &u32::to_be_bytes(window)].concat();
        let first = [PREFACE, &frame(SETTINGS, 0, 0, &settings)].concat();
        let (from, mut to) = attack(&ordeal, &first).await;
        let said = listen(from, STALLED);
        for stream in streams(STALLED) {
            to.write_all(&get(stream, BIG)).await.unwrap();
        }
        to.flush().await.unwrap();
        let said = said.await.unwrap();
        assert_eq!((said.answers, said.farewell), (STALLED, None));
        // Until everything is full that can be.
        holds("it is little", Duration::from_secs(3), async || {
            let grown = ordeal.grown();
            if grown < MOST * MIB {
                Ok(())
            } else {
                Err(grown)
            }
        })
        .await;
        drop(to);
        ordeal.end(MOST).await;
    }
}

#[tokio::test]
async fn bodies_beyond_the_window_are_not_taken() {
    let ordeal = Ordeal::begin().await;
    let (from, mut to) = attack(&ordeal, &beginning()).await;
    let said = listen(from, 1);
    let begun = frame(HEADERS, END_HEADERS, 1, &block(true, "/_double/hang"));
    to.write_all(&begun).await.unwrap();
    let piece = frame(DATA, 0, 1, &[b'x'; 16_384]);
    // 256 KiB may wait; who sends more does not know what a window is.
    let ended = flood(&mut to, &piece, 4000).await;
    let said = said.await.unwrap();
    let told = said.resets.contains(&FLOW_CONTROL_ERROR);
    assert!(ended != Flooded::Taken || told, "{said:?}");
    ordeal.end(16).await;
}
