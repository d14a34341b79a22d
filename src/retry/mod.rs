//! When a request is tried once more: client-go's contract (`rest/with_retry.go` and `Request.request` of
//! `rest/request.go`; 1.20 and today's agree). Pure.
//!
//! An answer that says how many seconds to wait is an invitation, whatever the verb: kube-apiserver gives it only where
//! nothing was done. A broken exchange is none for a write, which may have been done. The proxy's own client and the layer
//! for others' (`if_ready`) go by it.

#[cfg(test)]
mod tests;

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, Method, StatusCode};

/// Most retries of one request in client-go, so one try more than that.
pub const MOST_RETRIES: u32 = 10;

/// What one try came to.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    /// An answer of this status, with these headers.
    Answer(StatusCode, &'a HeaderMap),
    /// The connection broke before there was an answer; how long to wait then.
    Broken(Duration),
    /// No answer, for a reason that another try would meet again.
    Failed,
}

/// How long to wait before the request is tried again; `None`: `outcome` is what it comes to, a last answer included.
///
/// `tries`: how often it was tried, the last time included.
pub fn pause(
    method: &Method,
    tries: u32,
    most_retries: u32,
    outcome: Outcome<'_>,
) -> Option<Duration> {
    if tries > most_retries {
        return None;
    }
    match outcome {
        Outcome::Answer(status, headers) => asked_for(status, headers),
        Outcome::Broken(wait) => (method == Method::GET).then_some(wait),
        Outcome::Failed => None,
    }
}

/// What `Retry-After` asks for: a number of seconds. A date is none, and client-go does not read it either.
fn asked_for(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    if status != StatusCode::TOO_MANY_REQUESTS && status.as_u16() < 500 {
        return None;
    }
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?;
    let seconds: i64 = value.parse().ok()?;
    // Go's clocks do not wait for what is negative.
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}
