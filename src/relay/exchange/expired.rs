//! What becomes of a 410 to a watch, and of the answer of another server that is asked because of it (KEP-1904). The first
//! event of a watch is held back until it is known that it is no 410.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_TYPE, HeaderValue};
use pingora_http::ResponseHeader;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use crate::net::lock;
use crate::relay::outcome::{ExchangeFailure, Expired, ExpiredEvent};
use crate::relay::upstream::UpstreamSession;
use crate::relay::watch::{Watch, stream_format};
use crate::request::headers::GOES_ON;
use crate::watches::frames::FrameFormat;
use crate::watches::frames::first_event::{FirstEvent, FirstLook};

/// Time until another server's answer begins.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a 410 after the header of an answer: kube-apiserver sends both at once. Until then a watch keeps its request.
const QUIET: Duration = Duration::from_secs(3);
/// Time for the rest of an ERROR event, or of the body of a 410.
pub(super) const REST_TIMEOUT: Duration = Duration::from_secs(3);
const GONE: i32 = 410;

/// A watch that is to go on at another server.
#[derive(Default)]
pub struct ResumedWatch {
    /// The `Content-Type` of the header that the client has; empty before it has one.
    begun: OnceLock<Option<HeaderValue>>,
    /// Held while a server is asked.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    /// Its server has stopped: the answer goes on where it did.
    pub(super) handed_over: Option<Arc<Watch>>,
    /// When the answer began that goes on with it.
    accepted: OnceLock<Instant>,
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
            ..Self::default()
        }
    }

    /// Of a watch whose server has stopped: its client has a header.
    pub fn handed_over(watch: &Arc<Watch>, permit: OwnedSemaphorePermit) -> Self {
        Self {
            begun: OnceLock::from(None),
            permit: Mutex::new(Some(permit)),
            handed_over: Some(watch.clone()),
            ..Self::default()
        }
    }

    /// When the answer began that goes on with it.
    pub fn accepted(&self) -> Option<Instant> {
        self.accepted.get().copied()
    }

    /// The `Content-Type` of the header that the client has; `None` before it has one.
    pub fn begun(&self) -> Option<&Option<HeaderValue>> {
        self.begun.get()
    }

    /// No server is asked any more. From now on the client decides how long it takes.
    pub fn end_asking(&self) {
        drop(lock(&self.permit).take());
    }

    /// The client gets a header with this `Content-Type`, if it has none; returns whether it had none.
    pub(super) fn begins(&self, response: &ResponseHeader) -> bool {
        let content_type = response.headers.get(CONTENT_TYPE).cloned();
        self.begun.set(content_type).is_ok()
    }

    /// Whether an answer can be passed.
    pub(super) fn accepts(&self, response: &ResponseHeader) -> bool {
        // It goes on where the one before has ended.
        let content_type = response.headers.get(CONTENT_TYPE);
        let format = FrameFormat::of_answer(&response.headers);
        let is_alike = match &self.handed_over {
            Some(watch) => stream_format(response) == Some(watch.format()),
            None => self.begun().is_none_or(|it| it.as_ref() == content_type),
        };
        let accepted = is_alike && format.is_some() && response.status == StatusCode::OK;
        if accepted {
            // The watch may stay open for hours.
            self.end_asking();
            self.accepted.get_or_init(Instant::now);
        }
        accepted
    }
}

/// The beginning of an answer's body, which may be a 410. `None`: the rest passes as it is.
pub(super) type AnswerStart = Option<Box<BeginningBody>>;

/// What was read of the first event.
pub(super) struct BeginningBody {
    /// Of a server that is asked because another one has answered 410, or has stopped.
    is_asked: bool,
    pub(super) first: FirstEvent,
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
pub(super) fn answer_start(
    resumed: Option<&ResumedWatch>,
    response: &ResponseHeader,
) -> AnswerStart {
    let format = match resumed.is_some_and(|watch| watch.begun().is_some()) {
        true => FrameFormat::of_answer(&response.headers),
        // The client would get the length of this answer, and perhaps another one's body.
        false => stream_format(response),
    };
    let format = format?;
    Some(Box::new(BeginningBody {
        is_asked: resumed.is_some(),
        first: FirstEvent::new(format),
        content_type: response.headers.get(CONTENT_TYPE).cloned(),
        deadline: Instant::now() + QUIET,
    }))
}

/// Reads the next piece that can be passed; an empty one when the rest passes as it is. May be dropped and called
/// again.
pub(super) async fn next_piece(
    up: &mut UpstreamSession,
    start: &mut AnswerStart,
) -> Result<Option<Bytes>, PieceError> {
    while let Some(beginning) = start {
        let begun = beginning.first.is_begun();
        let is_asked = beginning.is_asked;
        // Boxed, because it is over after the first event.
        let read = Box::pin(timeout_at(beginning.deadline, up.read_body())).await;
        let look = match read {
            Ok(Ok(Some(data))) => beginning.first.look(data),
            // The event is not complete and will not be.
            Ok(Ok(None)) | Err(_) if begun => FirstLook::Error(None, beginning.first.take_kept()),
            // A peer's apiserver has stopped.
            Ok(Ok(None)) if is_asked && goes_on(up).await => {
                return Err(PieceError::Failed(ExchangeFailure::NotContinued));
            }
            // The server has no event yet, or has none.
            Ok(Ok(None)) | Err(_) => FirstLook::NoError(Bytes::new()),
            Ok(Err(error)) if is_asked => {
                return Err(PieceError::Failed(ExchangeFailure::broke_off(error)));
            }
            Ok(Err(error)) => return Err(PieceError::BrokeOff(error)),
        };
        let failure = match look {
            FirstLook::Undecided => {
                if !begun && beginning.first.is_begun() {
                    beginning.deadline = Instant::now() + REST_TIMEOUT;
                }
                continue;
            }
            FirstLook::Error(Some(GONE), body) => {
                let content_type = beginning.content_type.take();
                let event = ExpiredEvent { content_type, body };
                ExchangeFailure::Expired(Expired::Event(Arc::new(event)))
            }
            FirstLook::Error(..) if is_asked => ExchangeFailure::NotContinued,
            FirstLook::Error(_, data) | FirstLook::NoError(data) => {
                *start = None;
                return Ok(Some(data));
            }
        };
        return Err(PieceError::Failed(failure));
    }
    up.read_body().await.map_err(PieceError::BrokeOff)
}

/// Whether an answer that has ended may go on at another server.
async fn goes_on(up: &mut UpstreamSession) -> bool {
    let trailers = Box::pin(up.read_trailers()).await;
    trailers.is_ok_and(|trailers| trailers.is_some_and(|it| it.contains_key(GOES_ON)))
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
