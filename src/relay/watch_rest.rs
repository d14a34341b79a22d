//! The rest of a watch, after the beginning of its answer was passed on.
//!
//! A watch lasts for hours and is mostly silent, and a server has thousands. So what its request needed until then is
//! given back: its header, its route, and the state in which another server could be asked. This holds what a quiet
//! HTTP/2 watch without a request body still needs. Other requests stay where they began ([`super::stream`]).

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;

use super::access_log::{AccessEntry, WatchRequest};
use super::client_session::ClientSession;
use super::destination::Destination;
use super::downstream::Downstream;
use super::final_bookmark::{FinalBookmark, Watch};
use super::outcome::Outcome;
use super::revalidate::Revalidation;
use super::shared::Shared;
use super::stream::{break_off, ends, pass};
use super::unread::AnswerWriter;
use super::upstream_stream::UpstreamSession;
use crate::metrics::Open;
use crate::relay::route::ServerKind;
use crate::request::caller::Caller;
use crate::tls::credentials::Trust;

/// A watch whose answer has begun.
pub struct WatchRest {
    pub up: UpstreamSession,
    pub destination: Destination,
    pub server_kind: ServerKind,
    /// The HTTP status.
    pub code: u16,
    pub caller: Caller,
    /// The credentials of the upstream connection.
    pub trust: Arc<Trust>,
    /// Whether the proxy client certificate was presented.
    pub presented: bool,
    pub watch: Arc<Watch>,
    /// For the access log; set by the service.
    pub request: Option<WatchRequest>,
}

impl WatchRest {
    /// Passes the rest on to its end.
    pub async fn run(
        mut self: Box<Self>,
        shared: &Shared,
        downstream: &Downstream,
        down: &mut ClientSession,
    ) -> Outcome {
        let _open = Open::new(&shared.metrics.long_running);
        let _long = downstream.outflow.long_running();
        let outcome = self.pass(shared, downstream, down).await;
        if let Some(request) = &self.request {
            let entry = AccessEntry {
                client: &downstream.client,
                caller: &self.caller,
                user: request.user.as_ref(),
                decision: request.decision,
                refusal: None,
                method: &request.method,
                path: &request.path,
            };
            entry.log(outcome);
        }
        outcome
    }

    async fn pass(
        &mut self,
        shared: &Shared,
        downstream: &Downstream,
        down: &mut ClientSession,
    ) -> Outcome {
        let Self {
            up,
            destination,
            server_kind,
            code,
            caller,
            trust,
            presented,
            watch,
            ..
        } = self;
        let answered = |reusable| Outcome::Answered {
            code: *code,
            reusable,
        };
        let final_bookmark = FinalBookmark::of_rest(shared, watch);
        let revalidation = Revalidation {
            shared,
            connection: &downstream.client,
            caller,
            trust,
            presented: *presented,
            server_kind: *server_kind,
        };
        let mut turn = pin!(ends(&final_bookmark, &revalidation));
        let mut answer_writer = AnswerWriter::new(
            &shared.unread,
            &downstream.outflow,
            true,
            up.content_length(),
        );
        loop {
            // What happens once, or seldom, is boxed: thousands of watches only wait.
            match next(up, down, turn.as_mut()).await {
                Next::Piece(Ok(Some(data))) => {
                    let end = up.is_complete();
                    if data.is_empty() && !end {
                        continue;
                    }
                    let passing = pass(&final_bookmark, down, data, end, &mut answer_writer);
                    match Box::pin(passing).await {
                        Ok(false) => {}
                        Ok(true) => return answered(true),
                        Err(_) => return Outcome::Broken,
                    }
                }
                Next::Piece(Ok(None)) => {
                    let ending = async {
                        final_bookmark.before_end(down).await?;
                        match up.read_trailers().await? {
                            Some(trailers) => down.write_trailers(trailers),
                            None => Ok(()),
                        }
                    };
                    let ended = Box::pin(ending).await;
                    return ended.map_or(Outcome::Broken, |()| answered(true));
                }
                Next::Piece(Err(error)) => {
                    let ending = break_off(&final_bookmark, caller, destination, &error, down);
                    let ended = Box::pin(ending).await;
                    return ended.map_or(Outcome::Broken, |()| answered(false));
                }
                Next::Gone => return Outcome::Broken,
                Next::Turn => {
                    let written = Box::pin(final_bookmark.write(down)).await;
                    return written.map_or(Outcome::Broken, |()| answered(false));
                }
            }
        }
    }
}

/// What a watch waits for.
enum Next {
    /// The next piece of the answer; `None` at its end.
    Piece(pingora_core::Result<Option<Bytes>>),
    /// The client has gone away.
    Gone,
    /// It is this watch's turn to end.
    Turn,
}

/// Waits. Smaller than a `select!`, and as fair: a busy server delays no turn.
async fn next(
    up: &mut UpstreamSession,
    down: &mut ClientSession,
    mut turn: Pin<&mut impl Future<Output = ()>>,
) -> Next {
    let mut reading = pin!(up.read_body());
    poll_fn(|context| {
        if down.poll_gone(context).is_ready() {
            return Poll::Ready(Next::Gone);
        }
        if turn.as_mut().poll(context).is_ready() {
            return Poll::Ready(Next::Turn);
        }
        reading.as_mut().poll(context).map(Next::Piece)
    })
    .await
}
