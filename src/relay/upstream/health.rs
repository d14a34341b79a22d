//! Remembers peers that failed: they are tried last until they answer again.
//!
//! Written by requests whose exchange failed or was answered, and by [`run`], which asks a failed peer again after
//! pauses that grow with each failure, and forgets those that are no targets. Read without locks when one of several
//! peers is chosen.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{HeaderMap, StatusCode};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::client::{ClientMaker, MakerError};
use crate::config::Config;
use crate::local::probe::says_it_shuts_down;
use crate::retry::Backoff;
use crate::routing::table::{Server, Snapshot};
use crate::tls::credentials::Current;

const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(30),
    jitter: 0.5,
};
/// Longest wait for the answer of a failed peer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// How long requests may begin to wait for a failed peer that can do without it, and how often.
pub const TRIAL: Duration = Duration::from_millis(100);
const TRIALS: Duration = Duration::from_secs(1);

/// Peers that have failed and not answered since.
#[derive(Debug, Default)]
pub struct Health {
    suspects: ArcSwap<Vec<Suspect>>,
    changed: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Suspect {
    address: SocketAddr,
    failures: u32,
    /// When it is asked again.
    again: Instant,
    /// When requests that can do without it could begin to wait for it last.
    trial: Option<Instant>,
}

impl Health {
    /// Whether the peer has failed and not answered since.
    pub fn is_suspect(&self, address: SocketAddr) -> bool {
        let suspects = self.suspects.load();
        suspects.iter().any(|suspect| suspect.address == address)
    }

    /// Whether a request that can do without the peer may wait for it. Once it has failed, those that begin in the first
    /// [`TRIAL`] of a second may.
    pub fn may_be_waited_for(&self, address: SocketAddr) -> bool {
        let now = Instant::now();
        let suspects = self.suspects.load();
        let Some(suspect) = suspects.iter().find(|it| it.address == address) else {
            return true;
        };
        if let Some(begun) = suspect.trial.filter(|begun| now < *begun + TRIALS) {
            return now < begun + TRIAL;
        }
        self.suspects.rcu(|suspects| {
            let mut suspects = suspects.to_vec();
            for suspect in suspects.iter_mut().filter(|it| it.address == address) {
                suspect.trial = Some(now);
            }
            suspects
        });
        true
    }

    /// Whether any peer has.
    pub fn has_suspects(&self) -> bool {
        !self.suspects.load().is_empty()
    }

    /// The peer could not answer. Many requests may notice that at the same time: within a pause they count once.
    /// Returns whether this is the first failure.
    pub fn failed(&self, address: SocketAddr) -> bool {
        let now = Instant::now();
        let before = self.suspects.rcu(|suspects| {
            let before = suspects.iter().find(|suspect| suspect.address == address);
            let (failures, trial) = match before {
                Some(suspect) if now < suspect.again => return suspects.clone(),
                Some(suspect) => (suspect.failures.saturating_add(1), suspect.trial),
                None => (1, None),
            };
            let others = suspects.iter().filter(|suspect| suspect.address != address);
            let suspect = Suspect {
                address,
                failures,
                again: now + BACKOFF.random_pause(failures),
                trial,
            };
            Arc::new(others.copied().chain([suspect]).collect())
        });
        self.changed.notify_one();
        !before.iter().any(|suspect| suspect.address == address)
    }

    /// The peer answered.
    pub fn answered(&self, address: SocketAddr) {
        if !self.is_suspect(address) {
            return;
        }
        let before = self.forget(|suspect| suspect == address);
        if before.iter().any(|suspect| suspect.address == address) {
            tracing::info!(peer = %address, "the peer answers again");
        }
    }

    /// Returns the suspects before.
    fn forget(&self, gone: impl Fn(SocketAddr) -> bool) -> Arc<Vec<Suspect>> {
        self.suspects.rcu(|suspects| {
            let left = suspects.iter().filter(|suspect| !gone(suspect.address));
            left.copied().collect::<Vec<_>>()
        })
    }

    fn next(&self) -> Option<Suspect> {
        let suspects = self.suspects.load();
        suspects.iter().min_by_key(|suspect| suspect.again).copied()
    }

    /// Resolves when a suspect is to be asked again.
    async fn due(&self) -> SocketAddr {
        loop {
            let changed = self.changed.notified();
            match self.next() {
                None => changed.await,
                Some(suspect) => tokio::select! {
                    () = tokio::time::sleep_until(suspect.again) => return suspect.address,
                    () = changed => {}
                },
            }
        }
    }
}

/// Asks failed peers until they answer or are gone. Runs until dropped.
pub async fn run(maker: Arc<ClientMaker>, health: Arc<Health>, snapshot: Arc<ArcSwap<Snapshot>>) {
    loop {
        let address = health.due().await;
        let snapshot = snapshot.load_full();
        let target = |address| move |it: &Server| it.endpoint == address && it.target;
        let is_target = |address| snapshot.servers.iter().any(target(address));
        // When it becomes one again, what failed before says nothing of it.
        health.forget(|suspect| !is_target(suspect));
        if is_target(address) {
            match answers(&maker, address).await {
                true => health.answered(address),
                false => drop(health.failed(address)),
            }
        }
    }
}

/// Whether the peer would answer a request: a proxy answers 503 for an apiserver that is not ready, and an apiserver
/// may give any answer except that it is shutting down.
async fn answers(maker: &Arc<ClientMaker>, address: SocketAddr) -> bool {
    let answer = maker.client(address).get("/readyz", &[]).await;
    answer.is_ok_and(|answer| {
        answer.status != StatusCode::SERVICE_UNAVAILABLE && !says_it_shuts_down(&answer)
    })
}

/// Clients for anonymous requests to peers.
pub fn maker(config: &Config, credentials: Current) -> Result<ClientMaker, MakerError> {
    ClientMaker::new(
        &config.peer.server_name,
        credentials,
        |credentials| &credentials.peers,
        HeaderMap::new(),
        TIMEOUT,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> SocketAddr {
        ([10, 0, 0, last], 6443).into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_is_suspect_from_its_failure_to_its_answer() {
        let health = Health::default();
        health.failed(peer(1));
        assert!(health.is_suspect(peer(1)) && !health.is_suspect(peer(2)));
        health.answered(peer(2));
        assert!(health.is_suspect(peer(1)));
        health.answered(peer(1));
        assert!(!health.is_suspect(peer(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn requests_wait_for_a_failed_peer_for_a_tenth_of_each_second() {
        let health = Health::default();
        assert!(health.may_be_waited_for(peer(1)));
        health.failed(peer(1));
        for _ in 0..5 {
            assert!(health.may_be_waited_for(peer(1)) && health.may_be_waited_for(peer(1)));
            tokio::time::advance(TRIAL).await;
            health.failed(peer(1));
            assert!(!health.may_be_waited_for(peer(1)) && health.may_be_waited_for(peer(2)));
            tokio::time::advance(TRIALS - TRIAL).await;
        }
        health.answered(peer(1));
        tokio::time::advance(TRIAL).await;
        assert!(health.may_be_waited_for(peer(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_with_failures_and_not_with_the_requests_that_see_one() {
        let health = Health::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            for _ in 0..100 {
                health.failed(peer(1));
            }
            let before = Instant::now();
            assert_eq!(health.due().await, peer(1));
            pauses.push(before.elapsed());
        }
        assert!(pauses[0] <= BACKOFF.first * 2, "{pauses:?}");
        assert!(pauses[2] > pauses[0], "{pauses:?}");
        assert!(
            pauses.iter().all(|pause| *pause <= BACKOFF.longest * 2),
            "{pauses:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_whose_pause_is_over_is_due() {
        let health = Health::default();
        for last in 1..=3 {
            health.failed(peer(last));
        }
        let first = health.due().await;
        health.answered(first);
        assert_ne!(health.due().await, first);
    }
}
