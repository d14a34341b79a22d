//! The rest of a watch, after the beginning of its answer was passed on.
//!
//! A watch lasts for hours and is mostly silent, and a server has thousands. So what its request needed until then is
//! given back: its header, its route, and the state in which another server could be asked. This holds what a quiet
//! HTTP/2 watch without a request body still needs. Other requests stay where they began ([`super::stream`]).

use std::pin::pin;
use std::sync::Arc;

use super::access_log::{AccessEntry, WatchRequest};
use super::client_session::ClientSession;
use super::destination::Destination;
use super::downstream::Downstream;
use super::exchange::gone;
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
            tokio::select! {
                piece = up.read_body() => match piece {
                    Ok(Some(data)) => {
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
                    Ok(None) => {
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
                    Err(error) => {
                        let ending = break_off(&final_bookmark, caller, destination, &error, down);
                        let ended = Box::pin(ending).await;
                        return ended.map_or(Outcome::Broken, |()| answered(false));
                    }
                },
                () = gone(down) => return Outcome::Broken,
                () = &mut turn => {
                    let written = Box::pin(final_bookmark.write(down)).await;
                    return written.map_or(Outcome::Broken, |()| answered(false));
                }
            }
        }
    }
}
