//! What becomes of a 410 to a watch, and of the answer of another server that is asked because of it (KEP-1904). The first
//! event of a watch is held back until it is known that it is no 410.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use pingora_http::ResponseHeader;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use crate::net::rare;
use crate::relay::inspect::expired::{REST_TIMEOUT, goes_on, watched_format};
use crate::relay::outcome::{ExchangeFailure, Expired, ExpiredEvent};
use crate::relay::upstream::UpstreamSession;
use crate::watches::frames::first_event::{FirstEvent, FirstLook};
use crate::watches::metrics::{ExpiredResult, WatchMetrics};

/// Time until another server's answer begins.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a 410 after the header of an answer: kube-apiserver sends both at once. Until then a watch keeps its request.
const QUIET: Duration = Duration::from_secs(3);
const GONE: i32 = 410;

/// What becomes of a 410.
#[derive(Clone, Copy)]
pub enum Expiry<'a> {
    /// It is passed on.
    Pass,
    /// Other servers are asked.
    Ask,
    /// This server is asked because another one has answered 410.
    Asked(&'a ResumedWatch),
}

/// A watch that is to go on at another server.
pub struct ResumedWatch {
    /// The `Content-Type` of the header that the client has; empty before it has one.
    begun: OnceLock<Option<HeaderValue>>,
    /// Held while a server is asked.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl ResumedWatch {
    /// After the 410 `kept`.
    pub fn new(kept: &Expired, permit: Option<OwnedSemaphorePermit>) -> Self {
        let begun = OnceLock::new();
        if let Expired::Event(event) = kept {
            begun.get_or_init(|| event.content_type.clone());
        }
        Self {
            begun,
            permit: Mutex::new(permit),
        }
    }

    /// The `Content-Type` of the header that the client has; `None` before it has one.
    pub fn begun(&self) -> Option<&Option<HeaderValue>> {
        self.begun.get()
    }

    /// No server is asked any more. From now on the client decides how long it takes.
    pub fn end_asking(&self) {
        let permit = self.permit.lock();
        drop(permit.unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Expiry<'_> {
    /// Whether the client has a header of another server.
    pub(super) fn is_begun(self) -> bool {
        matches!(self, Expiry::Asked(watch) if watch.begun().is_some())
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
        let Expiry::Asked(watch) = self else {
            return true;
        };
        let accepted = goes_on(watch.begun(), response);
        if accepted {
            // The watch may stay open for hours.
            watch.end_asking();
        }
        accepted
    }

    /// The server serves the watch.
    fn avoided(self, metrics: &WatchMetrics) {
        if let Expiry::Asked(_) = self {
            metrics.expired(ExpiredResult::Avoided);
        }
    }
}

/// The beginning of an answer's body, which may be a 410. `None`: the rest passes as it is.
pub(super) type AnswerStart<'a> = Option<Box<BeginningBody<'a>>>;

/// What was read of the first event.
pub(super) struct BeginningBody<'a> {
    expiry: Expiry<'a>,
    metrics: &'a WatchMetrics,
    first: FirstEvent,
    content_type: Option<HeaderValue>,
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

/// What is to be looked at of an answer with this header, which passes.
pub(super) fn answer_start<'a>(
    expiry: Expiry<'a>,
    metrics: &'a WatchMetrics,
    response: &ResponseHeader,
) -> AnswerStart<'a> {
    if let Expiry::Pass = expiry {
        return None;
    }
    let Some(format) = watched_format(expiry.is_begun(), response) else {
        expiry.avoided(metrics);
        return None;
    };
    Some(Box::new(BeginningBody {
        expiry,
        metrics,
        first: FirstEvent::new(format),
        content_type: response.headers.get(CONTENT_TYPE).cloned(),
        deadline: Instant::now() + QUIET,
    }))
}

/// Reads the next piece that can be passed; an empty one when the rest passes as it is. May be dropped and called
/// again.
pub(super) async fn next_piece(
    up: &mut UpstreamSession,
    start: &mut AnswerStart<'_>,
) -> Result<Option<Bytes>, PieceError> {
    while let Some(beginning) = start {
        let begun = beginning.first.is_begun();
        // Boxed, because it is over after the first event.
        let read = Box::pin(timeout_at(beginning.deadline, up.read_body())).await;
        let look = match read {
            Ok(Ok(Some(data))) => beginning.first.look(data),
            // The event is not complete and will not be.
            Ok(Ok(None)) | Err(_) if begun => FirstLook::Error(None, beginning.first.take_kept()),
            // The server has no event yet.
            Err(_) => FirstLook::NoError(Bytes::new()),
            Ok(Ok(None)) => {
                beginning.expiry.avoided(beginning.metrics);
                *start = None;
                return Ok(None);
            }
            Ok(Err(error)) => {
                return Err(match beginning.expiry {
                    Expiry::Asked(_) => {
                        let reused = false;
                        PieceError::Failed(ExchangeFailure::BrokeOff { error, reused })
                    }
                    _ => PieceError::BrokeOff(error),
                });
            }
        };
        if look != FirstLook::Undecided {
            let beginning = start.take();
            return beginning.map_or(Ok(None), |beginning| beginning.decided(look).map(Some));
        }
        if !begun && beginning.first.is_begun() {
            beginning.deadline = Instant::now() + REST_TIMEOUT;
        }
    }
    up.read_body().await.map_err(PieceError::BrokeOff)
}

impl BeginningBody<'_> {
    /// The first event is read as far as it is looked at.
    fn decided(self: Box<Self>, look: FirstLook) -> Result<Bytes, PieceError> {
        match (look, self.expiry) {
            (FirstLook::Error(Some(GONE), body), _) => {
                let content_type = self.content_type;
                let event = Arc::new(ExpiredEvent { content_type, body });
                let expired = Expired::Event(event);
                Err(PieceError::Failed(ExchangeFailure::Expired(expired)))
            }
            (FirstLook::Error(..), Expiry::Asked(_)) => {
                Err(PieceError::Failed(ExchangeFailure::NotContinued))
            }
            (FirstLook::Error(_, data), _) => Ok(data),
            (FirstLook::NoError(data), expiry) => {
                expiry.avoided(self.metrics);
                Ok(data)
            }
            (FirstLook::Undecided, _) => Ok(Bytes::new()),
        }
    }
}
