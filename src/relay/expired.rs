//! A watch that is too old for one apiserver goes on at another one (KEP-1904).
//!
//! An apiserver answers a watch from a revision before its watch cache begins with 410, as HTTP status or as the first
//! event. Its client would list everything again. Where the caches begin is not always known: those of custom resources
//! begin at their first use, and a cache may have lost old events. So the 410 is kept, and the other servers that may
//! have the history are asked, each once ([`crate::routing::decide::after_expiry`]).
//!
//! If the 410 is an event, the client already has a header, because the header of a quiet watch must not wait. Then the
//! answer that goes on must have the same format, and only its body is passed. Whatever else another server answers, the
//! next one is asked. If none serves the watch, its client gets the 410 that was kept; as an event, if it has a header by then.
//!
//! The proxy that a peer has rerouted a watch to passes a 410: the peer asks the others.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Method, StatusCode};
use pingora_core::{Error, ErrorType};
use pingora_http::ResponseHeader;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout, timeout_at};

use super::boxed::rare;
use super::client_session::ClientSession;
use super::exchange::{Exchange, Leaving};
use super::failover::{Authentication, ForwardedRequest, report};
use super::outcome::{ExchangeFailure, Expired, ExpiredEvent, KeptAnswer, Outcome};
use super::plan;
use super::route::Route;
use super::shared::Shared;
use super::upload::Upload;
use super::upstream::{RequestKind, Upstreams};
use super::upstream_stream::UpstreamSession;
use super::watch_rest::Delivered;
use crate::watches::frames::FrameFormat;
use crate::watches::frames::first_event::{FirstEvent, FirstLook, LIMIT};
use crate::watches::metrics::ExpiredResult;

/// Time for the rest of an ERROR event, or of the body of a 410.
const REST_TIMEOUT: Duration = Duration::from_secs(3);
/// Time for a 410 after the header of an answer: kube-apiserver sends both at once. Until then a watch keeps its request.
const QUIET: Duration = Duration::from_secs(3);
/// Time until another server's answer begins.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a watch waits until it may ask other servers.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(5);
const GONE: i32 = 410;

/// What becomes of a 410.
#[derive(Clone, Copy)]
pub enum Expiry<'a> {
    /// It is passed on.
    Pass,
    /// Other servers are asked.
    Ask,
    /// This server is asked because another one has answered 410.
    Asked(&'a ExpiredWatch),
}

/// A watch that is to go on at another server.
pub struct ExpiredWatch {
    /// What the client gets if no server serves it.
    kept: Expired,
    /// The server whose 410 that is.
    from: Route,
    /// The `Content-Type` of the header that the client has; empty before it has one.
    begun: OnceLock<Option<HeaderValue>>,
    /// The current server's answer can go on.
    accepted: AtomicBool,
    counted: AtomicBool,
    /// Held while a server is asked.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl ExpiredWatch {
    fn new(kept: Expired, from: Route, permit: Option<OwnedSemaphorePermit>) -> Self {
        let begun = OnceLock::new();
        if let Expired::Event(event) = &kept {
            begun.get_or_init(|| event.content_type.clone());
        }
        Self {
            kept,
            from,
            begun,
            accepted: AtomicBool::new(false),
            counted: AtomicBool::new(false),
            permit: Mutex::new(permit),
        }
    }

    /// No server is asked any more. From now on the client decides how long it takes.
    fn end_asking(&self) {
        let permit = self.permit.lock();
        drop(permit.unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Whether an answer can go on where the one before has ended.
    fn goes_on_with(&self, response: &ResponseHeader) -> bool {
        let begun = self.begun.get();
        let is_same =
            begun.is_none_or(|begun| begun.as_ref() == response.headers.get(CONTENT_TYPE));
        let is_watch = FrameFormat::of_answer(&response.headers).is_some();
        is_same && is_watch && response.status == StatusCode::OK
    }

    /// The server `route` does not serve it either.
    fn failed(&mut self, route: &Route, failure: &ExchangeFailure) {
        *self.accepted.get_mut() = false;
        if let (Expired::Answer(_), ExchangeFailure::Expired(Expired::Event(event))) =
            (&self.kept, failure)
        {
            // The client has a header now, so it can no longer get the status.
            self.kept = Expired::Event(event.clone());
            self.from = route.clone();
        }
    }

    /// What passes below the header that the client has.
    fn event(&self) -> Bytes {
        match &self.kept {
            Expired::Event(event) => event.body.clone(),
            Expired::Answer(answer) => {
                let content_type = self.begun.get().and_then(Option::as_ref);
                let format = content_type.and_then(FrameFormat::of_content_type);
                let event = format.and_then(|format| format.error_event(&answer.body));
                // Without an event the client resumes once more.
                event.unwrap_or_default()
            }
        }
    }

    /// Counts the watch once.
    fn count(&self, shared: &Shared, result: ExpiredResult) {
        if !self.counted.swap(true, Ordering::Relaxed) {
            shared.metrics.watches.expired(result);
        }
    }
}

/// The beginning of an answer's body, which may be a 410. `None`: the rest passes as it is.
pub(super) type AnswerStart = Option<Box<BeginningBody>>;

/// What was read of the first event.
pub(super) struct BeginningBody {
    first: FirstEvent,
    content_type: Option<HeaderValue>,
    /// Its beginning was read.
    begun: bool,
    /// For its beginning, then for its rest.
    deadline: Instant,
}

/// Why there is no next piece.
pub(super) enum PieceError {
    /// The answer broke off.
    BrokeOff(Box<pingora_core::Error>),
    /// Another server is to be asked. Of the body nothing was passed.
    Failed(ExchangeFailure),
}

impl Expiry<'_> {
    /// Whether the client has a header of another server.
    pub(super) fn is_begun(self) -> bool {
        matches!(self, Expiry::Asked(watch) if watch.begun.get().is_some())
    }

    /// The client gets a header with this `Content-Type`.
    pub(super) fn begins(self, response: &ResponseHeader) {
        if let Expiry::Asked(watch) = self {
            let content_type = || response.headers.get(CONTENT_TYPE).cloned();
            watch.begun.get_or_init(content_type);
        }
    }

    /// Resolves when a server has had its time to answer.
    pub(super) async fn answer_timeout(self) {
        match self {
            Expiry::Asked(_) => rare(|| tokio::time::sleep(ANSWER_TIMEOUT)).await,
            Expiry::Pass | Expiry::Ask => std::future::pending().await,
        }
    }

    /// Whether an answer can be passed.
    pub(super) fn accepts(self, response: &ResponseHeader) -> bool {
        match self {
            Expiry::Pass | Expiry::Ask => true,
            Expiry::Asked(watch) => {
                let accepted = watch.goes_on_with(response);
                watch.accepted.store(accepted, Ordering::Relaxed);
                if accepted {
                    // The watch may stay open for hours.
                    watch.end_asking();
                }
                accepted
            }
        }
    }

    /// What is to be looked at of an answer with this header.
    pub(super) fn answer_start(self, response: &ResponseHeader) -> AnswerStart {
        // The length of one answer cannot be that of another.
        let is_watch =
            response.status == StatusCode::OK && !response.headers.contains_key(CONTENT_LENGTH);
        let format = match self {
            Expiry::Ask | Expiry::Asked(_) if is_watch || self.is_begun() => {
                FrameFormat::of_answer(&response.headers)
            }
            _ => None,
        };
        let begins = |format| BeginningBody {
            first: FirstEvent::new(format),
            content_type: response.headers.get(CONTENT_TYPE).cloned(),
            begun: false,
            deadline: Instant::now() + QUIET,
        };
        format.map(|format| Box::new(begins(format)))
    }
}

impl Exchange<'_> {
    /// Whether the answer is a 410 that other servers may not give.
    pub(super) fn may_be_expired(&self, response: &ResponseHeader) -> bool {
        response.status == StatusCode::GONE && !matches!(self.expiry, Expiry::Pass)
    }

    /// Reads a 410.
    pub(super) async fn check_expired(
        &self,
        down: &mut ClientSession,
        mut up: UpstreamSession,
        response: Box<ResponseHeader>,
        method: &Method,
        upload: &mut Upload,
    ) -> Result<Delivered, ExchangeFailure> {
        let prefix = self.read_prefix(&mut up, LIMIT, REST_TIMEOUT).await;
        match prefix {
            Some(prefix) if prefix.complete && prefix.body.len() <= LIMIT => {
                self.release(up, upload).await;
                let body = prefix.body.into();
                let answer = Arc::new(KeptAnswer { response, body });
                Err(ExchangeFailure::Expired(Expired::Answer(answer)))
            }
            _ if matches!(self.expiry, Expiry::Asked(_)) => Err(ExchangeFailure::NotContinued),
            Some(prefix) => {
                self.shared.metrics.watches.expired(ExpiredResult::Passed);
                self.pass(down, up, response, prefix, method, upload).await
            }
            // Nothing was passed on, and a watch changes nothing.
            None => Err(ExchangeFailure::BrokeOff {
                error: Error::explain(ErrorType::ReadError, "in the body of a 410"),
                reused: false,
            }),
        }
    }

    /// Reads the next piece that can be passed; an empty one when the rest passes as it is. May be dropped and called
    /// again.
    pub(super) async fn next_piece(
        &self,
        up: &mut UpstreamSession,
        start: &mut AnswerStart,
    ) -> Result<Option<Bytes>, PieceError> {
        loop {
            let Some(beginning) = start else {
                return up.read_body().await.map_err(PieceError::BrokeOff);
            };
            // Boxed, because it is over after the first event.
            let reading = Box::pin(timeout_at(beginning.deadline, up.read_body()));
            let read = match reading.await {
                Ok(read) => read,
                // The event is not what it seemed to be.
                Err(_) if beginning.begun => return self.undecided(start),
                Err(_) => {
                    self.goes_on(start);
                    return Ok(Some(Bytes::new()));
                }
            };
            match read {
                Ok(Some(data)) => match beginning.first.look(data) {
                    FirstLook::Undecided => {
                        if beginning.first.is_begun() && !beginning.begun {
                            beginning.begun = true;
                            beginning.deadline = Instant::now() + REST_TIMEOUT;
                        }
                    }
                    look => return self.decided(start, look),
                },
                Ok(None) if beginning.begun => return self.undecided(start),
                Ok(None) => return Ok(None),
                Err(error) => {
                    return Err(match self.expiry {
                        Expiry::Asked(_) => {
                            let reused = false;
                            PieceError::Failed(ExchangeFailure::BrokeOff { error, reused })
                        }
                        _ => PieceError::BrokeOff(error),
                    });
                }
            }
        }
    }

    /// The server serves the watch, and has no event yet.
    fn goes_on(&self, start: &mut AnswerStart) {
        *start = None;
        if let Expiry::Asked(watch) = self.expiry {
            watch.count(self.shared, ExpiredResult::Avoided);
        }
    }

    /// The first event is read as far as it is looked at.
    fn decided(
        &self,
        start: &mut AnswerStart,
        look: FirstLook,
    ) -> Result<Option<Bytes>, PieceError> {
        let content_type = start.take().and_then(|beginning| beginning.content_type);
        match (look, self.expiry) {
            (FirstLook::Error(Some(GONE), body), _) => {
                let event = Arc::new(ExpiredEvent { content_type, body });
                let expired = Expired::Event(event);
                Err(PieceError::Failed(ExchangeFailure::Expired(expired)))
            }
            (FirstLook::Undecided | FirstLook::Error(..), Expiry::Asked(_)) => {
                Err(PieceError::Failed(ExchangeFailure::NotContinued))
            }
            (FirstLook::NoError(data), Expiry::Asked(watch)) => {
                watch.count(self.shared, ExpiredResult::Avoided);
                Ok(Some(data))
            }
            (FirstLook::Error(_, data) | FirstLook::NoError(data), _) => Ok(Some(data)),
            (FirstLook::Undecided, _) => Ok(None),
        }
    }

    /// The first event is not complete and will not be.
    fn undecided(&self, start: &mut AnswerStart) -> Result<Option<Bytes>, PieceError> {
        let look = start.as_mut().map(|beginning| beginning.first.give_up());
        self.decided(start, look.unwrap_or(FirstLook::Undecided))
    }

    /// Passes a 410 as the only event below a header that was sent.
    async fn pass_event(&self, down: &mut ClientSession, event: Bytes, upload: &Upload) -> Outcome {
        let length = event.len();
        let mut answer_writer = self.answer_writer(Some(length));
        let passing = async {
            answer_writer.reserve(length).await?;
            let write = down.write_body(event, true);
            answer_writer.write(pin!(write)).await
        };
        match passing.await {
            Ok(()) => upload.answered(StatusCode::OK.as_u16()),
            Err(_) => Outcome::Broken,
        }
    }
}

/// The server that has answered 410, and what was tried before.
pub(super) struct FirstExpiry {
    pub(super) expired: Expired,
    pub(super) from: Route,
    pub(super) tried: Vec<SocketAddr>,
}

impl ForwardedRequest<'_> {
    /// What becomes of a 410 to this request.
    pub(super) fn expiry(&self, upload: &Upload) -> Expiry<'static> {
        let resumes = self.route_request.resume.is_some() && !self.route_request.rerouted;
        match resumes && self.kind == RequestKind::Long && !upload.is_expected() {
            true => Expiry::Ask,
            false => Expiry::Pass,
        }
    }

    /// Asks other servers for a watch that one has answered with 410.
    pub(super) async fn after_expiry(
        &self,
        shared: &Shared,
        upstreams: &Upstreams,
        authentication: &Authentication<'_>,
        session: &mut ClientSession,
        upload: &mut Upload,
        FirstExpiry {
            expired,
            from,
            mut tried,
        }: FirstExpiry,
    ) -> Delivered {
        let custom = self.is_custom(shared);
        let mut failure = ExchangeFailure::Expired(expired.clone());
        report(shared, &from, &failure, custom);
        tried.push(from.address);
        let limit = shared.expired_watches.clone();
        // A client that has not sent all of its request would decide how long the permit is held.
        let permit = match upload.is_read() {
            true => timeout(PERMIT_TIMEOUT, limit.acquire_owned()).await.ok(),
            false => None,
        };
        let permit = permit.and_then(Result::ok);
        let may_ask = permit.is_some();
        let mut watch = ExpiredWatch::new(expired, from, permit);
        let mut again = None;
        loop {
            let exclusive = again.is_some();
            let next = || plan::after_expiry(shared, self.route_request, &tried);
            let next = again.or_else(|| may_ask.then(next).flatten());
            let Some(route) = next else { break };
            if !exclusive {
                shared.metrics.failed_over(&failure, custom);
            }
            let exchange =
                self.exchange(shared, upstreams, authentication, &route, upload, exclusive);
            let Ok((mut exchange, header)) = exchange else {
                break;
            };
            exchange.expiry = Expiry::Asked(&watch);
            exchange.leaving = Some(Leaving {
                reads: true,
                has_answer: true,
                tried: &tried,
                budget: &upstreams.read_budget,
                ticker: &upstreams.ticker,
            });
            failure = match exchange.run(session, header, upload, None).await {
                Ok(delivered) => {
                    if *watch.accepted.get_mut() {
                        watch.count(shared, ExpiredResult::Avoided);
                    }
                    self.count_answer(shared, &route, &delivered);
                    return delivered;
                }
                Err(failure) => failure,
            };
            self.meter.attempt_failed(&failure);
            watch.failed(&route, &failure);
            // A server may close a connection that was used before at any time.
            again = (failure.is_of_the_connection() && !exclusive).then(|| route.clone());
            if again.is_none() {
                report(shared, &route, &failure, custom);
                tried.push(route.address);
            }
        }
        watch.count(shared, ExpiredResult::Passed);
        watch.end_asking();
        self.pass_expired(shared, upstreams, authentication, session, upload, &watch)
            .await
    }

    /// No server serves the watch: passes the 410.
    async fn pass_expired(
        &self,
        shared: &Shared,
        upstreams: &Upstreams,
        authentication: &Authentication<'_>,
        session: &mut ClientSession,
        upload: &mut Upload,
        watch: &ExpiredWatch,
    ) -> Delivered {
        let exchange = self.exchange(
            shared,
            upstreams,
            authentication,
            &watch.from,
            upload,
            false,
        );
        let Ok((exchange, _)) = exchange else {
            return Outcome::Broken.into();
        };
        match &watch.kept {
            Expired::Answer(answer) if watch.begun.get().is_none() => {
                self.pass(&exchange, session, upload, &watch.from, answer)
                    .await
            }
            _ => {
                let passing = exchange.pass_event(session, watch.event(), upload);
                let delivered = passing.await.into();
                self.count_answer(shared, &watch.from, &delivered);
                delivered
            }
        }
    }
}
