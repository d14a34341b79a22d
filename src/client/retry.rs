//! Whether one of the proxy's own requests is retried, and when: client-go's rules ([`if_ready::retry`]) within a
//! caller's deadline. Pure.

use std::io;
use std::time::Duration;

use http::Method;

use super::{ClientError, ClientResponse};
use crate::retry::Backoff;
use if_ready::retry::{self, MOST_RETRIES, Outcome};

/// The pause after a broken connection.
const BACKOFF: Backoff = Backoff::between(Duration::from_millis(100), Duration::from_secs(5));

/// How long to wait before the next attempt; `None`: `outcome` is final.
///
/// `tries`: attempts so far. `left`: time to the caller's deadline; a wait must end before it. `random`: in `0..1`.
pub fn pause(
    method: &Method,
    tries: u32,
    outcome: &Result<ClientResponse, ClientError>,
    left: Duration,
    random: f64,
) -> Option<Duration> {
    let outcome = match outcome {
        Ok(answer) => Outcome::Answer(answer.status, &answer.headers),
        Err(error) if is_passing(error) => Outcome::Broken(BACKOFF.pause(tries, random)),
        Err(_) => Outcome::Failed,
    };
    let wait = retry::pause(method, tries, MOST_RETRIES, outcome)?;
    (wait < left).then_some(wait)
}

/// Whether a retry may succeed. A refused connection is reported at once, a timeout took long already, and an invalid
/// certificate stays invalid.
fn is_passing(error: &ClientError) -> bool {
    match error {
        ClientError::Exchange(_) => true,
        ClientError::Connect(error) => error.kind() != io::ErrorKind::InvalidData,
        ClientError::Refused | ClientError::Timeout(_) => false,
    }
}

#[cfg(test)]
mod tests;
