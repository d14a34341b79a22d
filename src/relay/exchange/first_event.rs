//! Reads the pieces of an answer, and holds the first event of a watch back until it is known that it is no 410.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use pingora_http::ResponseHeader;
use tokio::time::{Instant, timeout_at};

use super::expiry::Expiry;
use crate::relay::inspect::expired::{REST_TIMEOUT, watched_format};
use crate::relay::outcome::{ExchangeFailure, Expired, ExpiredEvent};
use crate::relay::upstream::UpstreamSession;
use crate::watches::frames::first_event::{FirstEvent, FirstLook};
use crate::watches::metrics::{ExpiredResult, WatchMetrics};

/// Time for a 410 after the header of an answer: kube-apiserver sends both at once. Until then a watch keeps its request.
const QUIET: Duration = Duration::from_secs(3);
const GONE: i32 = 410;

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

/// What is to be looked at of an answer with this header.
pub(super) fn answer_start(expiry: Expiry<'_>, response: &ResponseHeader) -> AnswerStart {
    let format = match expiry {
        Expiry::Pass => None,
        Expiry::Ask | Expiry::Asked(_) => watched_format(expiry.is_begun(), response),
    };
    let begins = |format| BeginningBody {
        first: FirstEvent::new(format),
        content_type: response.headers.get(CONTENT_TYPE).cloned(),
        begun: false,
        deadline: Instant::now() + QUIET,
    };
    format.map(|format| Box::new(begins(format)))
}

/// Reads the next piece that can be passed; an empty one when the rest passes as it is. May be dropped and called
/// again.
pub(super) async fn next_piece(
    expiry: Expiry<'_>,
    metrics: &WatchMetrics,
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
            Err(_) if beginning.begun => return undecided(expiry, metrics, start),
            Err(_) => {
                goes_on(expiry, metrics, start);
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
                look => return decided(expiry, metrics, start, look),
            },
            Ok(None) if beginning.begun => return undecided(expiry, metrics, start),
            Ok(None) => return Ok(None),
            Err(error) => {
                return Err(match expiry {
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
fn goes_on(expiry: Expiry<'_>, metrics: &WatchMetrics, start: &mut AnswerStart) {
    *start = None;
    if let Expiry::Asked(watch) = expiry {
        watch.count(metrics, ExpiredResult::Avoided);
    }
}

/// The first event is read as far as it is looked at.
fn decided(
    expiry: Expiry<'_>,
    metrics: &WatchMetrics,
    start: &mut AnswerStart,
    look: FirstLook,
) -> Result<Option<Bytes>, PieceError> {
    let content_type = start.take().and_then(|beginning| beginning.content_type);
    match (look, expiry) {
        (FirstLook::Error(Some(GONE), body), _) => {
            let event = Arc::new(ExpiredEvent { content_type, body });
            let expired = Expired::Event(event);
            Err(PieceError::Failed(ExchangeFailure::Expired(expired)))
        }
        (FirstLook::Undecided | FirstLook::Error(..), Expiry::Asked(_)) => {
            Err(PieceError::Failed(ExchangeFailure::NotContinued))
        }
        (FirstLook::NoError(data), Expiry::Asked(watch)) => {
            watch.count(metrics, ExpiredResult::Avoided);
            Ok(Some(data))
        }
        (FirstLook::Error(_, data) | FirstLook::NoError(data), _) => Ok(Some(data)),
        (FirstLook::Undecided, _) => Ok(None),
    }
}

/// The first event is not complete and will not be.
fn undecided(
    expiry: Expiry<'_>,
    metrics: &WatchMetrics,
    start: &mut AnswerStart,
) -> Result<Option<Bytes>, PieceError> {
    let kept = start.as_mut().map(|beginning| beginning.first.take_kept());
    let look = FirstLook::Error(None, kept.unwrap_or_default());
    decided(expiry, metrics, start, look)
}
