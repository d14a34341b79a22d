//! A client's connection: its identity, whether it is to end, its own upstream connections, and the data on its way to the
//! client.
//!
//! HTTP/2 accepts from each stream as much as its window and buffer allow, whether the socket is read or not. [`Outflow`]
//! counts the data that it has accepted and not written, and stops answers while the socket is full. Only the connection's
//! thread writes it, except `held` and `ended`; other threads read.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, Semaphore};

use super::unread::UnreadBudget;
use crate::relay::upstream::{ConnectionPool, unverified};
use crate::request::caller::ClientConnection;

/// Callers on one connection whose identity is verified at the same time. More than one, because a first request may
/// take long and would delay the others.
const UNVERIFIED: usize = 4;

/// Permits that are added once an apiserver has accepted a token of the connection.
const VERIFIED: usize = 1024;

/// The local apiserver, and others.
const KINDS_OF_SERVERS: usize = 2;

/// The state of a client's connection. The TLS handshake creates it.
pub struct Downstream {
    pub client: ClientConnection,
    /// Requests that were begun, and are not counted yet for the budget of HTTP/2 frames.
    pub accepted: AtomicUsize,
    /// Total size of large headers of its running requests ([`super::header`]).
    pub large: AtomicUsize,
    pub outflow: Arc<Outflow>,
    ending: AtomicBool,
    end_notify: Notify,
    /// Permits for callers that no apiserver has authenticated yet.
    verification_permit: Semaphore,
    /// How many requests wait for a permit.
    waiting: AtomicU32,
    unverified_pools: Mutex<Vec<Arc<ConnectionPool>>>,
}

/// The right to send a request of an unverified caller. Returned when the answer has arrived, or on drop.
pub struct VerificationPermit<'a> {
    of: &'a Semaphore,
    is_returned: AtomicBool,
}

impl VerificationPermit<'_> {
    /// Returns the permit.
    pub fn end(&self) {
        if !self.is_returned.swap(true, Ordering::Relaxed) {
            self.of.add_permits(1);
        }
    }
}

impl Drop for VerificationPermit<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Counts a request that waits for a [`VerificationPermit`].
pub struct VerificationWait<'a> {
    of: &'a Downstream,
    /// How many requests waited before this one.
    pub before: u32,
}

impl Drop for VerificationWait<'_> {
    fn drop(&mut self) {
        self.of.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Downstream {
    pub fn new(client: ClientConnection) -> Self {
        Self {
            client,
            large: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
            outflow: Arc::default(),
            ending: AtomicBool::new(false),
            end_notify: Notify::new(),
            verification_permit: Semaphore::new(UNVERIFIED),
            waiting: AtomicU32::new(0),
            unverified_pools: Mutex::default(),
        }
    }

    /// Sends GOAWAY on an HTTP/2 connection. Running requests finish; those that wait for a permit were not processed,
    /// and their streams are refused.
    pub fn end_http2(&self) {
        self.verification_permit.close();
        self.go_away();
    }

    /// Sends GOAWAY on an HTTP/2 connection. Its requests finish, those that wait for a permit, too.
    pub fn go_away(&self) {
        if !self.ending.swap(true, Ordering::Relaxed) {
            self.end_notify.notify_one();
        }
    }

    /// An apiserver has accepted a token of this client: its requests no longer wait for permits.
    pub fn verified(&self) {
        self.drop_unverified_pools();
        self.verification_permit.add_permits(VERIFIED);
    }

    /// Drops the unverified upstream connections. They end with the requests that run on them.
    pub fn drop_unverified_pools(&self) {
        lock(&self.unverified_pools).clear();
    }

    /// Counts a request that waits for a permit.
    pub fn wait_for_permit(&self) -> VerificationWait<'_> {
        VerificationWait {
            of: self,
            before: self.waiting.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Waits for a permit, so that a connection costs apiservers little until its client is verified. `None` once the
    /// connection is to end.
    pub async fn verification_permit(&self) -> Option<VerificationPermit<'_>> {
        let permit = self.verification_permit.acquire().await.ok()?;
        permit.forget();
        Some(VerificationPermit {
            of: &self.verification_permit,
            is_returned: AtomicBool::new(false),
        })
    }

    /// Whether the connection is to end.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Resolves when the connection is to end. For one waiter only.
    pub async fn ended(&self) {
        while !self.is_ending() {
            self.end_notify.notified().await;
        }
    }

    /// The connection's own upstream connections to the servers of `shared`, while its caller is not verified. They end
    /// with it.
    pub fn unverified_pool(&self, shared: &ConnectionPool) -> Arc<ConnectionPool> {
        let mut own = lock(&self.unverified_pools);
        let is_same = |pool: &&Arc<ConnectionPool>| Arc::ptr_eq(&pool.to.trust, &shared.to.trust);
        if let Some(pool) = own.iter().find(is_same) {
            return pool.clone();
        }
        // Those of former credentials end with the requests that run on them.
        if own.len() >= KINDS_OF_SERVERS {
            own.clear();
        }
        let pool = Arc::new(unverified(shared));
        own.push(pool.clone());
        pool
    }
}

/// Never contended: one thread serves all requests of a connection.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that may wait for a full socket.
pub(super) const BACKLOG: usize = 256 << 10;
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
    /// It is to end, or has ended.
    ended: AtomicBool,
    peer: AtomicBool,
    long_running: AtomicUsize,
    /// Bytes that its unread answers may hold.
    held: AtomicUsize,
    /// A task waits for `changed`.
    awaited: AtomicBool,
    changed: Notify,
}

impl Outflow {
    pub(super) fn hand_over(&self, bytes: usize) {
        let before = match self.drained.swap(false, Ordering::Relaxed) {
            true => 0,
            false => self.backlog(),
        };
        self.backlog.store(before + bytes, Ordering::Relaxed);
    }

    pub(super) fn wrote(&self, bytes: usize) {
        let left = self.backlog().saturating_sub(bytes);
        self.backlog.store(left, Ordering::Relaxed);
        self.drained.store(true, Ordering::Relaxed);
        self.blocked.store(false, Ordering::Relaxed);
        self.notify_changed();
    }

    /// The socket is full.
    pub(super) fn is_full(&self) {
        self.drained.store(false, Ordering::Relaxed);
        self.blocked.store(true, Ordering::Relaxed);
    }

    /// Resolves when more data may be handed over.
    pub(super) async fn room(&self) {
        self.until(|| self.has_room()).await;
    }

    /// Whether more data may be handed over.
    pub(super) fn has_room(&self) -> bool {
        let blocked = self.blocked.load(Ordering::Relaxed);
        !blocked || self.backlog() < BACKLOG || self.has_ended()
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
        self.until(|| self.may_ask()).await;
    }

    async fn until(&self, enough: impl Fn() -> bool) {
        while !enough() {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            self.awaited.store(true, Ordering::SeqCst);
            if !enough() {
                changed.await;
            }
        }
    }

    fn notify_changed(&self) {
        // Read first, because usually no task waits.
        if self.awaited.load(Ordering::SeqCst) && self.awaited.swap(false, Ordering::SeqCst) {
            self.changed.notify_waiters();
        }
    }

    /// The connection ends or has ended: no task needs to wait for it.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.notify_changed();
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// The connection is a peer's, and carries requests of many users.
    pub fn mark_as_peer(&self) {
        self.peer.store(true, Ordering::Relaxed);
    }

    /// Counts a long-running request until the result is dropped.
    pub fn long_running(&self) -> LongRunning<'_> {
        self.long_running.fetch_add(1, Ordering::Relaxed);
        LongRunning(self)
    }

    pub(super) fn has_long_running(&self) -> bool {
        self.long_running.load(Ordering::Relaxed) > 0
    }

    pub(super) fn backlog(&self) -> usize {
        self.backlog.load(Ordering::Relaxed)
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
}

/// Counts a long-running request.
pub struct LongRunning<'a>(&'a Outflow);

impl Drop for LongRunning<'_> {
    fn drop(&mut self) {
        self.0.long_running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client's connection that reports what its socket accepts, and that others can cut off.
#[derive(Debug)]
pub struct CountedStream<S> {
    stream: S,
    outflow: Arc<Outflow>,
    unread: Arc<UnreadBudget>,
    /// It is in the list of blocked sockets.
    listed: Option<u64>,
}

impl<S> CountedStream<S> {
    pub fn new(stream: S, outflow: Arc<Outflow>, unread: Arc<UnreadBudget>) -> Self {
        Self {
            stream,
            outflow,
            unread,
            listed: None,
        }
    }

    /// Runs a write or flush of the stream, unless it was cut off; `bytes`: how many it has written.
    fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
        bytes: impl FnOnce(&T) -> usize,
    ) -> Poll<io::Result<T>>
    where
        S: Unpin,
    {
        if self.outflow.has_ended() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let polled = write(Pin::new(&mut self.stream), context);
        match (&polled, self.listed) {
            (Poll::Ready(written), _) => {
                self.unlist();
                self.outflow.wrote(written.as_ref().map_or(0, bytes));
            }
            // Otherwise it was given up meanwhile, and nobody would wake the task.
            (Poll::Pending, Some(id)) if self.unread.goes_on(id, context.waker()) => {}
            (Poll::Pending, Some(_)) => return Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            (Poll::Pending, None) => {
                self.outflow.is_full();
                let id = self.unread.list_socket(&self.outflow, context.waker());
                self.listed = Some(id);
            }
        }
        polled
    }

    fn unlist(&mut self) {
        if let Some(id) = self.listed.take() {
            self.unread.unlist(id);
        }
    }
}

impl<S> Drop for CountedStream<S> {
    fn drop(&mut self) {
        self.unlist();
        self.outflow.end();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(
            context,
            |stream, context| stream.poll_write(context, bytes),
            |count| *count,
        )
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = |stream: Pin<&mut S>, context: &mut Context<'_>| {
            stream.poll_write_vectored(context, slices)
        };
        self.poll(context, write, |count| *count)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(
            context,
            |stream, context| stream.poll_flush(context),
            |()| 0,
        )
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(
            context,
            |stream, context| stream.poll_shutdown(context),
            |()| 0,
        )
    }
}
