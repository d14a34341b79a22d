//! What all serving threads share. Read on every request, written elsewhere.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::Method;
use rand::Rng;
use tokio::sync::watch;

use super::answer::Refusal;
use super::health::Health;
use super::overlay::cache::Cache;
use crate::admin::metrics::Metrics;
use crate::admin::recent::{Event, Recent};
use crate::cluster::catalog::{Own, Published};
use crate::config::Config;
use crate::discovery::gathered::Gathering;
use crate::local::state::LocalState;
use crate::request::headers::Privileged;
use crate::request::info::RequestInfo;
use crate::request::who::Judge;
use crate::routing::decide::Policy;
use crate::tls::credentials::Current;
use crate::watches::archive::Archive;
use crate::watches::samples::Samples;

/// Shared by all serving threads.
pub struct Shared {
    /// The configuration.
    pub config: Config,
    /// Who we are.
    pub own: Own,
    /// What client certificates are judged by.
    pub judge: ArcSwap<Judge>,
    /// What connections to apiservers are made with.
    pub credentials: Current,
    /// Told whenever one of these two was replaced.
    pub rotated: watch::Sender<()>,
    /// Headers that only peers may send.
    pub privileged: Privileged,
    /// What routing goes by.
    pub policy: Policy,
    /// What etcd says.
    pub published: Published,
    /// What peers list and the apiserver beside us does not.
    pub gathering: Arc<Gathering>,
    /// The apiserver beside us.
    pub local: Arc<LocalState>,
    /// Which peers failed lately.
    pub health: Health,
    /// Discovery documents that something was added to.
    pub merges: Cache,
    /// What watches that end are told by.
    pub archive: Archive,
    /// What lists of the apiserver beside us showed, for those that saw nothing.
    pub samples: Samples,
    /// Reroutes and refusals, for the status page.
    pub recent: Recent,
    /// A control task has panicked.
    pub crippled: Arc<AtomicBool>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// How far a stop has come.
    pub phase: watch::Receiver<Phase>,
}

/// What part of `shutdown.drain` long-running requests get their turns in.
pub const TURNS: f64 = 0.9;

/// How far a stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Serving.
    Serving,
    /// `/readyz` fails, everything is still served.
    Leaving,
    /// No new connections; long-running requests end one after the other.
    Draining,
}

impl Shared {
    /// Whether load balancers should send requests here.
    pub fn is_ready(&self) -> bool {
        self.local.is_ready() && self.local.believes_us() && !self.is_leaving()
    }

    /// Whether the proxy is stopping: an answer on an HTTP/1 connection is its last then, and says so.
    pub fn is_leaving(&self) -> bool {
        *self.phase.borrow() != Phase::Serving
    }

    /// Whether the snapshot is too old to prove that nobody serves a resource.
    pub fn is_stale(&self) -> bool {
        self.published.freshness.age() > 2 * self.config.peer.lease_ttl
    }

    /// The proxy answers by itself; `request`: what was asked, if it could be read; `server`: who was asked last.
    pub fn refused(
        &self,
        refusal: Refusal,
        request: Option<(&Method, &RequestInfo<'_>)>,
        server: Option<SocketAddr>,
    ) {
        self.metrics.refused(refusal);
        let (code, reason) = (refusal.code(), refusal.name());
        let event = || Event::new(request, server, code, reason);
        self.recent.refused.add(event);
    }

    /// Seconds for `Retry-After`, drawn anew for each answer.
    pub fn retry_after(&self) -> u32 {
        let config = &self.config.if_ready;
        let jitter = rand::thread_rng().gen_range(0..=config.retry_after_jitter_seconds);
        config.retry_after_seconds + jitter
    }

    /// Resolves at a long-running request's turn to end: a random moment of `shutdown.drain`, so that clients do not
    /// all come back at once.
    pub async fn turn_to_end(&self) {
        let mut phase = self.phase.clone();
        if phase
            .wait_for(|phase| *phase == Phase::Draining)
            .await
            .is_err()
        {
            // Nobody is left to tell: the process is ending.
            return;
        }
        self.a_turn().await;
    }

    /// Resolves after a random part of `shutdown.drain`.
    pub async fn a_turn(&self) {
        let share = rand::thread_rng().gen_range(0.0..TURNS);
        let turn: Duration = self.config.shutdown.drain.mul_f64(share);
        tokio::time::sleep(turn).await;
    }
}
