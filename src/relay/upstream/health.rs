//! Servers in doubt: peers that failed, and servers that are alive on TCP and answer nothing (stopped, swapped out, or cut
//! off). Written by requests and by [`crate::relay::recovery`], which asks these servers until they answer. Read by requests
//! without locks, when one of several servers is chosen.
//!
//! A peer that failed is tried last until it answers again.
//!
//! A request that has waited for `PATIENCE` has its server asked. One from which nothing comes is suspected to be frozen. New
//! requests go to other servers then, if others can serve them, and reads that wait for it are given up and sent to
//! another server, once each. Watches, writes and upgraded connections stay: a wrong suspicion does no harm.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use hashbrown::HashMap;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::retry::Backoff;

const BACKOFF: Backoff = Backoff::between(Duration::from_secs(1), Duration::from_secs(30));
/// How long requests may begin to wait for a failed peer that can do without it, and how often.
pub const TRIAL: Duration = Duration::from_millis(100);
const TRIALS: Duration = Duration::from_secs(1);

/// What is known of servers, replaced as a whole.
type ByAddress<T> = ArcSwap<HashMap<SocketAddr, T>>;

/// Returns what was known before.
fn change<T: Clone>(
    servers: &ByAddress<T>,
    change: impl Fn(&mut HashMap<SocketAddr, T>),
) -> Arc<HashMap<SocketAddr, T>> {
    servers.rcu(|before| {
        let mut after = HashMap::clone(before);
        change(&mut after);
        after
    })
}

/// Peers that have failed and not answered since.
#[derive(Debug, Default)]
pub struct Health {
    suspects: ByAddress<Suspect>,
    changed: Notify,
}

#[derive(Debug, Clone, Copy)]
struct Suspect {
    failures: u32,
    /// When it is asked again.
    again: Instant,
    /// When requests that can do without it could begin to wait for it last.
    trial: Option<Instant>,
}

impl Health {
    /// Whether the peer has failed and not answered since.
    pub fn is_suspect(&self, address: SocketAddr) -> bool {
        self.suspects.load().contains_key(&address)
    }

    /// Whether any peer has.
    pub fn has_suspects(&self) -> bool {
        !self.suspects.load().is_empty()
    }

    /// Whether a request that can do without the peer may wait for it. Once it has failed, those that begin in the first
    /// [`TRIAL`] of a second may.
    pub fn may_be_waited_for(&self, address: SocketAddr) -> bool {
        let now = Instant::now();
        let trial = match self.suspects.load().get(&address) {
            None => return true,
            Some(suspect) => suspect.trial.filter(|begun| now < *begun + TRIALS),
        };
        if let Some(begun) = trial {
            return now < begun + TRIAL;
        }
        change(&self.suspects, |suspects| {
            if let Some(suspect) = suspects.get_mut(&address) {
                suspect.trial = Some(now);
            }
        });
        true
    }

    /// The peer could not answer. Many requests may notice that at the same time: within a pause they count once.
    /// Returns whether this is the first failure.
    pub fn failed(&self, address: SocketAddr) -> bool {
        let now = Instant::now();
        let before = change(&self.suspects, |suspects| {
            let suspect = suspects.entry(address).or_insert(Suspect {
                failures: 0,
                again: now,
                trial: None,
            });
            if now >= suspect.again {
                suspect.failures = suspect.failures.saturating_add(1);
                suspect.again = now + BACKOFF.random_pause(suspect.failures);
            }
        });
        self.changed.notify_one();
        !before.contains_key(&address)
    }

    /// The peer answered.
    pub fn answered(&self, address: SocketAddr) {
        if self.is_suspect(address) {
            change(&self.suspects, |suspects| {
                suspects.remove(&address);
            });
            tracing::info!(peer = %address, "the peer answers again");
        }
    }

    /// Forgets those that are no targets: when one is again, what failed before says nothing of it.
    pub fn keep(&self, are_targets: impl Fn(SocketAddr) -> bool) {
        change(&self.suspects, |suspects| {
            suspects.retain(|address, _| are_targets(*address));
        });
    }

    /// Resolves when a suspect is to be asked again.
    pub async fn due(&self) -> SocketAddr {
        loop {
            let changed = self.changed.notified();
            let suspects = self.suspects.load_full();
            let times = suspects.iter().map(|(address, it)| (it.again, *address));
            match times.min() {
                None => changed.await,
                Some((again, address)) => tokio::select! {
                    () = sleep_until(again) => return address,
                    () = changed => {}
                },
            }
        }
    }
}

/// A request that has waited for so long has its server asked.
const PATIENCE: Duration = Duration::from_millis(800);
/// How often it looks from then on whether the server is suspected.
const LOOK: Duration = Duration::from_millis(200);
/// Servers that are suspected to be frozen, or asked whether they are.
#[derive(Debug, Default)]
pub struct FrozenServers {
    asked: ByAddress<Arc<Asked>>,
    /// One is to be asked.
    new: Notify,
}

/// A server that is asked.
#[derive(Debug, Default)]
pub struct Asked {
    pub suspected: AtomicBool,
    /// It has answered another request.
    pub heard: Notify,
    begun: AtomicBool,
}

impl Asked {
    pub fn is_suspected(&self) -> bool {
        self.suspected.load(Ordering::Relaxed)
    }
}

impl FrozenServers {
    /// Whether nothing comes from the server.
    pub fn is_suspected(&self, address: SocketAddr) -> bool {
        let asked = self.asked.load();
        asked.get(&address).is_some_and(|it| it.is_suspected())
    }

    /// The servers from which nothing comes.
    pub fn suspected(&self) -> Vec<SocketAddr> {
        let asked = self.asked.load();
        let suspected = asked.iter().filter(|(_, it)| it.is_suspected());
        suspected.map(|(address, _)| *address).collect()
    }

    /// The server has answered a request.
    pub fn heard(&self, address: SocketAddr) {
        if let Some(asked) = self.asked.load().get(&address) {
            asked.heard.notify_one();
        }
    }

    /// For a request that waits for the server from now on: resolves when it is suspected and `elsewhere` says that
    /// another server can be asked.
    pub async fn is_to_be_left(&self, address: SocketAddr, elsewhere: impl Fn() -> bool) {
        let mut pause = PATIENCE;
        loop {
            sleep(pause).await;
            pause = match self.is_suspected(address) {
                true if elsewhere() => return,
                true => PATIENCE,
                false => {
                    self.ask(address);
                    LOOK
                }
            };
        }
    }

    fn ask(&self, address: SocketAddr) {
        if !self.asked.load().contains_key(&address) {
            change(&self.asked, |asked| {
                asked.entry(address).or_default();
            });
            self.new.notify_one();
        }
    }

    /// Resolves to servers that nobody asks yet. For one waiter.
    pub async fn to_ask(&self) -> Vec<(SocketAddr, Arc<Asked>)> {
        self.new.notified().await;
        let asked = self.asked.load();
        let is_new = |it: &Asked| !it.begun.swap(true, Ordering::Relaxed);
        let new = asked.iter().filter(|(_, it)| is_new(it));
        new.map(|(address, it)| (*address, it.clone())).collect()
    }

    /// The server is asked no more.
    pub fn forget(&self, address: SocketAddr) {
        change(&self.asked, |asked| {
            asked.remove(&address);
        });
    }
}

/// How many reads may be moved away from servers that are suspected: at first `ReadBudget::BURST`, later a tenth of all.
/// One serving thread's: how many reads have to come until nothing is spent.
#[derive(Default)]
pub struct ReadBudget(AtomicU32);

impl ReadBudget {
    const BURST: u32 = 1000;
    const READS_PER_MOVE: u32 = 10;

    /// A read begins.
    pub fn read(&self) {
        let spent = self.0.load(Ordering::Relaxed);
        self.0.store(spent.saturating_sub(1), Ordering::Relaxed);
    }

    /// Takes a move, if one is left.
    pub fn take(&self) -> bool {
        let spent = self.0.load(Ordering::Relaxed) + Self::READS_PER_MOVE;
        let is_left = spent <= Self::BURST * Self::READS_PER_MOVE;
        if is_left {
            self.0.store(spent, Ordering::Relaxed);
        }
        is_left
    }
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

    #[tokio::test(start_paused = true)]
    async fn a_request_that_waits_has_its_server_asked_once_at_a_time() {
        let frozen = FrozenServers::default();
        let waiting = async {
            tokio::join!(
                frozen.is_to_be_left(peer(1), || true),
                frozen.is_to_be_left(peer(1), || true),
            )
        };
        let begun = Instant::now();
        let answering = async {
            let [(address, _)] = &frozen.to_ask().await[..] else {
                panic!("one server");
            };
            let elapsed = begun.elapsed().as_secs_f64();
            assert!((0.8..0.81).contains(&elapsed), "{elapsed}");
            assert!(!frozen.is_suspected(peer(1)));
            // It answers, and is asked again while the requests still wait.
            frozen.forget(*address);
            let (_, asked) = frozen.to_ask().await.remove(0);
            asked.suspected.store(true, Ordering::Relaxed);
        };
        tokio::join!(waiting, answering);
        assert!(frozen.is_suspected(peer(1)) && !frozen.is_suspected(peer(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_stays_where_it_is_while_nobody_else_can_serve_it() {
        let frozen = FrozenServers::default();
        let elsewhere = AtomicBool::new(false);
        let waiting = frozen.is_to_be_left(peer(1), || elsewhere.load(Ordering::Relaxed));
        let suspecting = async {
            let (_, asked) = frozen.to_ask().await.remove(0);
            asked.suspected.store(true, Ordering::Relaxed);
            sleep(Duration::from_secs(60)).await;
            elsewhere.store(true, Ordering::Relaxed);
        };
        let begun = Instant::now();
        tokio::join!(waiting, suspecting);
        assert!(begun.elapsed() > Duration::from_secs(60));
    }

    #[test]
    fn a_tenth_of_all_reads_is_moved_after_the_first_thousand() {
        let budget = ReadBudget::default();
        assert_eq!((0..2000).filter(|_| budget.take()).count(), 1000);
        (0..500).for_each(|_| budget.read());
        assert_eq!((0..2000).filter(|_| budget.take()).count(), 50);
        (0..100_000).for_each(|_| budget.read());
        assert_eq!((0..2000).filter(|_| budget.take()).count(), 1000);
    }
}
