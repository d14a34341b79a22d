//! Upgraded streams: `exec` and the like.
//!
//! Echoes all input. With `?flood=BYTES` it writes and reads that many bytes at the same time, and then writes `both`.
//! With `?say=BYTES` it writes that many bytes and closes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::{HeaderValue, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
    split,
};

use super::body::{Body, full};
use super::route::query;
use super::state::State;
use super::status::Status;

/// What [`at_once`] says before it was asked.
pub const GREETING: &str = "said before it was asked";
const CHUNK: usize = 64 * 1024;

/// 101 with the protocol asked for.
pub fn upgrade(state: &Arc<State>, record: u64, mut request: Request<Incoming>) -> Response<Body> {
    let Some(protocol) = request.headers().get(header::UPGRADE).cloned() else {
        return Status::bad_request("Upgrade request required").answer(request.headers());
    };
    let offered = ["x-stream-protocol-version", "sec-websocket-protocol"].map(|name| {
        let value = request.headers().get(name)?.to_str().ok()?;
        let first = value.split(',').next().unwrap_or_default().trim();
        Some((name, HeaderValue::from_str(first).ok()?))
    });
    let query = query(request.uri().query().unwrap_or_default());
    let number = |name: &str| query.get(name).and_then(|value| value.parse().ok());
    let (flood, say) = (number("flood"), number("say"));
    let on = hyper::upgrade::on(&mut request);
    let state = Arc::clone(state);
    tokio::spawn(async move {
        let Ok(upgraded) = on.await else { return };
        let stream = TokioIo::new(upgraded);
        state.upgraded.fetch_add(1, Ordering::SeqCst);
        // A broken connection ends the stream, as it should.
        let _ = match (flood, say) {
            (Some(bytes), _) => both_at_once(stream, bytes).await,
            (_, Some(bytes)) => say_and_end(stream, bytes).await,
            _ => echo(stream, &state, record).await,
        };
        state.upgraded.fetch_sub(1, Ordering::SeqCst);
    });
    let mut response = Response::new(full(""));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, protocol);
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    for (name, value) in offered.into_iter().flatten() {
        headers.insert(name, value);
    }
    response
}

/// Answers 101 before anything was read, with a greeting in the same write; echoes what follows the request's header.
pub async fn at_once(
    state: &State,
    stream: impl AsyncRead + AsyncWrite + Unpin,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n{GREETING}"
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.flush().await?;
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
    }
    state.upgraded.fetch_add(1, Ordering::SeqCst);
    let echoed = echo(stream, state, 0).await;
    state.upgraded.fetch_sub(1, Ordering::SeqCst);
    echoed
}

async fn echo(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    state: &State,
    record: u64,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 8192];
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return stream.shutdown().await;
        }
        state
            .recorder
            .change(record, |request| request.body_len += length as u64);
        stream.write_all(&buffer[..length]).await?;
        stream.flush().await?;
    }
}

async fn write(mut to: impl AsyncWrite + Unpin, bytes: usize) -> std::io::Result<()> {
    let chunk = vec![b'x'; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(CHUNK);
        to.write_all(&chunk[..length]).await?;
        left -= length;
    }
    to.flush().await
}

async fn both_at_once(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    bytes: usize,
) -> std::io::Result<()> {
    let (from, mut to) = split(stream);
    let mut from = from.take(bytes as u64);
    let mut nowhere = tokio::io::sink();
    let (wrote, read) = tokio::join!(
        write(&mut to, bytes),
        tokio::io::copy(&mut from, &mut nowhere)
    );
    wrote?;
    if read? == bytes as u64 {
        to.write_all(b"both").await?;
        to.flush().await?;
    }
    // Until the client has read it and goes.
    tokio::io::copy(&mut from.into_inner(), &mut nowhere)
        .await
        .map(drop)
}

async fn say_and_end(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    bytes: usize,
) -> std::io::Result<()> {
    write(&mut stream, bytes).await?;
    stream.shutdown().await?;
    // Closing with unread bytes would reset the connection and lose data in flight.
    tokio::io::copy(&mut stream, &mut tokio::io::sink())
        .await
        .map(drop)
}
