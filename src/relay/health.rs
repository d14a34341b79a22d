//! Which peers failed lately: those are tried last until they answer again.
//!
//! Written by requests whose exchange failed or was answered, and by [`run`], which asks a failed peer again after a
//! pause that grows from failure to failure. Read when one of several peers is chosen; nothing is locked for that.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{HeaderMap, StatusCode};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::shared::Shared;
use crate::client::{ClientMaker, MakerError};
use crate::cluster::watch::jittered;
use crate::config::Config;
use crate::tls::credentials::Current;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Longest wait for an answer of a peer that failed.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Peers that failed and did not answer since.
#[derive(Debug, Default)]
pub struct Health {
    suspects: ArcSwap<Vec<Suspect>>,
    changed: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Suspect {
    address: SocketAddr,
    pause: Duration,
    /// When it is asked again.
    again: Instant,
}

impl Health {
    /// Whether the peer failed and did not answer since.
    pub fn is_suspect(&self, address: SocketAddr) -> bool {
        let suspects = self.suspects.load();
        suspects.iter().any(|suspect| suspect.address == address)
    }

    /// The peer could not answer. Many requests may find that at once: within a pause it counts once. Whether it is the
    /// first to find it.
    pub fn failed(&self, address: SocketAddr) -> bool {
        let now = Instant::now();
        let before = self.suspects.rcu(|suspects| {
            let before = suspects.iter().find(|suspect| suspect.address == address);
            let pause = match before {
                Some(suspect) if now < suspect.again => return suspects.clone(),
                Some(suspect) => (suspect.pause * 2).min(LONGEST_PAUSE),
                None => FIRST_PAUSE,
            };
            let others = suspects.iter().filter(|suspect| suspect.address != address);
            let suspect = Suspect {
                address,
                pause,
                again: now + jittered(pause),
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

    /// Who was suspected before.
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

    /// Resolves when a suspect's pause is over.
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

/// Asks peers that failed until they answer or are not there any more. Runs until dropped.
pub async fn run(maker: Arc<ClientMaker>, shared: Arc<Shared>) {
    let health = &shared.health;
    loop {
        let address = health.due().await;
        let snapshot = shared.published.snapshot.load_full();
        let known = |address| snapshot.servers.iter().any(|it| it.endpoint == address);
        health.forget(|suspect| !known(suspect));
        if known(address) {
            match answers(&maker, address).await {
                true => health.answered(address),
                false => drop(health.failed(address)),
            }
        }
    }
}

/// Whether a request sent there would be answered: a proxy says 503 to this for an apiserver that is not ready, an
/// apiserver may say anything else.
async fn answers(maker: &Arc<ClientMaker>, address: SocketAddr) -> bool {
    let answer = maker.client(address).get("/readyz", &[]).await;
    answer.is_ok_and(|answer| answer.status != StatusCode::SERVICE_UNAVAILABLE)
}

/// Clients that ask peers whether they are there, as nobody in particular.
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
        assert!(pauses[0] <= FIRST_PAUSE * 2, "{pauses:?}");
        assert!(pauses[2] > pauses[0], "{pauses:?}");
        assert!(
            pauses.iter().all(|pause| *pause <= LONGEST_PAUSE * 2),
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
