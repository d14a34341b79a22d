//! Asks the local apiserver's `/readyz`, again and again, and sees restarts.
//!
//! Between two probes the connection of the last one stays open, and its end says at once that something happened. Who
//! is there then is asked over a new connection:
//!
//! | what ended the wait | refused | not 200 | 200 |
//! |---|---|---|---|
//! | time, or a connection that was closed | restarted | not ready | ready |
//! | a connection that was cut | restarted | restarted | ready |
//! | the lease has a new holder | restarted | restarted | ready |
//!
//! Cut means without TLS close_notify. Go's server says that whenever it closes a connection (idle, going away, after a
//! panic): only a process that dies does not. So an apiserver that closes connections while its `/readyz` fails is not
//! taken for a new one, and at a graceful end it closes its listener before its connections: refused. GOAWAY
//! (`--goaway-chance`) is for HTTP/2; the probe speaks HTTP/1.1. Leases can be written by API users: they only force a look.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::state::LocalState;
use crate::client::{Client, ClientError, End};

/// An apiserver that ends every connection at once is not asked more often than this.
const PAUSE: Duration = Duration::from_millis(100);

/// Why the apiserver is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// It is time, or the connection was closed.
    Routine,
    /// The connection was cut.
    Cut,
    /// Its lease has a new holder.
    Lease,
}

/// Probes until dropped.
pub async fn run(mut client: Client, state: Arc<LocalState>, every: Duration) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_end: Option<Instant> = None;
    let mut known = state.epoch();
    loop {
        let why = tokio::select! {
            biased;
            end = client.ended() => {
                // The first is looked into at once: a restart is seen by nothing else until somebody is there again.
                if let Some(last) = last_end {
                    sleep_until(last + PAUSE).await;
                }
                last_end = Some(Instant::now());
                match end {
                    End::Closed => Why::Routine,
                    End::Broken => Why::Cut,
                }
            }
            () = state.suspicion() => Why::Lease,
            _ = ticks.tick() => Why::Routine,
        };
        let epoch = state.epoch();
        // A connection from before a restart may still lead to the process that is going.
        if why != Why::Routine || epoch != known {
            client.reset();
        }
        known = epoch;
        let answer = client.get("/readyz", &[]).await;
        judge(&state, why, epoch, answer.map(|answer| answer.status));
    }
}

fn judge(state: &LocalState, why: Why, epoch: u64, answer: Result<StatusCode, ClientError>) {
    let shut_out = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN];
    state.shut_out(matches!(&answer, Ok(status) if shut_out.contains(status)));
    match (answer, why) {
        (Ok(StatusCode::OK), _) => state.answered(true, epoch),
        (Err(ClientError::Refused), _) => state.refused(),
        (Ok(_), Why::Routine) => state.answered(false, epoch),
        (Ok(_), Why::Lease) => {
            tracing::info!("the local apiserver's lease has a new holder, and it is not ready");
            state.refused();
        }
        (_, Why::Cut) => {
            tracing::info!("the local apiserver cut the connection, and it is not ready");
            state.refused();
        }
        (Err(error), _) => {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "/readyz was not answered"
            );
            state.silent();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether an initialized apiserver is still taken for initialized, and for ready.
    fn after(why: Why, answer: Result<u16, ClientError>) -> (bool, bool) {
        let state = LocalState::default();
        state.answered(true, 0);
        let answer = answer.map(|code| StatusCode::from_u16(code).unwrap());
        judge(&state, why, 0, answer);
        (state.is_initialized(), state.is_ready())
    }

    const READY: (bool, bool) = (true, true);
    const NOT_READY: (bool, bool) = (true, false);
    const RESTARTED: (bool, bool) = (false, false);

    #[test]
    fn who_is_there_after_a_cut_is_another_unless_it_is_ready() {
        assert_eq!(after(Why::Cut, Ok(200)), READY);
        for code in [500, 403, 401] {
            assert_eq!(after(Why::Cut, Ok(code)), RESTARTED, "{code}");
        }
        assert_eq!(after(Why::Cut, Err(ClientError::Refused)), RESTARTED);
        let timeout = ClientError::Timeout(PAUSE);
        assert_eq!(after(Why::Cut, Err(timeout)), RESTARTED);
    }

    #[test]
    fn without_a_cut_only_a_refusal_is_a_restart() {
        assert_eq!(after(Why::Routine, Ok(200)), READY);
        assert_eq!(after(Why::Routine, Ok(500)), NOT_READY);
        let timeout = ClientError::Timeout(PAUSE);
        assert_eq!(after(Why::Routine, Err(timeout)), NOT_READY);
        assert_eq!(after(Why::Routine, Err(ClientError::Refused)), RESTARTED);
    }

    #[test]
    fn an_apiserver_that_does_not_let_us_know_can_be_asked_why() {
        let state = LocalState::default();
        let asked = |answer| {
            judge(&state, Why::Routine, state.epoch(), answer);
            state.can_be_asked()
        };
        for code in [401, 403] {
            assert!(asked(Ok(StatusCode::from_u16(code).unwrap())), "{code}");
            assert!(!asked(Ok(StatusCode::INTERNAL_SERVER_ERROR)));
        }
        assert!(!asked(Err(ClientError::Refused)));
        assert!(asked(Ok(StatusCode::OK)));
    }

    #[test]
    fn a_lease_proves_nothing_without_an_answer() {
        assert_eq!(after(Why::Lease, Ok(200)), READY);
        assert_eq!(after(Why::Lease, Ok(500)), RESTARTED);
        let timeout = ClientError::Timeout(PAUSE);
        assert_eq!(after(Why::Lease, Err(timeout)), NOT_READY);
    }
}
