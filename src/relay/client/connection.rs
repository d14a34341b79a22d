//! A client's connection: its identity, whether it is to end, and its own upstream connections.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, Semaphore};

use super::unread::outflow::Outflow;
use crate::relay::upstream::{UnverifiedPools, Upstreams};
use crate::request::caller::ClientConnection;

/// Callers on one connection whose identity is verified at the same time. More than one, because a first request may
/// take long and would delay the others.
const UNVERIFIED: usize = 4;

/// Permits that are added once an apiserver has accepted a token of the connection.
const VERIFIED: usize = 1024;

/// The state of a client's connection. The TLS handshake creates it.
pub struct Downstream {
    pub client: ClientConnection,
    /// Requests that were begun, and are not counted yet for the budget of HTTP/2 frames.
    pub accepted: Arc<AtomicUsize>,
    /// Total size of large headers of its running requests ([`super::large_headers`]).
    pub large: AtomicUsize,
    pub outflow: Arc<Outflow>,
    ending: AtomicBool,
    end_notify: Notify,
    /// Permits for callers that no apiserver has authenticated yet.
    verification_permit: Semaphore,
    /// How many requests wait for a permit.
    waiting: AtomicU32,
    unverified_pools: Mutex<Option<UnverifiedPools>>,
}

/// The right to send a request of an unverified caller. Returned when the answer has arrived, or on drop.
pub struct VerificationPermit<'a> {
    of: &'a Downstream,
    end: AtomicBool,
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

impl VerificationPermit<'_> {
    /// Returns the permit.
    pub fn end(&self) {
        if !self.end.swap(true, Ordering::Relaxed) {
            self.of.verification_permit.add_permits(1);
        }
    }
}

impl Drop for VerificationPermit<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

impl Downstream {
    pub fn new(client: ClientConnection) -> Self {
        Self {
            client,
            large: AtomicUsize::new(0),
            accepted: Arc::default(),
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
        if !self.verification_permit.is_closed() {
            self.verification_permit.close();
        }
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
        *self.lock() = None;
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
            of: self,
            end: AtomicBool::new(false),
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

    /// The connection's unverified upstream connections, with the credentials of `upstreams`. They end with it.
    pub fn unverified_pools(&self, upstreams: &Upstreams) -> UnverifiedPools {
        let mut unverified_pools = self.lock();
        match &*unverified_pools {
            Some(own) if upstreams.are_of(&own.credentials) => own.clone(),
            _ => unverified_pools
                .insert(upstreams.unverified_pools())
                .clone(),
        }
    }

    /// Never contended: one thread serves all requests of a connection.
    fn lock(&self) -> MutexGuard<'_, Option<UnverifiedPools>> {
        self.unverified_pools
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
