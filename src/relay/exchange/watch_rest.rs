//! The rest of a watch, after the beginning of its answer was passed on.
//!
//! A watch lasts for hours and is mostly silent, and a server has thousands. So what its request needed until then is
//! given back: its header, its route, and the state in which another server could be asked. This holds what a quiet
//! HTTP/2 watch without a request body still needs. Other requests stay where they began (`super::stream`).

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::parameters::Exchange;
use super::pieces::{break_off, ends, pass};
use crate::metrics::Open;
use crate::relay::client::unread::AnswerWriter;
use crate::relay::client::{ClientSession, Downstream};
use crate::relay::observe::{AccessEntry, WatchRequest};
use crate::relay::outcome::Outcome;
use crate::relay::shared::Shared;
use crate::relay::upstream::{ServerKind, UpstreamStream};
use crate::relay::watch::{FinalBookmark, Revalidation, Watch};
use crate::request::caller::Caller;
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
    pub request: Option<WatchRequest>,
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
            caller: exchange.context.request.caller.clone(),
            trust: exchange.group.trust().clone(),
            presented: exchange.presents_certificate(),
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
        let answered = |reusable| Outcome::Answered {
            code: self.code,
            reusable,
        };
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
        let mut answer_writer = AnswerWriter::new(
            &shared.limits.unread,
            &downstream.outflow,
            true,
            self.up.content_length(),
        );
        let outcome = loop {
            let next = poll_fn(|context| next(&mut self.up, down, turn.as_mut(), context)).await;
            // Boxed, because thousands of watches only wait. What happens only once is boxed again, inside.
            let acting = Box::pin(async {
                match next {
                    Next::Piece(Ok(Some(data))) => {
                        let end = self.up.is_complete();
                        if data.is_empty() && !end {
                            return None;
                        }
                        let passing = pass(&final_bookmark, down, data, end, &mut answer_writer);
                        match passing.await {
                            Ok(false) => None,
                            Ok(true) => Some(answered(true)),
                            Err(_) => Some(Outcome::Broken),
                        }
                    }
                    Next::Piece(Ok(None)) => {
                        let ending = Box::pin(async {
                            final_bookmark.before_end(down).await?;
                            match self.up.read_trailers().await? {
                                Some(trailers) => down.write_trailers(trailers),
                                None => Ok(()),
                            }
                        });
                        let ended = ending.await;
                        Some(ended.map_or(Outcome::Broken, |()| answered(true)))
                    }
                    Next::Piece(Err(error)) => {
                        let server = self.watch.server;
                        let ending = break_off(&final_bookmark, &self.caller, server, &error, down);
                        let ended = Box::pin(ending).await;
                        Some(ended.map_or(Outcome::Broken, |()| answered(false)))
                    }
                    Next::Gone => Some(Outcome::Broken),
                    Next::Turn => {
                        let written = Box::pin(final_bookmark.write(down)).await;
                        Some(written.map_or(Outcome::Broken, |()| answered(false)))
                    }
                }
            });
            if let Some(outcome) = acting.await {
                break outcome;
            }
        };
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
