//! Limits the memory of answers that clients do not read, and ends the slowest ones.
//!
//! An answer is listed when its client first lets a piece wait, with the most memory that it may hold, until its
//! exchange ends. Other answers cost nothing. One task looks at the list once a second while it is not empty. A short
//! request whose client reads nothing for `STALL_SECONDS` is given up, as kube-apiserver's own timeout would do. So is
//! a connection whose socket accepts nothing.
//! When all answers together hold more than [`BUDGET`], waiting answers are given up at once: first on connections that
//! hold more than their share, so that many clients that never read cannot harm one that reads slowly; then on
//! connections with blocked sockets; above `HARD_LIMIT` on the connections that hold most. An answer whose server sends
//! nothing does not wait, and is never given up.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pingora_core::{Error, ErrorType};

use self::outflow::Outflow;
use crate::relay::client::unread::metrics::UnreadMetrics;
use crate::relay::upstream::{LONG_RUNNING_WINDOW, STREAM_WINDOW};

pub mod metrics;
pub mod outflow;

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
/// After this many seconds without waiting an answer is removed from the list.
const IDLE_SECONDS: u32 = 3;
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

/// The budget for answers that clients do not read.
#[derive(Debug)]
pub struct UnreadBudget {
    /// Bytes that the listed answers may hold.
    held: AtomicUsize,
    /// Shares of the budget: one for each connection that holds answers, more for a peer's.
    shares: AtomicUsize,
    /// Bytes that wait for sockets, at the last tick.
    backlog: AtomicUsize,
    next: AtomicU64,
    listed: Mutex<WaitList>,
    metrics: UnreadMetrics,
}

#[derive(Debug, Default)]
struct WaitList {
    /// In the order in which they began to wait.
    answers: BTreeMap<u64, StallTimer<WaitingAnswer>>,
    /// Connections with a blocked socket.
    sockets: BTreeMap<u64, StallTimer<Outflow>>,
    /// A task ticks.
    watched: bool,
}

/// Measures how long something has made no progress.
#[derive(Debug)]
struct StallTimer<T> {
    subject: Arc<T>,
    moves: usize,
    /// Seconds without progress while something waits.
    quiet: u32,
    /// Seconds without waiting.
    idle: u32,
}

impl<T> StallTimer<T> {
    fn new(subject: Arc<T>) -> Self {
        Self {
            subject,
            moves: 0,
            quiet: 0,
            idle: 0,
        }
    }

    /// To be called once a second.
    fn tick(&mut self, waits: bool, moves: usize) {
        self.quiet = match waits && moves == self.moves {
            true => self.quiet + 1,
            false => 0,
        };
        self.idle = if waits { 0 } else { self.idle + 1 };
        self.moves = moves;
    }
}

/// An answer whose client did not read at once.
#[derive(Debug)]
struct WaitingAnswer {
    id: u64,
    outflow: Arc<Outflow>,
    weight: usize,
    long: bool,
    /// Waits now.
    waits: AtomicBool,
    /// How often its client has read.
    moves: AtomicUsize,
    /// One of the constants below. Changes only from [`LISTED`].
    state: AtomicU8,
    waker: Mutex<Option<Waker>>,
}

const LISTED: u8 = 0;
const GIVEN_UP: u8 = 1;
/// Its client has read everything for a while.
const FORGOTTEN: u8 = 2;

impl WaitingAnswer {
    fn new(outflow: &Arc<Outflow>, weight: usize, long: bool, waker: &Waker) -> Self {
        Self {
            id: 0,
            outflow: outflow.clone(),
            weight,
            long,
            waits: AtomicBool::new(true),
            moves: AtomicUsize::new(0),
            state: AtomicU8::new(LISTED),
            waker: Mutex::new(Some(waker.clone())),
        }
    }

    fn is(&self, state: u8) -> bool {
        self.state.load(Ordering::Relaxed) == state
    }
}

impl UnreadBudget {
    pub fn new(metrics: UnreadMetrics) -> Self {
        Self {
            held: AtomicUsize::new(0),
            shares: AtomicUsize::new(0),
            backlog: AtomicUsize::new(0),
            next: AtomicU64::new(0),
            listed: Mutex::default(),
            metrics,
        }
    }

    fn list(self: &Arc<Self>, mut waiting: WaitingAnswer) -> Arc<WaitingAnswer> {
        waiting.id = self.next.fetch_add(1, Ordering::Relaxed);
        let waiting = Arc::new(waiting);
        let (outflow, weight) = (&waiting.outflow, waiting.weight);
        let held = self.held.fetch_add(weight, Ordering::Relaxed) + weight;
        self.shares
            .fetch_add(outflow.hold(weight), Ordering::Relaxed);
        let mut listed = lock(&self.listed);
        listed
            .answers
            .insert(waiting.id, StallTimer::new(waiting.clone()));
        self.watch(&mut listed);
        if held + self.backlog.load(Ordering::Relaxed) > BUDGET {
            self.relieve(&listed);
        }
        waiting
    }

    /// Adds bytes that are kept of half events, if the budget allows it, for the client's connection and in all.
    fn keep(&self, outflow: &Outflow, bytes: usize) -> bool {
        let held = self.held.load(Ordering::Relaxed) + self.backlog.load(Ordering::Relaxed);
        let fits = held + bytes <= KEPT && outflow.may_hold(bytes);
        if fits {
            self.held.fetch_add(bytes, Ordering::Relaxed);
            self.shares
                .fetch_add(outflow.hold(bytes), Ordering::Relaxed);
        }
        fits
    }

    fn keep_no_more(&self, outflow: &Outflow, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        let shares = outflow.release(bytes);
        self.shares.fetch_sub(shares, Ordering::Relaxed);
    }

    /// Adds a connection with a blocked socket.
    pub fn list_socket(self: &Arc<Self>, outflow: &Arc<Outflow>) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let mut listed = lock(&self.listed);
        listed.sockets.insert(id, StallTimer::new(outflow.clone()));
        self.watch(&mut listed);
    }

    fn unlist(&self, waiting: &WaitingAnswer) {
        if !waiting.is(FORGOTTEN) {
            lock(&self.listed).answers.remove(&waiting.id);
            self.release(waiting, FORGOTTEN);
        }
    }

    /// Releases its part of the budget. Returns whether it was not released before.
    fn release(&self, waiting: &WaitingAnswer, state: u8) -> bool {
        let change =
            waiting
                .state
                .compare_exchange(LISTED, state, Ordering::Relaxed, Ordering::Relaxed);
        if change.is_ok() {
            self.held.fetch_sub(waiting.weight, Ordering::Relaxed);
            let shares = waiting.outflow.release(waiting.weight);
            self.shares.fetch_sub(shares, Ordering::Relaxed);
        }
        change.is_ok()
    }

    fn give_up(&self, waiting: &WaitingAnswer, reason: ResetReason) {
        let mut waker = lock(&waiting.waker);
        if self.release(waiting, GIVEN_UP) {
            self.metrics.given_up(reason);
            if let Some(waker) = waker.take() {
                waker.wake();
            }
        }
    }

    /// Releases an answer that does not wait. Returns whether it can be removed.
    fn forget(&self, waiting: &WaitingAnswer) -> bool {
        // Locked by an answer that begins to wait again.
        let _waker = lock(&waiting.waker);
        !waiting.waits.load(Ordering::Relaxed) && self.release(waiting, FORGOTTEN)
    }

    fn watch(self: &Arc<Self>, listed: &mut WaitList) {
        if !listed.watched {
            listed.watched = true;
            let unread = self.clone();
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(TICK).await;
                    if !unread.tick() {
                        return;
                    }
                }
            });
        }
    }

    /// Runs once a second; `false`: nothing is left to watch.
    fn tick(&self) -> bool {
        let mut listed = lock(&self.listed);
        listed.answers.retain(|_, timer| {
            let waiting = &timer.subject;
            let waits = waiting.waits.load(Ordering::Relaxed);
            let moves = waiting.moves.load(Ordering::Relaxed);
            timer.tick(waits, moves);
            if timer.quiet >= STALL_SECONDS && !timer.subject.long {
                self.give_up(&timer.subject, ResetReason::Timeout);
            }
            timer.idle < IDLE_SECONDS || !self.forget(&timer.subject)
        });
        let mut backlog = 0;
        listed.sockets.retain(|_, timer| {
            let blocked = timer.subject.is_blocked();
            timer.tick(blocked, timer.subject.moves());
            if timer.quiet >= STALL_SECONDS && !timer.subject.has_long_running() {
                self.cut_off(&timer.subject, ResetReason::Timeout);
            }
            backlog += if blocked { timer.subject.backlog() } else { 0 };
            blocked || !timer.subject.forget()
        });
        self.backlog.store(backlog, Ordering::Relaxed);
        let held = self.held.load(Ordering::Relaxed) + backlog;
        self.metrics.held(held);
        if held > BUDGET {
            self.relieve(&listed);
        }
        listed.watched = !(listed.answers.is_empty() && listed.sockets.is_empty());
        listed.watched
    }

    fn cut_off(&self, outflow: &Outflow, reason: ResetReason) {
        if outflow.cut_off() {
            self.metrics.given_up(reason);
        }
    }

    /// Gives up answers until the rest is well below the budget.
    fn relieve(&self, listed: &WaitList) {
        let backlog = self.backlog.load(Ordering::Relaxed);
        let shares = self.shares.load(Ordering::Relaxed).max(1);
        let share = RELIEF_TARGET.saturating_sub(backlog) / shares;
        let left = || self.held.load(Ordering::Relaxed) + backlog;
        let waiting = |timer: &&StallTimer<WaitingAnswer>| {
            timer.subject.is(LISTED) && timer.subject.waits.load(Ordering::Relaxed)
        };
        let mut waiting: Vec<_> = listed.answers.values().filter(waiting).collect();
        // Stable sort: with equal waits, the oldest answer first.
        waiting.sort_by_key(|timer| std::cmp::Reverse(timer.quiet));
        for timer in &waiting {
            if left() <= RELIEF_TARGET {
                return;
            }
            if timer.subject.outflow.is_above(share) {
                self.give_up(&timer.subject, ResetReason::Budget);
            }
        }
        // The other answers do not wait now, or wait for sockets.
        let mut freed = 0;
        let mut sockets: Vec<_> = listed.sockets.values().collect();
        sockets.sort_by_key(|timer| std::cmp::Reverse(timer.quiet));
        for timer in sockets.iter().filter(|timer| timer.quiet > 0) {
            if left() - freed <= BUDGET {
                return;
            }
            freed += timer.subject.backlog();
            self.cut_off(&timer.subject, ResetReason::Budget);
        }
        // No connection is above its share: the largest is given up first, so that a slow reader is last.
        // What they hold may change meanwhile: each is read once, or the order would contradict itself.
        waiting.sort_by_cached_key(|timer| std::cmp::Reverse(timer.subject.outflow.held()));
        for timer in &waiting {
            if left() - freed <= HARD_LIMIT {
                return;
            }
            self.give_up(&timer.subject, ResetReason::Budget);
        }
    }
}

/// Why an answer was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResetReason {
    /// Its client has read nothing for too long.
    Timeout,
    /// The budget is exceeded.
    Budget,
}

impl ResetReason {
    pub const ALL: [Self; 2] = [Self::Timeout, Self::Budget];

    pub fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Budget => "budget",
        }
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
    waiting: Option<Arc<WaitingAnswer>>,
    pub kept: KeptBytes<'a>,
}

/// What is kept of an event that a client has read in part. Counted until it is dropped.
pub struct KeptBytes<'a> {
    unread: &'a UnreadBudget,
    outflow: &'a Outflow,
    bytes: usize,
}

impl KeptBytes<'_> {
    /// Sets their number; `false`: they are too many, and nothing may be kept. Events of common size do not count.
    pub fn are(&mut self, bytes: usize) -> bool {
        let bytes = if bytes < COMMON_EVENT { 0 } else { bytes };
        if bytes > self.bytes {
            let more = bytes - self.bytes;
            if self.unread.keep(self.outflow, more) {
                self.bytes = bytes;
                return true;
            }
        }
        let fits = bytes <= self.bytes;
        let left = if fits { bytes } else { 0 };
        if left < self.bytes {
            let less = self.bytes - left;
            self.unread.keep_no_more(self.outflow, less);
            self.bytes = left;
        }
        fits
    }
}

impl Drop for KeptBytes<'_> {
    fn drop(&mut self) {
        self.are(0);
    }
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
            waiting: None,
            kept: KeptBytes {
                unread,
                outflow,
                bytes: 0,
            },
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

    /// Runs `writing`. An error: the answer was given up.
    pub async fn write<T>(
        &mut self,
        mut writing: Pin<&mut impl Future<Output = pingora_core::Result<T>>>,
    ) -> pingora_core::Result<T> {
        poll_fn(|context| match writing.as_mut().poll(context) {
            Poll::Ready(written) => {
                self.moved();
                Poll::Ready(written)
            }
            Poll::Pending => self
                .poll_given_up(context)
                .map(|()| Error::e_explain(ErrorType::WriteTimedout, "the client does not read")),
        })
        .await
    }

    fn moved(&self) {
        if let Some(waiting) = &self.waiting {
            waiting.waits.store(false, Ordering::Relaxed);
            let moves = waiting.moves.load(Ordering::Relaxed);
            waiting
                .moves
                .store(moves.wrapping_add(1), Ordering::Relaxed);
        }
    }

    fn poll_given_up(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(waiting) = &self.waiting {
            let mut waker = lock(&waiting.waker);
            waiting.waits.store(true, Ordering::Relaxed);
            if waiting.is(GIVEN_UP) {
                return Poll::Ready(());
            }
            if waiting.is(LISTED) {
                let this = context.waker();
                if !waker.as_ref().is_some_and(|waker| waker.will_wake(this)) {
                    *waker = Some(this.clone());
                }
                return Poll::Pending;
            }
        }
        let request = if self.long { LONG_RUNNING } else { REQUEST };
        let piece = self.bytes / self.pieces.max(1);
        let weight = request + unread_weight(self.unread_bytes, self.length, piece);
        let waiting = WaitingAnswer::new(self.outflow, weight, self.long, context.waker());
        self.waiting = Some(self.unread.list(waiting));
        Poll::Pending
    }
}

impl Drop for AnswerWriter<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = &self.waiting {
            self.unread.unlist(waiting);
        }
    }
}

/// Most memory that an answer's data may take: what may have arrived, in which a piece counts until it is passed on, and
/// what waits for the socket. HTTP/2 keeps each unread piece separately.
fn unread_weight(unread: usize, length: Option<usize>, piece: usize) -> usize {
    let pieces = unread / piece.clamp(1, unread) * EACH_PIECE;
    let most = unread + SEND_BUFFER;
    length.map_or(most + pieces, |length| length.min(most))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
