//! The rest of a watch, after the beginning of its answer was passed on.
//!
//! A watch lasts for hours and is mostly silent, and a server has thousands. So what its request needed until then is
//! given back: its header, its route, and the state in which another server could be asked. This holds what a quiet
//! watch without a request body still needs. Other requests stay where they began (`super::pump`).
//!
//! A watch whose server stops is left ([`RestEnd::Left`]): another server may go on with it.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tokio::time::{Instant, sleep_until};

use super::pump::{Answer, Delivered, End, Exchange, log_break};
use crate::metrics::Open;
use crate::relay::client::{AnswerWriter, ClientSession, Downstream};
use crate::relay::outcome::Outcome;
use crate::relay::shared::Shared;
use crate::relay::upstream::UpstreamSession;
use crate::relay::watch::{AskedServers, Dependencies, FinalBookmark, Watch, until_terminated};
use crate::request::headers::GOES_ON;
use crate::retry::jittered;
use crate::routing::table::ServerKind;
use crate::watches::metrics::LeaveReason;

/// Between the signals to an apiserver and to its proxy, if both are told to stop.
const TOLD_TOGETHER: Duration = Duration::from_secs(1);

/// How long a watch stays at an apiserver that is shutting down before others are asked again.
const STAY: Duration = Duration::from_secs(1);

/// A watch whose answer has begun.
pub struct WatchRest {
    /// `None`: its server has stopped.
    up: Option<UpstreamSession>,
    /// The HTTP status.
    pub code: u16,
    server: SocketAddr,
    pub watch: Arc<Watch>,
    pub dependencies: Dependencies,
    /// When this server began to serve it.
    pub begun: Instant,
    /// Its server is stopping, and no other could go on with the watch: it stays until then.
    stays_until: Option<Instant>,
    /// Who was asked to go on with it.
    pub asked: AskedServers,
    /// It was sent here for its version; set by the service.
    pub moved: bool,
}

/// How a server's part of a watch has ended.
pub enum RestEnd {
    /// With the watch.
    Ended(Outcome),
    /// The server stops, or has stopped.
    Left(LeaveReason),
}

impl WatchRest {
    pub(super) fn of(
        exchange: &Exchange<'_>,
        watch: Arc<Watch>,
        up: Option<UpstreamSession>,
        code: u16,
    ) -> Delivered {
        Delivered::Continues(Box::new(Self {
            up,
            code,
            server: exchange.route.address,
            watch,
            dependencies: exchange.dependencies(),
            begun: Instant::now(),
            stays_until: None,
            asked: AskedServers::default(),
            moved: false,
        }))
    }

    /// Passes the rest on to its end, or until its server stops. One function, because thousands of these futures wait: each
    /// call that is awaited would have its arguments in it once more.
    pub async fn run(
        &mut self,
        shared: &Shared,
        downstream: &Downstream,
        down: &mut ClientSession,
    ) -> RestEnd {
        let Some(up) = &mut self.up else {
            return RestEnd::Left(LeaveReason::BrokeOff);
        };
        let _open = Open::new(&shared.metrics.long_running);
        let _moved = self.moved.then(|| Open::new(&shared.metrics.moved[1]));
        let _long = downstream.outflow.long_running();
        let final_bookmark = FinalBookmark::of_watch(shared, Some(self.watch.clone()));
        let rest = (&*self.watch, self.dependencies.server_kind);
        let termination = until_terminated(&final_bookmark, &downstream.client, &self.dependencies);
        let mut termination = pin!(termination);
        let mut leaving = pin!(until_left(shared, rest, self.stays_until));
        let (unread, outflow) = (&shared.limits.unread, &downstream.outflow);
        let mut writer = AnswerWriter::new(unread, outflow, true, up.content_length()).of(up);
        let mut answer = Answer::new(Some(&final_bookmark), self.server, &mut writer);
        let left = loop {
            // Boxed, because thousands of watches only wait.
            let end = tokio::select! {
                _ = down.read_body_or_idle(true) => Some(End::Broken),
                () = &mut termination => Box::pin(answer.end_early(down)).await,
                () = &mut leaving => break LeaveReason::ShutsDown,
                piece = up.read_body() => match piece {
                    Ok(Some(data)) => Box::pin(answer.pass(down, data, false)).await,
                    Ok(None) => match Box::pin(up.read_trailers()).await {
                        Ok(trailers) if is_left(shared, rest, trailers.as_ref()) => {
                            break LeaveReason::Ended;
                        }
                        trailers => Box::pin(answer.end(down, async { trailers })).await,
                    },
                    Err(error) => {
                        log_break(self.server, &error);
                        break LeaveReason::BrokeOff;
                    }
                },
            };
            match end {
                None => {}
                Some(End::NotContinued) => break LeaveReason::BrokeOff,
                Some(end) => return RestEnd::Ended(end.outcome(self.code, true)),
            }
        };
        if left != LeaveReason::ShutsDown {
            self.up = None;
        }
        RestEnd::Left(left)
    }

    /// Its server need not wait for it.
    pub fn leave(&mut self) {
        self.up = None;
    }

    /// No other server goes on with it, and its own still serves it.
    pub fn stays(mut self: Box<Self>) -> Delivered {
        self.stays_until = Some(Instant::now() + jittered(STAY));
        Delivered::Continues(self)
    }

    /// No server goes on with it: it ends as if its apiserver had ended it, with a last bookmark.
    pub async fn end(&self, shared: &Shared, down: &mut ClientSession) -> Outcome {
        let final_bookmark = FinalBookmark::of_watch(shared, Some(self.watch.clone()));
        let ended = final_bookmark.after_break(down).await;
        ended
            .map_or(End::Broken, |()| End::Early)
            .outcome(self.code, true)
    }
}

/// Resolves when the local apiserver stops, so that it need not wait for this watch. Not if this proxy was told to stop as
/// well: it may be told a moment later.
async fn until_left(shared: &Shared, rest: (&Watch, ServerKind), mut stays_until: Option<Instant>) {
    let (watch, server_kind) = rest;
    if server_kind != ServerKind::Local || !watch.can_be_left() {
        return std::future::pending().await;
    }
    let mut changes = shared.local.changes();
    loop {
        if watch.is_at_stopping_local(shared) && !shared.shutdown.is_leaving() {
            // Not all at the same moment.
            let told = || Instant::now() + TOLD_TOGETHER + jittered(TOLD_TOGETHER) / 2;
            Box::pin(sleep_until(stays_until.take().unwrap_or_else(told))).await;
            let stops_alone = watch.is_at_stopping_local(shared) && !shared.shutdown.is_leaving();
            if stops_alone && watch.may_leave(shared) {
                return;
            }
            continue;
        }
        // The sender is there as long as the proxy.
        let _ = changes.changed().await;
    }
}

/// Whether another server may go on with a watch that its server has ended: it was shutting down, or it was at a peer whose
/// proxy says so.
fn is_left(shared: &Shared, rest: (&Watch, ServerKind), trailers: Option<&HeaderMap>) -> bool {
    let (watch, server_kind) = rest;
    match server_kind {
        ServerKind::Local => watch.can_be_left() && watch.is_at_stopping_local(shared),
        _ => trailers.is_some_and(|trailers| trailers.contains_key(GOES_ON)),
    }
}
