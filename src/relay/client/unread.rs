//! Limits the memory of answers that clients do not read, and ends the slowest ones.
//!
//! An answer is listed while a piece of it waits for its client, with the most memory that it may hold; so is a
//! connection whose socket accepts nothing. Other answers cost nothing. Who is taken off the list by somebody else is
//! given up. One task looks at the list once a second while it is not empty: a short request whose client reads nothing
//! for `STALL_SECONDS` is given up, as kube-apiserver's own timeout would do, unless it reads a log, and so is a socket.
//! When all together hold more than [`BUDGET`], answers are given up at once: first on connections that hold more than
//! their share, so that many clients that never read cannot harm one that reads slowly; then on connections with
//! blocked sockets; above `HARD_LIMIT` on the connections that hold most. An answer whose server sends nothing does not
//! wait, and is never given up.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use prometheus::{IntCounter, IntGauge};

use super::connection::Outflow;
use crate::metrics::{labels, metrics, saturating};
use crate::net::lock;

/// The budget: bytes that unread answers may hold in total.
pub const BUDGET: usize = 256 << 20;
/// Above this, no more is kept of half events: nobody is given up for them.
const KEPT: usize = BUDGET / 2;
/// Above this, answers are given up even on connections within their share.
const HARD_LIMIT: usize = BUDGET / 4 * 5;
/// Relief stops at this level.
const RELIEF_TARGET: usize = BUDGET / 8 * 7;
/// Seconds without progress, as kube-apiserver's timeout of requests that are not long-running.
const STALL_SECONDS: u32 = 60;
const TICK: Duration = Duration::from_secs(1);
labels! {
    /// Why an answer was given up.
    pub enum ResetReason {
        /// Its client has read nothing for too long.
        Timeout = "timeout",
        /// The budget is exceeded.
        Budget = "budget",
    }
}

metrics! {
    /// Metrics of the budget for unread answers.
    #[derive(Debug, Clone)]
    pub struct UnreadMetrics {
        /// Upper bound of the bytes that answers waiting for their clients hold.
        held: IntGauge = gauge("kube_interop_proxy_unread_bytes"),
        /// Answers and connections whose client took nothing for 60 s (timeout), or that left too much unread (budget).
        given_up: [IntCounter; ResetReason::ALL.len()] =
            counters("kube_interop_proxy_unread_resets_total", "reason", ResetReason::ALL.map(ResetReason::name)),
    }
}

/// The budget for answers that clients do not read. Locked for a short time, and only for those who wait.
#[derive(Debug)]
pub struct UnreadBudget(Mutex<WaitList>);

#[derive(Debug)]
struct WaitList {
    next: u64,
    /// In the order in which they began to wait.
    waits: BTreeMap<u64, Wait>,
    /// Bytes that answers, and kept parts of events, may hold.
    held: usize,
    /// Shares of the budget: one for each connection that holds any of these bytes, more for a peer's.
    shares: usize,
    /// Bytes that wait for sockets, at the last tick.
    backlog: usize,
    /// A task ticks.
    watched: bool,
    metrics: UnreadMetrics,
}

/// An answer or a connection's socket that makes no progress.
#[derive(Debug)]
pub(super) struct Wait {
    outflow: Arc<Outflow>,
    /// Bytes that an answer may hold; 0: a socket.
    weight: usize,
    /// There is no limit to the time that the client takes.
    unlimited: bool,
    /// Seconds since it began to wait.
    quiet: u32,
    waker: Waker,
}

impl Wait {
    pub(super) fn new(
        outflow: &Arc<Outflow>,
        weight: usize,
        unlimited: bool,
        waker: &Waker,
    ) -> Self {
        Self {
            outflow: outflow.clone(),
            weight,
            unlimited,
            quiet: 0,
            waker: waker.clone(),
        }
    }

    fn is_socket(&self) -> bool {
        self.weight == 0
    }

    fn is_unlimited(&self) -> bool {
        self.unlimited || self.is_socket() && self.outflow.has_unlimited()
    }
}

impl WaitList {
    fn total(&self) -> usize {
        self.held + self.backlog
    }

    fn hold(&mut self, outflow: &Outflow, bytes: usize) {
        if bytes > 0 {
            self.held += bytes;
            self.shares += outflow.hold(bytes);
        }
    }

    fn release(&mut self, outflow: &Outflow, bytes: usize) {
        if bytes > 0 {
            self.held -= bytes;
            self.shares -= outflow.release(bytes);
        }
    }

    fn remove(&mut self, id: u64) -> Option<Wait> {
        let wait = self.waits.remove(&id)?;
        self.release(&wait.outflow, wait.weight);
        Some(wait)
    }

    fn give_up(&mut self, id: u64, reason: ResetReason) {
        if let Some(wait) = self.remove(id) {
            self.metrics.given_up[reason as usize].inc();
            if wait.is_socket() {
                self.backlog = self.backlog.saturating_sub(wait.outflow.backlog());
                wait.outflow.end();
            }
            wait.waker.wake();
        }
    }

    /// Runs once a second; `false`: nothing is left to watch.
    fn tick(&mut self) -> bool {
        for wait in self.waits.values_mut() {
            wait.quiet += 1;
        }
        let is_stalled = |wait: &Wait| wait.quiet >= STALL_SECONDS && !wait.is_unlimited();
        for id in self.in_order(is_stalled, |_| ()) {
            self.give_up(id, ResetReason::Timeout);
        }
        let sockets = self.waits.values().filter(|wait| wait.is_socket());
        self.backlog = sockets.map(|wait| wait.outflow.backlog()).sum();
        self.metrics.held.set(saturating(self.total()));
        self.relieve();
        self.watched = !self.waits.is_empty();
        self.watched
    }

    /// Above the budget, gives up answers until the rest is well below it.
    fn relieve(&mut self) {
        if self.total() <= BUDGET {
            return;
        }
        let share = RELIEF_TARGET.saturating_sub(self.backlog) / self.shares.max(1);
        let is_answer = |wait: &Wait| !wait.is_socket();
        let is_blocked = |wait: &Wait| wait.is_socket() && wait.quiet > 0;
        let longest = |wait: &Wait| Reverse(wait.quiet);
        // Those before it may have held more.
        let is_above = |wait: &Wait| wait.outflow.is_above(share);
        self.shrink(RELIEF_TARGET, self.in_order(is_answer, longest), is_above);
        self.shrink(BUDGET, self.in_order(is_blocked, longest), |_| true);
        // No connection is above its share: the largest is given up first, so that a slow reader is last.
        let largest = |wait: &Wait| Reverse(wait.outflow.held());
        self.shrink(HARD_LIMIT, self.in_order(is_answer, largest), |_| true);
    }

    /// Gives those up of `order` that `are`, one after the other, until so many bytes are left.
    fn shrink(&mut self, left: usize, order: Vec<u64>, are: impl Fn(&Wait) -> bool) {
        for id in order {
            if self.total() <= left {
                return;
            }
            if self.waits.get(&id).is_some_and(&are) {
                self.give_up(id, ResetReason::Budget);
            }
        }
    }

    /// Those that `are`, in the order of `key`, and with equal keys the oldest first.
    fn in_order<K: Ord>(&self, are: impl Fn(&Wait) -> bool, key: impl Fn(&Wait) -> K) -> Vec<u64> {
        let waits = self.waits.iter().filter(|(_, wait)| are(wait));
        let mut order: Vec<_> = waits.map(|(id, wait)| (key(wait), *id)).collect();
        order.sort_unstable();
        order.into_iter().map(|(_, id)| id).collect()
    }
}

impl UnreadBudget {
    pub fn new(metrics: UnreadMetrics) -> Self {
        Self(Mutex::new(WaitList {
            next: 0,
            waits: BTreeMap::new(),
            held: 0,
            shares: 0,
            backlog: 0,
            watched: false,
            metrics,
        }))
    }

    /// Lists a connection with a blocked socket, whose task is `writer`.
    pub fn list_socket(self: &Arc<Self>, outflow: &Arc<Outflow>, writer: &Waker) -> u64 {
        self.list(Wait::new(outflow, 0, false, writer))
    }

    pub(super) fn list(self: &Arc<Self>, wait: Wait) -> u64 {
        let mut list = lock(&self.0);
        list.next += 1;
        let id = list.next;
        list.hold(&wait.outflow, wait.weight);
        list.waits.insert(id, wait);
        if !list.watched {
            list.watched = true;
            let unread = self.clone();
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(TICK).await;
                    if !lock(&unread.0).tick() {
                        return;
                    }
                }
            });
        }
        list.relieve();
        id
    }

    /// It still waits; `false`: it was given up.
    pub fn goes_on(&self, id: u64, waker: &Waker) -> bool {
        let mut list = lock(&self.0);
        let wait = list.waits.get_mut(&id);
        wait.map(|wait| wait.waker.clone_from(waker)).is_some()
    }

    pub fn unlist(&self, id: u64) {
        lock(&self.0).remove(id);
    }

    /// A connection keeps `bytes` of half events instead of `before`; `false`: it is too much, and nothing is kept.
    pub(super) fn keep(&self, outflow: &Outflow, before: usize, bytes: usize) -> bool {
        let mut list = lock(&self.0);
        list.release(outflow, before);
        let fits = bytes == 0 || list.total() + bytes <= KEPT && outflow.may_hold(bytes);
        if fits {
            list.hold(outflow, bytes);
        }
        fits
    }
}

#[cfg(test)]
mod tests;
