//! The rest of a watch, after the beginning of its answer was passed on.
//!
//! A watch lasts for hours and is mostly silent, and a server has thousands. So what its request needed until then is
//! given back: its header, its route, and the state in which another server could be asked. This holds what a quiet
//! watch without a request body still needs. Other requests stay where they began (`super::pump`).
//!
//! A watch whose server stops is left: another server may go on with it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;

use super::expired::{AnswerStart, PieceError, next_piece};
use super::pump::{Answer, Delivered, End, Exchange, log_break};
use crate::metrics::Open;
use crate::net::boxed;
use crate::relay::client::{AnswerWriter, ClientSession, Downstream};
use crate::relay::outcome::{ExchangeFailure, Outcome};
use crate::relay::shared::Shared;
use crate::relay::upstream::UpstreamSession;
use crate::relay::watch::{AskedServers, Dependencies, FinalBookmark, Watch};
use crate::request::caller::ClientConnection;
use crate::request::headers::GOES_ON;
use crate::retry::jittered;
use crate::routing::table::ServerKind;
use crate::shutdown::ShutdownPhase;
use crate::watches::metrics::LeaveReason;

/// Between the signals to an apiserver and to its proxy, if both are told to stop.
const TOLD_TOGETHER: Duration = Duration::from_secs(1);

/// How long a watch stays at an apiserver that is shutting down before others are asked again.
const STAY: Duration = Duration::from_secs(1);

/// A watch whose answer has begun.
pub struct WatchRest {
    /// `None`: its server has stopped.
    up: Option<UpstreamSession>,
    /// The beginning of the answer, if it is still to be looked at.
    start: AnswerStart,
    /// What was read of the answer and not passed on.
    read: Option<Box<Bytes>>,
    /// The HTTP status.
    pub code: u16,
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

impl WatchRest {
    pub(super) fn of(
        exchange: &Exchange<'_>,
        watch: Arc<Watch>,
        (up, start): (Option<UpstreamSession>, AnswerStart),
        code: u16,
    ) -> Delivered {
        Delivered::Continues(Box::new(Self {
            up,
            start,
            read: None,
            code,
            watch,
            dependencies: exchange.dependencies(),
            begun: Instant::now(),
            stays_until: None,
            asked: AskedServers::default(),
            moved: false,
        }))
    }

    /// Passes the rest on to its end, or until its server stops, or has stopped (an error). Thousands of these futures wait:
    /// what is needed only when something happens is in a box of its own.
    pub async fn run(
        &mut self,
        shared: &Shared,
        downstream: &Downstream,
        down: &mut ClientSession,
    ) -> Result<Outcome, LeaveReason> {
        let Some(up) = &mut self.up else {
            return Err(LeaveReason::BrokeOff);
        };
        let _open = Open::new(&shared.metrics.long_running);
        let _moved = self.moved.then(|| Open::new(&shared.metrics.moved[1]));
        let _unlimited = downstream.outflow.unlimited();
        let final_bookmark = FinalBookmark::of_watch(shared, Some(self.watch.clone()));
        let rest = (&*self.watch, &self.dependencies);
        let over = until_over(&final_bookmark, &downstream.client, rest, self.stays_until);
        let mut over = pin!(over);
        let (unread, outflow) = (&shared.limits.unread, &downstream.outflow);
        let mut writer = AnswerWriter::new(unread, outflow, true, up.content_length()).of(up);
        let mut read = self.read.take();
        let end = loop {
            let event = match read.take() {
                Some(data) => Event::Read(Ok(Some(*data))),
                None => tokio::select! {
                    _ = down.read_body_or_idle(true) => Event::ClientGone,
                    event = &mut over => event,
                    piece = up.read_body() => Event::Read(piece),
                },
            };
            let answer = Answer::new(Some(&final_bookmark), &mut writer);
            match boxed(|| take(event, shared, rest, answer, up, down)).await {
                Ok(None) => {}
                Ok(Some(end)) => return Ok(end.outcome(self.code, true)),
                Err(reason) => break reason,
            }
        };
        if end != LeaveReason::ShutsDown {
            self.up = None;
        }
        Err(end)
    }

    /// Waits until it is clear that its server goes on with it. Holds little: thousands of watches wait for that at once. An
    /// `async fn` would hold its arguments twice.
    pub fn begun(
        mut self: Box<Self>,
        shared: &Shared,
        down: &mut ClientSession,
    ) -> impl Future<Output = Result<Delivered, ExchangeFailure>> {
        let shutdown = &shared.shutdown;
        async move {
            let Some(up) = self.up.as_mut().filter(|_| self.start.is_some()) else {
                return Ok(Delivered::Continues(self));
            };
            let piece = tokio::select! {
                piece = next_piece(up, &mut self.start) => Some(piece),
                _ = down.read_body_or_idle(true) => return Ok(Outcome::Broken.into()),
                () = shutdown.reaches(ShutdownPhase::Leaving) => None,
            };
            let read = match piece {
                Some(Ok(data)) => data,
                Some(Err(PieceError::Failed(failure))) => return Err(failure),
                Some(Err(PieceError::BrokeOff(error))) => {
                    return Err(ExchangeFailure::broke_off(error));
                }
                // Nothing waits now. What passes the rest on looks whether it fits.
                None => self.start.take().map(|mut start| start.first.take_kept()),
            };
            if let Some(data) = &read {
                let fits = self.watch.fits(data);
                fits.map_err(|_| ExchangeFailure::NotContinued)?;
            }
            self.read = read.map(Box::new);
            Ok(Delivered::Continues(self))
        }
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

    /// No server goes on with it: it ends as if its apiserver had ended it, with a last event.
    pub async fn end(&self, shared: &Shared, down: &mut ClientSession) -> Outcome {
        let final_bookmark = FinalBookmark::of_watch(shared, Some(self.watch.clone()));
        let ended = final_bookmark.after_break(down).await;
        ended
            .map_or(End::Broken, |()| End::Early)
            .outcome(self.code, true)
    }
}

/// What a watch waits for.
enum Event {
    ClientGone,
    /// The proxy is to end it.
    Terminated,
    /// The local apiserver stops, and it leaves that.
    Left,
    Read(pingora_core::Result<Option<Bytes>>),
}

/// How the watch has ended, if it has; an error: it is left.
async fn take(
    event: Event,
    shared: &Shared,
    rest: (&Watch, &Dependencies),
    mut answer: Answer<'_, '_>,
    up: &mut UpstreamSession,
    down: &mut ClientSession,
) -> Result<Option<End>, LeaveReason> {
    let end = match event {
        Event::ClientGone => Some(End::Broken),
        Event::Left => return Err(LeaveReason::ShutsDown),
        Event::Terminated => answer.end_early(down, false).await,
        Event::Read(Ok(Some(data))) => answer.pass(down, data, false).await,
        Event::Read(Ok(None)) => match up.read_trailers().await {
            Ok(trailers) if is_left(shared, rest, trailers.as_ref()) => {
                return Err(LeaveReason::Ended);
            }
            trailers => answer.end(down, async { trailers }).await,
        },
        Event::Read(Err(error)) => {
            log_break(rest.0.served_by().server, &error);
            return Err(LeaveReason::BrokeOff);
        }
    };
    match end {
        Some(End::NotContinued) => Err(LeaveReason::BrokeOff),
        end => Ok(end),
    }
}

/// Resolves when the proxy is to end a watch, or when the local apiserver stops, so that it need not wait for the watch. The
/// watch is not left if this proxy was told to stop as well: it may be told a moment later.
async fn until_over(
    final_bookmark: &FinalBookmark<'_>,
    client: &ClientConnection,
    (watch, dependencies): (&Watch, &Dependencies),
    mut stays_until: Option<Instant>,
) -> Event {
    let shared = final_bookmark.shared;
    let can_be_left = dependencies.server_kind == ServerKind::Local && watch.can_be_left();
    let mut changes = shared.callers.revalidations.subscribe();
    loop {
        let stops = || {
            // A client that would not be let in any more ends in its time.
            let can_be_left = can_be_left && dependencies.is_let_in(shared, client);
            until_stopping(shared, watch, can_be_left)
        };
        if dependencies.end(final_bookmark, client, stops).await {
            return Event::Terminated;
        }
        let now = Instant::now();
        if stays_until.is_some_and(|until| until <= now) {
            if watch.is_at_stopping_local(shared) && watch.may_leave(shared) {
                return Event::Left;
            }
            stays_until = None;
        }
        if can_be_left && stays_until.is_none() && watch.is_at_stopping_local(shared) {
            // Not all at the same moment.
            stays_until = Some(now + TOLD_TOGETHER + jittered(TOLD_TOGETHER) / 2);
        }
        dependencies
            .until_a_change(client, &mut changes, stays_until)
            .await;
    }
}

/// Resolves when the local apiserver stops, and this proxy does not, if a watch there can be left.
async fn until_stopping(shared: &Shared, watch: &Watch, can_be_left: bool) {
    let mut changes = shared.callers.revalidations.subscribe();
    while !can_be_left || !watch.is_at_stopping_local(shared) || shared.shutdown.is_leaving() {
        // The sender is there as long as the proxy.
        let _ = changes.changed().await;
    }
}

/// Whether another server may go on with a watch that its server has ended: it was shutting down, or it was at a peer whose
/// proxy says so.
fn is_left(shared: &Shared, rest: (&Watch, &Dependencies), trailers: Option<&HeaderMap>) -> bool {
    let (watch, dependencies) = rest;
    match dependencies.server_kind {
        ServerKind::Local => watch.can_be_left() && watch.is_at_stopping_local(shared),
        _ => trailers.is_some_and(|trailers| trailers.contains_key(GOES_ON)),
    }
}
