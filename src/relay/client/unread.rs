//! Limits the memory of answers that clients do not read, and ends the slowest ones.
//!
//! An answer is listed while a piece of it waits for its client, with the most memory that it may hold; so is a
//! connection whose socket accepts nothing. Other answers cost nothing. Who is taken off the list by somebody else is
//! given up. One task looks at the list once a second while it is not empty: a short request whose client reads nothing
//! for `STALL_SECONDS` is given up, as kube-apiserver's own timeout would do, and so is a socket.
//! When all together hold more than [`BUDGET`], answers are given up at once: first on connections that hold more than
//! their share, so that many clients that never read cannot harm one that reads slowly; then on connections with
//! blocked sockets; above `HARD_LIMIT` on the connections that hold most. An answer whose server sends nothing does not
//! wait, and is never given up.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pingora_core::{Error, ErrorType};
use prometheus::{IntCounter, IntGauge};

use super::connection::Outflow;
use crate::metrics::{metrics, saturating};
use crate::relay::upstream::{LONG_RUNNING_WINDOW, STREAM_WINDOW};

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
/// Memory of a request and its streams on both sides.
const REQUEST: usize = 64 << 10;
/// The same of a long-running one, which needs little besides its data.
const LONG_RUNNING: usize = 8 << 10;
/// pingora's buffer of an HTTP/1.1 body, and a piece that was taken out of it.
const HTTP1_UNREAD: usize = 128 << 10;
/// Events up to this size do not count while a client has read a part of them.
const COMMON_EVENT: usize = 4 << 10;
/// Overhead of an unread piece.
const EACH_PIECE: usize = 160;
/// Bytes of an answer that may wait for the client's socket.
pub const SEND_BUFFER: usize = 16 << 10;

/// Why an answer was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetReason {
    /// Its client has read nothing for too long.
    Timeout,
    /// The budget is exceeded.
    Budget,
}

impl ResetReason {
    /// In the order of their declaration.
    pub const NAMES: [&str; 2] = ["timeout", "budget"];
}

metrics! {
    /// Metrics of the budget for unread answers.
    #[derive(Debug, Clone)]
    pub struct UnreadMetrics {
        /// Most that answers may hold here whose clients let them wait.
        held: IntGauge = gauge("kube_interop_proxy_unread_bytes"),
        /// Answers and connections ended because the client did not read: it took nothing for 60 s (timeout), or too
        /// much was unread (budget).
        given_up: [IntCounter; ResetReason::NAMES.len()] =
            counters("kube_interop_proxy_unread_resets_total", "reason", ResetReason::NAMES),
    }
}

/// The budget for answers that clients do not read.
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
struct Wait {
    outflow: Arc<Outflow>,
    /// Bytes that an answer may hold; 0: a socket.
    weight: usize,
    /// A long-running request's.
    long: bool,
    /// Seconds since it began to wait.
    quiet: u32,
    waker: Waker,
}

impl Wait {
    fn is_socket(&self) -> bool {
        self.weight == 0
    }

    fn is_long(&self) -> bool {
        self.long || self.is_socket() && self.outflow.has_long_running()
    }

    /// Bytes that wait for the socket.
    fn backlog(&self) -> usize {
        match self.is_socket() {
            true => self.outflow.backlog(),
            false => 0,
        }
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
                self.backlog = self.backlog.saturating_sub(wait.backlog());
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
        let is_stalled = |wait: &Wait| wait.quiet >= STALL_SECONDS && !wait.is_long();
        for id in self.in_order(is_stalled, |_| ()) {
            self.give_up(id, ResetReason::Timeout);
        }
        self.backlog = self.waits.values().map(Wait::backlog).sum();
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
        let longest = |wait: &Wait| Reverse(wait.quiet);
        for id in self.in_order(is_answer, longest) {
            if self.total() <= RELIEF_TARGET {
                return;
            }
            // Those before it may have held more.
            let wait = self.waits.get(&id);
            if wait.is_some_and(|wait| wait.outflow.is_above(share)) {
                self.give_up(id, ResetReason::Budget);
            }
        }
        let is_blocked = |wait: &Wait| wait.is_socket() && wait.quiet > 0;
        for id in self.in_order(is_blocked, longest) {
            if self.total() <= BUDGET {
                return;
            }
            self.give_up(id, ResetReason::Budget);
        }
        // No connection is above its share: the largest is given up first, so that a slow reader is last.
        for id in self.in_order(is_answer, |wait| Reverse(wait.outflow.held())) {
            if self.total() <= HARD_LIMIT {
                return;
            }
            self.give_up(id, ResetReason::Budget);
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

    /// Locked for a short time, and only for who waits.
    fn lock(&self) -> MutexGuard<'_, WaitList> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists a connection with a blocked socket, whose task is `writer`.
    pub(super) fn list_socket(self: &Arc<Self>, outflow: &Arc<Outflow>, writer: &Waker) -> u64 {
        self.list(Wait {
            outflow: outflow.clone(),
            weight: 0,
            long: false,
            quiet: 0,
            waker: writer.clone(),
        })
    }

    fn list(self: &Arc<Self>, wait: Wait) -> u64 {
        let mut list = self.lock();
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
                    if !unread.lock().tick() {
                        return;
                    }
                }
            });
        }
        list.relieve();
        id
    }

    /// It still waits; `false`: it was given up.
    pub(super) fn goes_on(&self, id: u64, waker: &Waker) -> bool {
        let mut list = self.lock();
        let wait = list.waits.get_mut(&id);
        wait.map(|wait| wait.waker.clone_from(waker)).is_some()
    }

    pub(super) fn unlist(&self, id: u64) {
        self.lock().remove(id);
    }
}

/// Writes one answer to a client that may be slow.
pub struct AnswerWriter<'a> {
    unread: &'a Arc<UnreadBudget>,
    outflow: &'a Arc<Outflow>,
    long: bool,
    /// Most bytes that may have arrived and not been passed on.
    unread_bytes: usize,
    /// Length of the answer, if known.
    length: Option<usize>,
    /// What was written so far.
    pieces: usize,
    bytes: usize,
    /// It is listed.
    waits: Option<u64>,
    /// What is kept of an event that the client has read in part.
    kept: usize,
}

impl<'a> AnswerWriter<'a> {
    /// `outflow`: of the client's connection; `length`: of the answer's body, if known.
    pub fn new(
        unread: &'a Arc<UnreadBudget>,
        outflow: &'a Arc<Outflow>,
        long: bool,
        length: Option<usize>,
    ) -> Self {
        Self {
            unread,
            outflow,
            long,
            unread_bytes: match long {
                true => LONG_RUNNING_WINDOW as usize,
                false => STREAM_WINDOW as usize,
            },
            length,
            pieces: 0,
            bytes: 0,
            waits: None,
            kept: 0,
        }
    }

    /// Over HTTP/1.1 the server's connection has no window.
    pub fn of_http1(mut self) -> Self {
        self.unread_bytes = HTTP1_UNREAD;
        self
    }

    /// To be called before a piece is written: waits until the client's connection has room. An error: the answer was
    /// given up.
    pub async fn reserve(&mut self, bytes: usize) -> pingora_core::Result<()> {
        let outflow = self.outflow;
        self.pieces += 1;
        self.bytes += bytes;
        if !outflow.has_room() {
            self.write(pin!(async {
                outflow.room().await;
                Ok(())
            }))
            .await?;
        }
        outflow.hand_over(bytes);
        Ok(())
    }

    /// Counts what is kept of an event that the client has read in part; `false`: it is too much, for the client's
    /// connection or in all, and nothing may be kept. Events of common size do not count.
    pub fn keeps(&mut self, bytes: usize) -> bool {
        let bytes = if bytes < COMMON_EVENT { 0 } else { bytes };
        if bytes == self.kept {
            return true;
        }
        let mut list = self.unread.lock();
        list.release(self.outflow, std::mem::take(&mut self.kept));
        let fits = bytes == 0 || list.total() + bytes <= KEPT && self.outflow.may_hold(bytes);
        if fits {
            list.hold(self.outflow, bytes);
            self.kept = bytes;
        }
        fits
    }

    /// Runs `writing`. An error: the answer was given up.
    pub async fn write<T>(
        &mut self,
        mut writing: Pin<&mut impl Future<Output = pingora_core::Result<T>>>,
    ) -> pingora_core::Result<T> {
        poll_fn(|context| match writing.as_mut().poll(context) {
            Poll::Ready(written) => {
                self.unlist();
                Poll::Ready(written)
            }
            Poll::Pending => self
                .poll_given_up(context)
                .map(|()| Error::e_explain(ErrorType::WriteTimedout, "the client does not read")),
        })
        .await
    }

    fn unlist(&mut self) {
        if let Some(id) = self.waits.take() {
            self.unread.unlist(id);
        }
    }

    fn poll_given_up(&mut self, context: &Context<'_>) -> Poll<()> {
        if let Some(id) = self.waits {
            return match self.unread.goes_on(id, context.waker()) {
                true => Poll::Pending,
                false => Poll::Ready(()),
            };
        }
        let request = if self.long { LONG_RUNNING } else { REQUEST };
        let piece = self.bytes / self.pieces.max(1);
        self.waits = Some(self.unread.list(Wait {
            outflow: self.outflow.clone(),
            weight: request + unread_weight(self.unread_bytes, self.length, piece),
            long: self.long,
            quiet: 0,
            waker: context.waker().clone(),
        }));
        Poll::Pending
    }
}

impl Drop for AnswerWriter<'_> {
    fn drop(&mut self) {
        self.unlist();
        self.keeps(0);
    }
}

/// Most memory that an answer's data may take: what may have arrived, in which a piece counts until it is passed on, and
/// what waits for the socket. HTTP/2 keeps each unread piece separately.
fn unread_weight(unread: usize, length: Option<usize>, piece: usize) -> usize {
    let pieces = unread / piece.clamp(1, unread) * EACH_PIECE;
    let most = unread + SEND_BUFFER;
    length.map_or(most + pieces, |length| length.min(most))
}

#[cfg(test)]
mod tests;
