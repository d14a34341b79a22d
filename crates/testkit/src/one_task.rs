//! An HTTP/2 connection in one task. In several, hyper takes a GOAWAY that arrives right after a request was sent for the
//! failure of that request, which the server answers (hyper issue 2500).

use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use hyper::body::Body;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::rt::{Executor, Read, Write};
use tokio::sync::mpsc;

/// Where hyper leaves what it would have spawned.
#[derive(Clone)]
struct Left(mpsc::UnboundedSender<BoxFuture<'static, ()>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Left {
    fn execute(&self, future: F) {
        // Without its task the connection has ended.
        let _ = self.0.send(future.boxed());
    }
}

/// Begins HTTP/2 as its client.
pub async fn http2<B>(
    io: impl Read + Write + Unpin + Send + 'static,
) -> hyper::Result<SendRequest<B>>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
    B: Send + Unpin + 'static,
{
    let (left, mut futures) = mpsc::unbounded_channel();
    let (sender, connection) = handshake(Left(left), io).await?;
    tokio::spawn(async move {
        let mut running = FuturesUnordered::new();
        running.push(connection.map(drop).boxed());
        loop {
            tokio::select! {
                Some(future) = futures.recv() => running.push(future),
                Some(()) = running.next() => {}
                else => return,
            }
        }
    });
    Ok(sender)
}
