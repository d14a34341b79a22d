//! What clients send, up to the servers and back: nobody becomes another user, no request goes round, and every answer
//! is that of its own request.
#![no_main]

mod double;
mod requests;
mod words;
#[path = "../world/mod.rs"]
mod world;

use std::sync::{Arc, Mutex};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::double::{Answer, Double, Run};
use self::requests::{Http1Part, Http2Part, Piece};
use self::world::{Client, LONG, Service, WORLD, frames};

const MOST_PARTS: usize = 32;

#[derive(Debug, Arbitrary)]
struct Input {
    client: Client,
    connection: Connection,
    /// In the order in which requests reach servers; then it begins again.
    answers: Vec<Answer>,
    /// Servers have HTTP/2.
    http2: bool,
}

#[derive(Debug, Arbitrary)]
enum Connection {
    Http2(Vec<Http2Part>),
    Http1(Vec<Http1Part>),
}

fuzz_target!(|input: Input| {
    world::runtime().block_on(run(input));
});

async fn run(input: Input) {
    let mut tasks = JoinSet::new();
    let service = WORLD.service(&mut tasks);
    let run = Arc::new(Mutex::new(Run::new(input.client, input.answers)));
    let servers = WORLD.servers();
    let tls = WORLD.server_tls(input.http2);
    for (listener, local) in [(servers.local, true), (servers.peer, false)] {
        let double = Double {
            run: run.clone(),
            local,
            tls: tls.clone(),
        };
        tasks.spawn(double.run(listener));
    }
    match input.connection {
        Connection::Http2(parts) => {
            let (pieces, marked) = requests::http2(parts.into_iter().take(MOST_PARTS));
            run.lock().expect("a lock").marked = marked;
            let (stream, serving) = service.http2(input.client);
            let answered = converse(stream, pieces, &service, tokio::spawn(serving), true).await;
            for (stream, seen) in frames::seen(&answered) {
                assert!(seen.blocks <= 3, "{} answers on {stream}", seen.blocks);
                let names = double::named(&seen.data);
                assert!(
                    names.iter().all(|name| *name == stream),
                    "{names:?} on {stream}"
                );
                assert!(names.len() <= 1, "{} answers on {stream}", names.len());
            }
        }
        Connection::Http1(parts) => {
            let (pieces, marked) = requests::http1(parts.into_iter().take(MOST_PARTS));
            run.lock().expect("a lock").marked = marked;
            let (stream, serving) = service.http1(input.client).await;
            let answered = converse(stream, pieces, &service, tokio::spawn(serving), false).await;
            let names = double::named(&answered);
            assert!(names.is_sorted_by(|one, next| one < next), "{names:?}");
        }
    }
    sleep(LONG).await;
    assert_eq!(service.running(), 0, "requests go on without their client");
}

/// Sends everything, closes, and reads all that is answered. `strict`: then the connection must end. Over HTTP/1.1 that is
/// not required: a request that comes while the one before it is forwarded was seen to keep both waiting while the clock
/// is paused, and it is not known yet whether the clock is the reason.
async fn converse(
    stream: impl AsyncRead + AsyncWrite,
    pieces: Vec<Piece>,
    service: &Service,
    serving: tokio::task::JoinHandle<()>,
    strict: bool,
) -> Vec<u8> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut answered = Vec::new();
    let send = async {
        for piece in pieces {
            match piece {
                // The proxy may have closed the connection.
                Piece::Bytes(bytes) => drop(writer.write_all(&bytes).await),
                Piece::Pause(pause) => sleep(pause).await,
                Piece::ProxyStops => service.close(),
            }
        }
        // Answers to complete requests arrive.
        sleep(LONG / 10).await;
        let _ = writer.shutdown().await;
    };
    let receive = async {
        // It may be cut off.
        let _ = reader.read_to_end(&mut answered).await;
    };
    let both = async { tokio::join!(send, receive) };
    let ended = timeout(10 * LONG, both).await.is_ok();
    if strict {
        assert!(ended, "the connection ends");
        let served = timeout(LONG, serving).await.expect("its task ends");
        served.expect("no panic");
    } else {
        serving.abort();
    }
    answered
}
