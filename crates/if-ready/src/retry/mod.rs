//! When to retry a request: client-go's rules (`rest/with_retry.go` and `Request.request` of `rest/request.go`, the
//! same since Kubernetes 1.20). Pure.
//!
//! An answer with a number of seconds in `Retry-After` may be retried whatever the method: kube-apiserver sends it only
//! if it did nothing. After a broken connection only a GET is retried, because a write may have been executed.

#[cfg(test)]
mod tests;

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, Method, StatusCode};

/// client-go's limit on the retries of one request. The first attempt does not count.
pub const MOST_RETRIES: u32 = 10;

/// The result of one attempt.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    /// The server answered with this status and these headers.
    Answer(StatusCode, &'a HeaderMap),
    /// The connection broke before the answer. A retry waits this long.
    Broken(Duration),
    /// There was no answer, and a retry would fail for the same reason.
    Failed,
}

/// How long to wait before the next attempt. `None`: do not retry, `outcome` is final.
///
/// `tries`: attempts so far, including the one of `outcome`. `most_retries`: the limit, usually [`MOST_RETRIES`].
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

/// Reads `Retry-After` of an answer 429 or 5xx as seconds. Ignores dates, like client-go.
fn asked_for(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    if status != StatusCode::TOO_MANY_REQUESTS && status.as_u16() < 500 {
        return None;
    }
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?;
    let seconds: i64 = value.parse().ok()?;
    // Go's timers fire at once for negative durations.
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}
