//! Probes the local apiserver's `/readyz` periodically, and detects restarts.
//!
//! Between two probes the connection of the last one stays open; its end triggers the next probe, over a new
//! connection:
//!
//! | trigger | refused | not 200 | 200 |
//! |---|---|---|---|
//! | timer, or the connection was closed | restarted | not ready | ready |
//! | the connection was cut | restarted | restarted | ready |
//! | the lease has a new holder | restarted | restarted | ready |
//!
//! Cut means without TLS close_notify. Go's server sends close_notify whenever it closes a connection (idle, going
//! away, after a panic): only a process that dies does not send it. So an apiserver that closes connections while its
//! `/readyz` fails is not taken for a new one, and at a graceful end it closes its listener before its connections:
//! refused. GOAWAY (`--goaway-chance`) is for HTTP/2; the probe speaks HTTP/1.1. Leases can be written by API users:
//! they only force a look.
//!
//! `/readyz` also shows that the process is shutting down. Requests that need to know trigger a probe.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{MissedTickBehavior, interval};

use super::state::LocalState;
use crate::client::{Client, ClientError, ClientResponse, ConnectionEnd};

/// Shortest pause between probes that closed connections or requests trigger.
const PAUSE: Duration = Duration::from_millis(100);

/// What triggered a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trigger {
    /// The timer, a request, or a closed connection.
    Routine,
    /// The connection was cut.
    Cut,
    /// Its lease has a new holder.
    Lease,
}

/// Probes until dropped.
pub async fn run(mut client: Client, state: Arc<LocalState>, every: Duration) {
    let [mut ticks, mut ends, mut wishes] = [every, PAUSE, PAUSE].map(|pause| {
        let mut ticks = interval(pause);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    });
    let mut known = state.epoch();
    loop {
        let trigger = tokio::select! {
            biased;
            end = client.ended() => {
                // The first one is probed at once: nothing else shows a restart until the new process listens.
                ends.tick().await;
                match end {
                    ConnectionEnd::Closed => Trigger::Routine,
                    ConnectionEnd::Broken => Trigger::Cut,
                }
            }
            () = state.suspected.notified() => Trigger::Lease,
            () = state.wanted.notified() => {
                wishes.tick().await;
                Trigger::Routine
            }
            _ = ticks.tick() => Trigger::Routine,
        };
        let epoch = state.epoch();
        // A connection from before a restart may still lead to the old process.
        if trigger != Trigger::Routine || epoch != known {
            client.reset();
        }
        known = epoch;
        let number = state.begin_probe();
        let answer = client.get("/readyz").await;
        if let Ok(answer) = &answer {
            state.shuts_down(says_it_shuts_down(answer), epoch);
            // 1.24 and later have two checks.
            state.finds_etcd_down(fails(answer, "etcd") || fails(answer, "etcd-readiness"));
        }
        conclude(&state, trigger, epoch, answer.map(|answer| answer.status));
        state.end_probe(number);
    }
}

/// Whether a `/readyz` response shows that the apiserver is shutting down: that check fails from SIGTERM on. After the
/// shutdown delay Kubernetes 1.20 turns away `/readyz` too.
pub fn says_it_shuts_down(answer: &ClientResponse) -> bool {
    const TURNED_AWAY: &[u8] = br#""message":"apiserver is shutting down""#;
    if answer.status == StatusCode::SERVICE_UNAVAILABLE {
        let mut parts = answer.body.windows(TURNED_AWAY.len());
        return parts.any(|part| part == TURNED_AWAY);
    }
    fails(answer, "shutdown")
}

/// Whether a `/readyz` response names this check as failed.
fn fails(answer: &ClientResponse, check: &str) -> bool {
    let failed = format!("[-]{check} failed");
    let mut lines = answer.body.split(|byte| *byte == b'\n');
    answer.status == StatusCode::INTERNAL_SERVER_ERROR
        && lines.any(|line| line.starts_with(failed.as_bytes()))
}

fn conclude(
    state: &LocalState,
    trigger: Trigger,
    epoch: u64,
    answer: Result<StatusCode, ClientError>,
) {
    let denied = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN];
    state.access_denied(matches!(&answer, Ok(status) if denied.contains(status)));
    match (answer, trigger) {
        (Ok(StatusCode::OK), _) => state.answered(true, epoch),
        (Err(ClientError::Refused), _) => state.refused(),
        (Ok(_), Trigger::Lease) | (_, Trigger::Cut) => {
            tracing::info!(
                ?trigger,
                "the local apiserver was replaced and is not ready"
            );
            state.refused();
        }
        (Ok(_), Trigger::Routine) | (Err(_), _) => state.answered(false, epoch),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether an initialized apiserver is still taken for initialized, and for ready.
    fn after(trigger: Trigger, answer: Result<u16, ClientError>) -> (bool, bool) {
        let state = LocalState::default();
        state.answered(true, 0);
        let answer = answer.map(|code| StatusCode::from_u16(code).unwrap());
        conclude(&state, trigger, 0, answer);
        (state.is_initialized(), state.is_ready())
    }

    const READY: (bool, bool) = (true, true);
    const NOT_READY: (bool, bool) = (true, false);
    const RESTARTED: (bool, bool) = (false, false);

    #[test]
    fn who_is_there_after_a_cut_is_another_unless_it_is_ready() {
        assert_eq!(after(Trigger::Cut, Ok(200)), READY);
        for code in [500, 403, 401] {
            assert_eq!(after(Trigger::Cut, Ok(code)), RESTARTED, "{code}");
        }
        assert_eq!(after(Trigger::Cut, Err(ClientError::Refused)), RESTARTED);
        let timeout = ClientError::Timeout(PAUSE);
        assert_eq!(after(Trigger::Cut, Err(timeout)), RESTARTED);
    }

    #[test]
    fn without_a_cut_only_a_refusal_is_a_restart() {
        assert_eq!(after(Trigger::Routine, Ok(200)), READY);
        assert_eq!(after(Trigger::Routine, Ok(500)), NOT_READY);
        let timeout = ClientError::Timeout(PAUSE);
        assert_eq!(after(Trigger::Routine, Err(timeout)), NOT_READY);
        assert_eq!(
            after(Trigger::Routine, Err(ClientError::Refused)),
            RESTARTED
        );
    }

    #[test]
    fn an_apiserver_that_does_not_let_us_know_can_be_asked_why() {
        let state = LocalState::default();
        let asked = |answer| {
            conclude(&state, Trigger::Routine, state.epoch(), answer);
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
    fn readyz_names_the_shutdown_among_what_fails() {
        let says = |status, body: &'static str| {
            says_it_shuts_down(&ClientResponse {
                status,
                headers: http::HeaderMap::new(),
                body: body.into(),
            })
        };
        let failed = StatusCode::INTERNAL_SERVER_ERROR;
        let shutdown = "[+]ping ok\n[-]shutdown failed: reason withheld\nreadyz check failed\n";
        assert!(says(failed, shutdown));
        let turned_away = r#"{"kind":"Status","message":"apiserver is shutting down","code":503}"#;
        assert!(says(StatusCode::SERVICE_UNAVAILABLE, turned_away));
        assert!(!says(StatusCode::SERVICE_UNAVAILABLE, "busy"));
        assert!(!says(StatusCode::OK, shutdown));
        for body in [
            "[+]ping ok\n[+]shutdown ok\n[-]etcd failed: reason withheld\nreadyz check failed\n",
            "[-]poststarthook/x failed: [-]shutdown failed\n",
            "",
        ] {
            assert!(!says(failed, body), "{body:?}");
        }
    }

    #[test]
    fn a_lease_proves_nothing_without_an_answer() {
        assert_eq!(after(Trigger::Lease, Ok(200)), READY);
        assert_eq!(after(Trigger::Lease, Ok(500)), RESTARTED);
        let timeout = ClientError::Timeout(PAUSE);
        assert_eq!(after(Trigger::Lease, Err(timeout)), NOT_READY);
    }
}
