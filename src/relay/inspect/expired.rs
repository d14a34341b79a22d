//! Answers to watches that are too old for their server, and which answer of another server can go on.
//!
//! An apiserver answers a watch from a revision before its watch cache begins with 410, as HTTP status or as the first
//! event ([`crate::watches::frames::first_event`]).

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use pingora_http::ResponseHeader;

use crate::relay::outcome::Expired;
use crate::watches::frames::FrameFormat;

/// Longest body of a 410 that is read.
pub use crate::watches::frames::first_event::LIMIT;

/// Time for the rest of an ERROR event, or of the body of a 410.
pub const REST_TIMEOUT: Duration = Duration::from_secs(3);

/// Whether an answer can go on where the one before has ended. `begun`: the `Content-Type` of the header that the client
/// has; `None` before it has one.
pub fn goes_on(begun: Option<&Option<HeaderValue>>, response: &ResponseHeader) -> bool {
    let is_same = begun.is_none_or(|begun| begun.as_ref() == response.headers.get(CONTENT_TYPE));
    let is_watch = FrameFormat::of_answer(&response.headers).is_some();
    is_same && is_watch && response.status == StatusCode::OK
}

/// The format of an answer whose first event is to be looked at. `begun`: the client has the header of another one.
pub fn watched_format(begun: bool, response: &ResponseHeader) -> Option<FrameFormat> {
    // The length of one answer cannot be that of another.
    let is_watch =
        response.status == StatusCode::OK && !response.headers.contains_key(CONTENT_LENGTH);
    match is_watch || begun {
        true => FrameFormat::of_answer(&response.headers),
        false => None,
    }
}

/// What passes of a 410 below the header that the client has, which had this `Content-Type`.
pub fn event(kept: &Expired, content_type: Option<&HeaderValue>) -> Bytes {
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
