//! Servers that are alive on TCP and answer nothing: stopped, swapped out, or cut off.
//!
//! A request that has waited for `TICKS` has a TLS connection opened to its server. A server that is only busy completes the
//! handshake, whatever its handlers wait for. One from which nothing comes within `LIMIT` is suspected to be frozen. New
//! requests go to other servers then, if others can serve them, and reads that wait for it are given up and sent to
//! another server, once each. Watches, writes and upgraded connections stay: a wrong suspicion does no harm. The server is
//! asked all the time, and any answer from it ends the suspicion.
//!
//! Written by requests that wait, and by [`run`]. Read by every request, without locks.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use pingora_core::ErrorType;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{interval, sleep};

use super::health::Health;
use crate::config::Config;
use crate::local::state::LocalState;
use crate::net::dial;
use crate::routing::table::Snapshot;
use crate::tls::credentials::Current;

/// How often requests that wait look at their server.
const TICK: Duration = Duration::from_millis(200);
/// A request that has waited for so many ticks has its server asked.
const TICKS: usize = 4;
/// A server from which nothing comes in this time is suspected.
const LIMIT: Duration = Duration::from_secs(1);
/// Time between two questions to a suspected server.
const INTERVAL: Duration = Duration::from_millis(500);
/// Most servers that are asked at the same time.
const MOST: usize = 64;

/// Servers that are suspected to be frozen, or asked whether they are.
pub struct FrozenServers {
    asked: ArcSwap<Vec<Arc<Asked>>>,
    begin: mpsc::Sender<Arc<Asked>>,
}

/// A server that is asked.
#[derive(Debug)]
pub struct Asked {
    address: SocketAddr,
    suspected: AtomicBool,
    /// It has answered another request.
    heard: Notify,
}

impl FrozenServers {
    /// And the servers to be asked, for [`run`].
    pub fn new() -> (Self, mpsc::Receiver<Arc<Asked>>) {
        let (begin, to_ask) = mpsc::channel(MOST);
        let this = Self {
            asked: ArcSwap::default(),
            begin,
        };
        (this, to_ask)
    }

    /// Whether nothing comes from the server.
    pub fn is_suspected(&self, address: SocketAddr) -> bool {
        let asked = |it: Arc<Asked>| it.suspected.load(Ordering::Relaxed);
        self.find(address).is_some_and(asked)
    }

    /// The servers from which nothing comes.
    pub fn suspected(&self) -> Vec<SocketAddr> {
        let asked = self.asked.load();
        let suspected = asked
            .iter()
            .filter(|it| it.suspected.load(Ordering::Relaxed));
        suspected.map(|it| it.address).collect()
    }

    /// The server has answered a request.
    pub fn heard(&self, address: SocketAddr) {
        if let Some(asked) = self.find(address) {
            asked.heard.notify_one();
        }
    }

    /// For a request that waits for the server from now on: resolves when it is suspected and `elsewhere` says that
    /// another server can be asked.
    pub async fn is_to_be_left(
        &self,
        address: SocketAddr,
        ticker: &Arc<Ticker>,
        elsewhere: impl Fn() -> bool,
    ) {
        let mut pause = TICKS;
        loop {
            for _ in 0..pause {
                ticker.tick().await;
            }
            pause = match self.is_suspected(address) {
                true if elsewhere() => return,
                true => TICKS,
                false => {
                    self.ask(address);
                    1
                }
            };
        }
    }

    fn find(&self, address: SocketAddr) -> Option<Arc<Asked>> {
        let asked = self.asked.load();
        asked.iter().find(|it| it.address == address).cloned()
    }

    fn ask(&self, address: SocketAddr) {
        let is_known = |asked: &[Arc<Asked>]| {
            asked.len() >= MOST || asked.iter().any(|it| it.address == address)
        };
        if is_known(&self.asked.load()) {
            return;
        }
        let new = Arc::new(Asked {
            address,
            suspected: AtomicBool::new(false),
            heard: Notify::new(),
        });
        let before = self.asked.rcu(|asked| match is_known(asked) {
            true => asked.clone(),
            false => Arc::new(asked.iter().chain([&new]).cloned().collect()),
        });
        if !is_known(&before) && self.begin.try_send(new).is_err() {
            self.forget(address);
        }
    }

    fn forget(&self, address: SocketAddr) {
        self.asked.rcu(|asked| {
            let left = asked.iter().filter(|it| it.address != address);
            left.cloned().collect::<Vec<_>>()
        });
    }
}

/// The timer of all requests of a thread that wait: none needs one of its own.
#[derive(Debug, Default)]
pub struct Ticker {
    next: Notify,
    runs: AtomicBool,
    /// Somebody has waited since the last tick.
    used: AtomicBool,
}

impl Ticker {
    /// Resolves at the next tick.
    async fn tick(self: &Arc<Self>) {
        self.used.store(true, Ordering::Relaxed);
        if !self.runs.load(Ordering::Relaxed) {
            self.runs.store(true, Ordering::Relaxed);
            tokio::spawn(self.clone().run());
        }
        self.next.notified().await;
    }

    /// Ticks until nobody waits.
    async fn run(self: Arc<Self>) {
        while self.used.swap(false, Ordering::Relaxed) {
            sleep(TICK).await;
            self.next.notify_waiters();
            // Those that go on waiting say so first.
            yield_now().await;
        }
        self.runs.store(false, Ordering::Relaxed);
    }
}

/// How many reads may be moved away from servers that are suspected: at first `ReadBudget::BURST`, later a tenth of all.
/// One serving thread's.
pub struct ReadBudget(AtomicU32);

impl ReadBudget {
    const BURST: u32 = 1000;
    const READS_PER_MOVE: u32 = 10;

    /// A read begins.
    pub fn read(&self) {
        let left = self.0.load(Ordering::Relaxed);
        let most = Self::BURST * Self::READS_PER_MOVE;
        self.0.store((left + 1).min(most), Ordering::Relaxed);
    }

    /// Takes a move, if one is left.
    pub fn take(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        let after = left.checked_sub(Self::READS_PER_MOVE);
        self.0.store(after.unwrap_or(left), Ordering::Relaxed);
        after.is_some()
    }
}

impl Default for ReadBudget {
    fn default() -> Self {
        Self(AtomicU32::new(Self::BURST * Self::READS_PER_MOVE))
    }
}

/// Asks servers for [`run`].
pub struct Questions {
    pub config: Config,
    pub credentials: Current,
    pub frozen: Arc<FrozenServers>,
    pub local: Arc<LocalState>,
    pub health: Arc<Health>,
    pub snapshot: Arc<ArcSwap<Snapshot>>,
}

impl Questions {
    /// Asks one server until it answers, or is no server any more.
    async fn ask(&self, server: &Asked) {
        let address = server.address;
        let local = address == self.config.api_server.address;
        let mut questions = JoinSet::new();
        let mut ticks = interval(INTERVAL);
        let mut limit = pin!(sleep(LIMIT));
        loop {
            tokio::select! {
                () = server.heard.notified() => break,
                Some(answered) = questions.join_next() => if matches!(answered, Ok(true)) {
                    break;
                },
                _ = ticks.tick() => match local || self.is_known(address) {
                    true => drop(questions.spawn(self.question(address, local))),
                    false => break,
                },
                () = &mut limit, if !server.suspected.load(Ordering::Relaxed) => {
                    self.suspect(server, local);
                }
            }
        }
        if !server.suspected.load(Ordering::Relaxed) {
            // Others that wait for it need not ask again at once.
            sleep(LIMIT).await;
        }
        self.frozen.forget(address);
        if server.suspected.load(Ordering::Relaxed) {
            tracing::info!(server = %address, local, "the server answers again");
            match local {
                true => self.local.freezes(false),
                false => self.health.answered(address),
            }
        }
    }

    fn suspect(&self, server: &Asked, local: bool) {
        let address = server.address;
        tracing::warn!(server = %address, local, "nothing comes from the server: others are asked first");
        server.suspected.store(true, Ordering::Relaxed);
        match local {
            true => self.local.freezes(true),
            false => drop(self.health.failed(address)),
        }
    }

    fn is_known(&self, address: SocketAddr) -> bool {
        let snapshot = self.snapshot.load();
        snapshot.servers.iter().any(|it| it.endpoint == address)
    }

    /// Resolves to whether anything comes from the server. One that is down is not frozen.
    fn question(&self, address: SocketAddr, local: bool) -> impl Future<Output = bool> + use<> {
        let credentials = self.credentials.load();
        let (name, trust) = match local {
            true => (&self.config.api_server.server_name, &credentials.local),
            false => (&self.config.peer.server_name, &credentials.peers),
        };
        let (name, tls) = (name.clone(), trust.with_certificate.clone());
        async move {
            let opened = dial(address, &name, &tls).await;
            !opened.is_err_and(|error| *error.etype() == ErrorType::ConnectTimedout)
        }
    }
}

/// Asks the servers that requests wait for. Runs until dropped.
pub async fn run(questions: Questions, mut to_ask: mpsc::Receiver<Arc<Asked>>) {
    let questions = Arc::new(questions);
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            Some(server) = to_ask.recv() => {
                let questions = questions.clone();
                running.spawn(async move { questions.ask(&server).await });
            }
            Some(_) = running.join_next() => {}
            else => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn address(last: u8) -> SocketAddr {
        ([10, 0, 0, last], 6443).into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_waits_has_its_server_asked_once_at_a_time() {
        let (frozen, mut to_ask) = FrozenServers::new();
        let ticker = Arc::default();
        let waiting = async {
            tokio::join!(
                frozen.is_to_be_left(address(1), &ticker, || true),
                frozen.is_to_be_left(address(1), &ticker, || true),
            )
        };
        let begun = Instant::now();
        let answering = async {
            let asked = to_ask.recv().await.unwrap();
            let elapsed = begun.elapsed().as_secs_f64();
            assert!((0.8..0.81).contains(&elapsed), "{elapsed}");
            assert!(to_ask.try_recv().is_err() && !frozen.is_suspected(address(1)));
            // It answers, and is asked again while the requests still wait.
            frozen.forget(asked.address);
            let asked = to_ask.recv().await.unwrap();
            asked.suspected.store(true, Ordering::Relaxed);
        };
        tokio::join!(waiting, answering);
        assert!(frozen.is_suspected(address(1)) && !frozen.is_suspected(address(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_stays_where_it_is_while_nobody_else_can_serve_it() {
        let (frozen, mut to_ask) = FrozenServers::new();
        let elsewhere = AtomicBool::new(false);
        let ticker = Arc::default();
        let waiting =
            frozen.is_to_be_left(address(1), &ticker, || elsewhere.load(Ordering::Relaxed));
        let suspecting = async {
            let asked = to_ask.recv().await.unwrap();
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
