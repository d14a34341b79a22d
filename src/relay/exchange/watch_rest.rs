//! The rest of a watch, after the beginning of its answer was passed on.
//!
//! A watch lasts for hours and is mostly silent, and a server has thousands. So what its request needed until then is
//! given back: its header, its route, and the state in which another server could be asked. This holds what a quiet
//! HTTP/2 watch without a request body still needs. Other requests stay where they began (`super::pump`).

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::headers::Exchange;
use super::pump::{Answer, End};
use crate::metrics::Open;
use crate::relay::client::unread::AnswerWriter;
use crate::relay::client::{ClientSession, Downstream};
use crate::relay::observe::AccessEntry;
use crate::relay::outcome::Outcome;
use crate::relay::shared::Shared;
use crate::relay::upstream::UpstreamStream;
use crate::relay::watch::{FinalBookmark, Revalidation, Watch, ends};
use crate::request::caller::Caller;
use crate::routing::table::ServerKind;
use crate::tls::credentials::Trust;

/// How far the answer to a request was delivered.
pub enum Delivered {
    /// The request ended.
    Ended(Outcome),
    /// The answer to a watch has begun. Who serves the client's connection lets the rest run.
    Continues(Box<WatchRest>),
}

impl From<Outcome> for Delivered {
    fn from(outcome: Outcome) -> Self {
        Self::Ended(outcome)
    }
}

/// A watch whose answer has begun.
pub struct WatchRest {
    up: Box<UpstreamStream>,
    server_kind: ServerKind,
    /// The HTTP status.
    pub code: u16,
    caller: Caller,
    /// The credentials of the upstream connection.
    trust: Arc<Trust>,
    /// Whether the proxy client certificate was presented.
    presented: bool,
    watch: Arc<Watch>,
    /// For the access log; set by the service.
    pub request: Option<AccessEntry<'static>>,
}

impl WatchRest {
    /// What is left of the exchange with the server that has begun to answer with `code`.
    pub(super) fn new(
        exchange: &Exchange<'_>,
        up: Box<UpstreamStream>,
        code: u16,
        watch: Arc<Watch>,
    ) -> Self {
        Self {
            up,
            server_kind: exchange.route.server_kind,
            code,
            caller: exchange.context.caller.clone(),
            trust: exchange.pool.to.trust.clone(),
            presented: exchange.pool.to.presents_certificate,
            watch,
            request: None,
        }
    }

    /// Passes the rest on to its end. One function, because thousands of these futures wait: each call that is awaited
    /// would have its arguments in it once more.
    pub async fn run(
        mut self: Box<Self>,
        shared: &Shared,
        downstream: &Downstream,
        down: &mut ClientSession,
    ) -> Outcome {
        let _open = Open::new(&shared.metrics.long_running);
        let _long = downstream.outflow.long_running();
        let final_bookmark = FinalBookmark::of_rest(shared, &self.watch);
        let revalidation = Revalidation {
            shared,
            connection: &downstream.client,
            caller: &self.caller,
            trust: &self.trust,
            presented: self.presented,
            server_kind: self.server_kind,
        };
        let mut turn = pin!(ends(&final_bookmark, &revalidation));
        let length = self.up.content_length();
        let mut writer =
            AnswerWriter::new(&shared.limits.unread, &downstream.outflow, true, length);
        let end = loop {
            let next = poll_fn(|context| next(&mut self.up, down, turn.as_mut(), context)).await;
            // Boxed, because thousands of watches only wait. What happens only once is boxed again, inside.
            let acting = Box::pin(async {
                let mut answer = Answer {
                    final_bookmark: &final_bookmark,
                    caller: &self.caller,
                    server: self.watch.server,
                    writer: &mut writer,
                    duplex: None,
                    pending: None,
                };
                match next {
                    Next::Piece(Ok(Some(data))) => {
                        answer.pass(down, data, self.up.is_complete()).await
                    }
                    Next::Piece(Ok(None)) => {
                        Box::pin(answer.end(down, self.up.read_trailers())).await
                    }
                    Next::Piece(Err(error)) => Box::pin(answer.break_off(down, &error)).await,
                    Next::Gone => Some(End::Broken),
                    Next::Turn => Box::pin(answer.end_early(down)).await,
                }
            });
            if let Some(end) = acting.await {
                break end;
            }
        };
        let outcome = end.outcome(Outcome::Answered {
            code: self.code,
            reusable: true,
        });
        if let Some(request) = &self.request {
            request.log(&downstream.client, &self.caller, outcome);
        }
        outcome
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

/// As fair as a `select!`: a busy server delays no turn.
fn next(
    up: &mut UpstreamStream,
    down: &mut ClientSession,
    turn: Pin<&mut impl Future<Output = ()>>,
    context: &mut Context<'_>,
) -> Poll<Next> {
    if down.poll_gone(context).is_ready() {
        return Poll::Ready(Next::Gone);
    }
    if turn.poll(context).is_ready() {
        return Poll::Ready(Next::Turn);
    }
    up.poll_body(context).map(Next::Piece)
}
