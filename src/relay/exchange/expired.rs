//! What becomes of a 410 to a watch, and of the answer of another server that is asked because of it (KEP-1904). The first
//! event of a watch is held back until it is known that it is no 410.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use pingora_http::ResponseHeader;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use crate::net::rare;
use crate::relay::outcome::{ExchangeFailure, Expired, ExpiredEvent};
use crate::relay::upstream::UpstreamSession;
use crate::watches::frames::FrameFormat;
use crate::watches::frames::first_event::{FirstEvent, FirstLook};
use crate::watches::metrics::WatchMetrics;

/// Time until another server's answer begins.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a 410 after the header of an answer: kube-apiserver sends both at once. Until then a watch keeps its request.
const QUIET: Duration = Duration::from_secs(3);
/// Time for the rest of an ERROR event, or of the body of a 410.
pub(super) const REST_TIMEOUT: Duration = Duration::from_secs(3);
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
    /// The current server serves it, which is not counted yet.
    served: AtomicBool,
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
            served: AtomicBool::new(false),
            permit: Mutex::new(permit),
        }
    }

    /// The `Content-Type` of the header that the client has; `None` before it has one.
    pub fn begun(&self) -> Option<&Option<HeaderValue>> {
        self.begun.get()
    }

    /// The current server does not serve it either.
    pub fn failed(&self) {
        self.served.store(false, Ordering::Relaxed);
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
        watch.served.store(accepted, Ordering::Relaxed);
        if accepted {
            // The watch may stay open for hours.
            watch.end_asking();
        }
        accepted
    }

    /// Counts, once, a watch that another server serves: as soon as that is known, or at its end, which may come before.
    pub fn avoided(self, metrics: &WatchMetrics) {
        if let Expiry::Asked(watch) = self
            && watch.served.swap(false, Ordering::Relaxed)
        {
            metrics.expired(true);
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
    fn decided(self, look: FirstLook) -> Result<Bytes, PieceError> {
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

/// Whether an answer can go on where the one before has ended. `begun`: the `Content-Type` of the header that the client
/// has; `None` before it has one.
fn goes_on(begun: Option<&Option<HeaderValue>>, response: &ResponseHeader) -> bool {
    let is_same = begun.is_none_or(|begun| begun.as_ref() == response.headers.get(CONTENT_TYPE));
    let is_watch = FrameFormat::of_answer(&response.headers).is_some();
    is_same && is_watch && response.status == StatusCode::OK
}

/// The format of an answer whose first event is to be looked at. `begun`: the client has the header of another one.
fn watched_format(begun: bool, response: &ResponseHeader) -> Option<FrameFormat> {
    // The length of one answer cannot be that of another.
    let is_watch =
        response.status == StatusCode::OK && !response.headers.contains_key(CONTENT_LENGTH);
    match is_watch || begun {
        true => FrameFormat::of_answer(&response.headers),
        false => None,
    }
}

/// What passes of a 410 below the header that the client has, which had this `Content-Type`.
pub fn expired_event(kept: &Expired, content_type: Option<&HeaderValue>) -> Bytes {
    match kept {
        Expired::Event(event) => event.body.clone(),
        Expired::Answer(answer) => {
            let format = content_type.and_then(FrameFormat::of_content_type);
            let event = format.and_then(|format| format.error_event(&answer.body));
            // Without an event the client resumes once more.
            event.unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;
    use crate::metrics::text;

    #[test]
    fn a_watch_counts_once_when_a_server_serves_it_and_not_when_that_fails() {
        let registry = Registry::new();
        let metrics = WatchMetrics::new(&registry).unwrap();
        let avoided = || {
            let line = r#"kube_interop_proxy_expired_watches_total{result="avoided"} "#;
            let text = text(&registry).unwrap();
            let count = text.lines().find_map(|found| found.strip_prefix(line));
            count.unwrap().to_owned()
        };
        let json = HeaderValue::from_static("application/json");
        let event = ExpiredEvent {
            content_type: Some(json.clone()),
            body: Bytes::new(),
        };
        let watch = ResumedWatch::new(&Expired::Event(Arc::new(event)), None);
        let asked = Expiry::Asked(&watch);
        let answer = |status: u16| {
            let mut answer = ResponseHeader::build(status, None).unwrap();
            answer.insert_header(CONTENT_TYPE, json.clone()).unwrap();
            answer
        };
        assert!(!asked.accepts(&answer(500)));
        asked.avoided(&metrics);
        // Its first event is a 410, too. The client goes away before the next server answers.
        assert!(asked.accepts(&answer(200)));
        watch.failed();
        asked.avoided(&metrics);
        assert_eq!(avoided(), "0");
        assert!(asked.accepts(&answer(200)));
        asked.avoided(&metrics);
        asked.avoided(&metrics);
        Expiry::Ask.avoided(&metrics);
        assert_eq!(avoided(), "1");
    }
}
