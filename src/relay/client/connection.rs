//! A client's connection: its identity, whether it is to end, its own upstream connections, and the data on its way to the
//! client.
//!
//! HTTP/2 accepts from each stream as much as its window and buffer allow, whether the socket is read or not. [`Outflow`]
//! counts the data that it has accepted and not written, and stops answers while the socket is full. Only the connection's
//! thread writes it, except `held` and `ended`; other threads read. Each answer has an [`AnswerWriter`], which waits on the
//! list of those that clients do not read ([`super::unread`]) only while it makes no progress.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use http::HeaderValue;
use pingora_core::{Error, ErrorType};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, SetOnce};

use super::unread::{UnreadBudget, Wait};
use crate::net::lock;
use crate::relay::upstream::{ConnectionPool, LONG_RUNNING_WINDOW, STREAM_WINDOW, UpstreamSession};
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
    /// Total size of large headers of its running requests ([`super::LargeHeaderPermit`]).
    pub large: AtomicUsize,
    pub outflow: Arc<Outflow>,
    /// Set when it is to end.
    ending: SetOnce<()>,
    /// Permits for callers that no apiserver has authenticated yet.
    verification_permit: Arc<Semaphore>,
    /// Each request that waits for a permit holds it.
    pub waiting: Arc<()>,
    /// `Authorization` of its last watch.
    authorization: Mutex<Option<HeaderValue>>,
    /// Never contended: one thread serves all requests of a connection.
    unverified_pools: Mutex<Vec<Arc<ConnectionPool>>>,
}

/// The right to send a request of an unverified caller. Returned when the answer has arrived, or on drop.
pub struct VerificationPermit(Mutex<Option<OwnedSemaphorePermit>>);

impl VerificationPermit {
    /// Returns the permit.
    pub fn end(&self) {
        drop(lock(&self.0).take());
    }
}

impl Downstream {
    pub fn new(client: ClientConnection) -> Self {
        Self {
            client,
            large: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
            outflow: Arc::default(),
            ending: SetOnce::new(),
            verification_permit: Arc::new(Semaphore::new(UNVERIFIED)),
            waiting: Arc::default(),
            authorization: Mutex::default(),
            unverified_pools: Mutex::default(),
        }
    }

    /// A copy of a watch's `Authorization`, which the connection's watches share.
    pub fn kept_authorization(&self, value: &HeaderValue) -> HeaderValue {
        let mut kept = lock(&self.authorization);
        match &*kept {
            Some(known) if known == value => known.clone(),
            _ => {
                // What came with a header would hold all of it.
                let copy = HeaderValue::from_bytes(value.as_bytes());
                kept.insert(copy.unwrap_or_else(|_| value.clone())).clone()
            }
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
        // It may be ending already.
        let _ = self.ending.set(());
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

    /// Waits for a permit, so that a connection costs apiservers little until its client is verified. `None` once the
    /// connection is to end.
    pub async fn verification_permit(&self) -> Option<VerificationPermit> {
        let permit = self
            .verification_permit
            .clone()
            .acquire_owned()
            .await
            .ok()?;
        Some(VerificationPermit(Mutex::new(Some(permit))))
    }

    /// Whether the connection is to end.
    pub fn is_ending(&self) -> bool {
        self.ending.initialized()
    }

    /// Resolves when the connection is to end.
    pub async fn ended(&self) {
        self.ending.wait().await;
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
        let pool = Arc::new(shared.unverified());
        own.push(pool.clone());
        pool
    }
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
    /// Each request without a limit to its time holds it.
    unlimited: Arc<()>,
    /// Bytes that its unread answers may hold.
    held: AtomicUsize,
    /// Room for more data, for further requests, or its end.
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

    pub fn wrote(&self, bytes: usize) {
        let left = self.backlog().saturating_sub(bytes);
        self.backlog.store(left, Ordering::Relaxed);
        self.drained.store(true, Ordering::Relaxed);
        self.blocked.store(false, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    /// The socket is full.
    pub fn is_full(&self) {
        self.drained.store(false, Ordering::Relaxed);
        self.blocked.store(true, Ordering::Relaxed);
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

    /// Resolves when `enough`, which one of these says: `has_room`, `may_ask`.
    pub async fn until(&self, enough: impl Fn() -> bool) {
        while !enough() {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if !enough() {
                changed.await;
            }
        }
    }

    /// The connection ends or has ended: no task needs to wait for it.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// The connection is a peer's, and carries requests of many users.
    pub fn mark_as_peer(&self) {
        self.peer.store(true, Ordering::Relaxed);
    }

    /// A request without a limit to its time, until the result is dropped.
    pub fn unlimited(&self) -> Arc<()> {
        self.unlimited.clone()
    }

    pub(super) fn has_unlimited(&self) -> bool {
        Arc::strong_count(&self.unlimited) > 1
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
        self.changed.notify_waiters();
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

/// Memory of a request and its streams on both sides.
const REQUEST: usize = 64 << 10;
/// Memory of a long-running request, which needs little besides its data.
pub(super) const LONG_RUNNING: usize = 8 << 10;
/// pingora's buffer of an HTTP/1.1 body, and a piece that was taken out of it.
const HTTP1_UNREAD: usize = 128 << 10;
/// Events up to this size do not count while a client has read a part of them.
pub(super) const COMMON_EVENT: usize = 4 << 10;
/// Overhead of an unread piece.
pub(super) const EACH_PIECE: usize = 160;
/// Bytes of an answer that may wait for the client's socket.
pub const SEND_BUFFER: usize = 16 << 10;

/// Writes one answer to a client that may be slow.
pub struct AnswerWriter<'a> {
    unread: &'a Arc<UnreadBudget>,
    outflow: &'a Arc<Outflow>,
    long: bool,
    /// There is no limit to the time that its client takes.
    pub unlimited: bool,
    /// Most bytes that may have arrived and not been passed on.
    unread_bytes: usize,
    /// Length of the answer, if known.
    length: Option<usize>,
    /// What was written so far.
    pieces: usize,
    bytes: usize,
    /// It is listed.
    pub(super) waits: Option<u64>,
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
            unlimited: long,
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

    /// Of an answer that comes from there: over HTTP/1.1 the server's connection has no window.
    pub fn of(mut self, up: &UpstreamSession) -> Self {
        if let UpstreamSession::H1(_) = up {
            self.unread_bytes = HTTP1_UNREAD;
        }
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
                outflow.until(|| outflow.has_room()).await;
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
        let fits = self.unread.keep(self.outflow, self.kept, bytes);
        self.kept = if fits { bytes } else { 0 };
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
        let weight = request + unread_weight(self.unread_bytes, self.length, piece);
        let wait = Wait::new(self.outflow, weight, self.unlimited, context.waker());
        self.waits = Some(self.unread.list(wait));
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
pub(super) fn unread_weight(unread: usize, length: Option<usize>, piece: usize) -> usize {
    let pieces = unread / piece.clamp(1, unread) * EACH_PIECE;
    let most = unread + SEND_BUFFER;
    length.map_or(most + pieces, |length| length.min(most))
}
