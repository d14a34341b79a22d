//! When a request is tried once more: client-go's contract (its `rest/with_retry.go`). Pure.
//!
//! An answer that says how many seconds to wait is an invitation, whatever the verb: kube-apiserver gives it only where
//! nothing was done. A broken exchange is none for a write, which may have been done.

use std::io;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{Method, StatusCode};

use super::{Answer, ClientError};

/// Most retries of one request, so one try more than that.
const MOST_RETRIES: u32 = 10;

/// Longest wait after the first broken exchange; doubles with each, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How long to wait before the request is tried again; `None`: `outcome` is what it comes to.
///
/// `tries`: how often it was tried, the last time included. `left`: time to the caller's deadline; a wait that would
/// reach it is not worth beginning. `random`: from 0 up to 1.
pub fn pause(
    method: &Method,
    tries: u32,
    outcome: &Result<Answer, ClientError>,
    left: Duration,
    random: f64,
) -> Option<Duration> {
    if tries > MOST_RETRIES {
        return None;
    }
    let wait = match outcome {
        Ok(answer) => asked_for(answer)?,
        Err(error) if method == Method::GET && is_passing(error) => backoff(tries, random),
        Err(_) => return None,
    };
    (wait < left).then_some(wait)
}

/// What `Retry-After` asks for: a number of seconds. A date is none, and client-go does not read it either.
fn asked_for(answer: &Answer) -> Option<Duration> {
    let status = answer.status;
    if status != StatusCode::TOO_MANY_REQUESTS && status.as_u16() < 500 {
        return None;
    }
    let value = answer.headers.get(RETRY_AFTER)?.to_str().ok()?;
    let seconds: i64 = value.parse().ok()?;
    // Go's clocks do not wait for what is negative.
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// Whether the same exchange may go well a moment later. A refused connection is news that callers want at once, what
/// takes too long has taken long enough, and a certificate that is not good stays so.
fn is_passing(error: &ClientError) -> bool {
    match error {
        ClientError::Exchange(_) => true,
        ClientError::Connect(error) => error.kind() != io::ErrorKind::InvalidData,
        ClientError::Refused | ClientError::Timeout(_) => false,
    }
}

/// Between half of the full wait and all of it, so that not everybody comes back at once.
fn backoff(tries: u32, random: f64) -> Duration {
    let doublings = tries.saturating_sub(1).min(16);
    let full = (FIRST_PAUSE * 2_u32.pow(doublings)).min(LONGEST_PAUSE);
    full.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests;
