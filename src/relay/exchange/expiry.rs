//! What becomes of a 410 to a watch, and of the answer of another server that is asked because of it (KEP-1904).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderValue};
use pingora_http::ResponseHeader;
use tokio::sync::OwnedSemaphorePermit;

use crate::net::rare;
use crate::relay::inspect::expired;
use crate::relay::outcome::Expired;
use crate::watches::metrics::{ExpiredResult, WatchMetrics};

/// Time until another server's answer begins.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// What becomes of a 410.
#[derive(Clone, Copy)]
pub enum Expiry<'a> {
    /// It is passed on.
    Pass,
    /// Other servers are asked.
    Ask,
    /// This server is asked because another one has answered 410.
    Asked(&'a ResumedWatch),
}

/// A watch that is to go on at another server: what its client has by now, and what the server says.
pub struct ResumedWatch {
    /// The `Content-Type` of the header that the client has; empty before it has one.
    begun: OnceLock<Option<HeaderValue>>,
    /// The current server's answer can go on.
    accepted: AtomicBool,
    counted: AtomicBool,
    /// Held while a server is asked.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl ResumedWatch {
    /// After the 410 `kept`.
    pub fn new(kept: &Expired, permit: Option<OwnedSemaphorePermit>) -> Self {
        let begun = OnceLock::new();
        if let Expired::Event(event) = kept {
            begun.get_or_init(|| event.content_type.clone());
        }
        Self {
            begun,
            accepted: AtomicBool::new(false),
            counted: AtomicBool::new(false),
            permit: Mutex::new(permit),
        }
    }

    /// The `Content-Type` of the header that the client has; `None` before it has one.
    pub fn begun(&self) -> Option<&Option<HeaderValue>> {
        self.begun.get()
    }

    /// Whether the current server's answer can go on.
    pub fn is_accepted(&self) -> bool {
        self.accepted.load(Ordering::Relaxed)
    }

    /// The current server does not serve it either.
    pub fn failed(&self) {
        self.accepted.store(false, Ordering::Relaxed);
    }

    /// No server is asked any more. From now on the client decides how long it takes.
    pub fn end_asking(&self) {
        let permit = self.permit.lock();
        drop(permit.unwrap_or_else(PoisonError::into_inner).take());
    }

    /// Counts the watch once.
    pub fn count(&self, metrics: &WatchMetrics, result: ExpiredResult) {
        if !self.counted.swap(true, Ordering::Relaxed) {
            metrics.expired(result);
        }
    }
}

impl Expiry<'_> {
    /// Whether the client has a header of another server.
    pub(super) fn is_begun(self) -> bool {
        matches!(self, Expiry::Asked(watch) if watch.begun().is_some())
    }

    /// The client gets a header with this `Content-Type`.
    pub(super) fn begins(self, response: &ResponseHeader) {
        if let Expiry::Asked(watch) = self {
            let content_type = || response.headers.get(CONTENT_TYPE).cloned();
            watch.begun.get_or_init(content_type);
        }
    }

    /// Resolves when a server has had its time to answer.
    pub(super) async fn answer_timeout(self) {
        match self {
            Expiry::Asked(_) => rare(|| tokio::time::sleep(ANSWER_TIMEOUT)).await,
            Expiry::Pass | Expiry::Ask => std::future::pending().await,
        }
    }

    /// Whether an answer can be passed.
    pub(super) fn accepts(self, response: &ResponseHeader) -> bool {
        match self {
            Expiry::Pass | Expiry::Ask => true,
            Expiry::Asked(watch) => {
                let accepted = expired::goes_on(watch.begun(), response);
                watch.accepted.store(accepted, Ordering::Relaxed);
                if accepted {
                    // The watch may stay open for hours.
                    watch.end_asking();
                }
                accepted
            }
        }
    }
}
