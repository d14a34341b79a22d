//! Data on its way to one client: what was handed over for its socket, and whether the socket accepts it.
//!
//! HTTP/2 accepts from each stream as much as its window and buffer allow, whether the socket is read or not. This
//! counts the data that it has accepted and not written, and stops answers while the socket is full.
//!
//! Only the connection's thread writes, except `held` and `ended`; other threads read.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use tokio::sync::Notify;

/// Bytes that may wait for a full socket.
pub const BACKLOG: usize = 256 << 10;
/// Bytes of unread answers that one connection may hold. Above this its further requests wait.
const HELD: usize = 16 << 20;
/// A peer's connection counts as this many clients.
const PEER: usize = 16;

/// The state of one connection.
#[derive(Debug, Default)]
pub struct Outflow {
    /// Bytes that were handed over and not written while the socket was full.
    backlog: AtomicUsize,
    /// Everything handed over before was written.
    drained: AtomicBool,
    blocked: AtomicBool,
    /// Bytes that the socket accepted; wraps around.
    written: AtomicUsize,
    /// It is in the list of blocked sockets.
    listed: AtomicBool,
    /// It is to end, or has ended.
    ended: AtomicBool,
    peer: AtomicBool,
    long_running: AtomicUsize,
    /// Bytes that its unread answers may hold.
    held: AtomicUsize,
    /// A task waits for `changed`.
    awaited: AtomicBool,
    changed: Notify,
    /// The task that waits for the socket.
    writer: Mutex<Option<Waker>>,
}

impl Outflow {
    pub fn hand_over(&self, bytes: usize) {
        let before = match self.drained.load(Ordering::Relaxed) {
            true => 0,
            false => self.backlog.load(Ordering::Relaxed),
        };
        self.drained.store(false, Ordering::Relaxed);
        self.backlog.store(before + bytes, Ordering::Relaxed);
    }

    pub fn wrote(&self, bytes: usize) {
        let load = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let left = load(&self.backlog).saturating_sub(bytes);
        self.backlog.store(left, Ordering::Relaxed);
        let written = load(&self.written).wrapping_add(bytes);
        self.written.store(written, Ordering::Relaxed);
        self.drained.store(true, Ordering::Relaxed);
        self.blocked.store(false, Ordering::Relaxed);
        self.notify_changed();
    }

    /// The socket is full. Returns whether to add it to the list of blocked sockets.
    pub fn is_full(&self, writer: &Waker) -> bool {
        self.drained.store(false, Ordering::Relaxed);
        self.blocked.store(true, Ordering::Relaxed);
        *self.writer() = Some(writer.clone());
        !self.listed.swap(true, Ordering::Relaxed)
    }

    /// Resolves when more data may be handed over.
    pub async fn room(&self) {
        while !self.has_room() {
            self.change(|| self.has_room()).await;
        }
    }

    /// Whether its answers may hold so many bytes more.
    pub(super) fn may_hold(&self, bytes: usize) -> bool {
        self.held.load(Ordering::SeqCst) + bytes <= HELD * self.shares()
    }

    /// Whether another request may be sent to an apiserver.
    pub fn may_ask(&self) -> bool {
        !self.is_above(HELD) || self.has_ended()
    }

    /// Resolves when [`Self::may_ask`] is true.
    pub async fn turn_to_ask(&self) {
        while !self.may_ask() {
            self.change(|| self.may_ask()).await;
        }
    }

    /// Whether more data may be handed over.
    pub fn has_room(&self) -> bool {
        !self.is_blocked() || self.backlog() < BACKLOG || self.has_ended()
    }

    /// Resolves after a change, or when `enough` is true.
    async fn change(&self, enough: impl Fn() -> bool) {
        let mut changed = pin!(self.changed.notified());
        changed.as_mut().enable();
        self.awaited.store(true, Ordering::SeqCst);
        if !enough() {
            changed.await;
        }
    }

    fn notify_changed(&self) {
        // Read first, because usually no task waits.
        if self.awaited.load(Ordering::SeqCst) && self.awaited.swap(false, Ordering::SeqCst) {
            self.changed.notify_waiters();
        }
    }

    /// The connection has ended: no task needs to wait for it.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.blocked.store(false, Ordering::Relaxed);
        self.notify_changed();
    }

    /// Ends the connection. Returns whether it had not ended before.
    pub(super) fn cut_off(&self) -> bool {
        let first = !self.ended.swap(true, Ordering::Relaxed);
        if let Some(writer) = self.writer().take() {
            writer.wake();
        }
        first
    }

    /// Whether the connection was cut off or has ended.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// The connection is a peer's, and carries requests of many users.
    pub fn mark_as_peer(&self) {
        if !self.peer.load(Ordering::Relaxed) {
            self.peer.store(true, Ordering::Relaxed);
        }
    }

    /// Counts a long-running request until the result is dropped.
    pub fn long_running(&self) -> LongRunning<'_> {
        self.long_running.fetch_add(1, Ordering::Relaxed);
        LongRunning(self)
    }

    pub(super) fn has_long_running(&self) -> bool {
        self.long_running.load(Ordering::Relaxed) > 0
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed)
    }

    pub(super) fn backlog(&self) -> usize {
        self.backlog.load(Ordering::Relaxed)
    }

    /// Changes when the socket accepts data.
    pub(super) fn moves(&self) -> usize {
        self.written.load(Ordering::Relaxed)
    }

    /// Removes the connection from the list of blocked sockets; `false`: it has to stay.
    pub(super) fn forget(&self) -> bool {
        self.listed.store(false, Ordering::Relaxed);
        !self.is_blocked() || self.listed.swap(true, Ordering::Relaxed)
    }

    /// Adds bytes of answers. Returns the connection's number of shares if it held nothing before.
    pub(super) fn hold(&self, bytes: usize) -> usize {
        match self.held.fetch_add(bytes, Ordering::SeqCst) {
            0 => self.shares(),
            _ => 0,
        }
    }

    /// Removes bytes of answers. Returns the connection's number of shares if it holds nothing any more.
    pub(super) fn release(&self, bytes: usize) -> usize {
        let last = self.held.fetch_sub(bytes, Ordering::SeqCst) == bytes;
        self.notify_changed();
        if last { self.shares() } else { 0 }
    }

    fn shares(&self) -> usize {
        match self.peer.load(Ordering::Relaxed) {
            true => PEER,
            false => 1,
        }
    }

    /// Whether its answers hold more than allowed. `share`: for one client.
    pub(super) fn is_above(&self, share: usize) -> bool {
        self.held.load(Ordering::SeqCst) > share * self.shares()
    }

    /// Bytes that its answers hold, divided by its shares.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst) / self.shares()
    }

    fn writer(&self) -> MutexGuard<'_, Option<Waker>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a long-running request.
pub struct LongRunning<'a>(&'a Outflow);

impl Drop for LongRunning<'_> {
    fn drop(&mut self) {
        self.0.long_running.fetch_sub(1, Ordering::Relaxed);
    }
}
