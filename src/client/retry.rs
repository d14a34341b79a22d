//! When one of the proxy's own requests is tried once more: client-go's contract ([`crate::retry`]) within a caller's
//! deadline. Pure.

use std::io;
use std::time::Duration;

use http::Method;

use super::{Answer, ClientError};
use crate::retry::{self, MOST_RETRIES, Outcome};

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
    let outcome = match outcome {
        Ok(answer) => Outcome::Answer(answer.status, &answer.headers),
        Err(error) if is_passing(error) => Outcome::Broken(backoff(tries, random)),
        Err(_) => Outcome::Failed,
    };
    let wait = retry::pause(method, tries, MOST_RETRIES, outcome)?;
    (wait < left).then_some(wait)
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
