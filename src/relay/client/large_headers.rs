//! Large request headers: their size, and limits for all running requests.
//!
//! The size of a header is counted as in HTTP/2: the bytes of names and values, and 32 for each field. A large header
//! never uses a shared connection, because a server may close a connection with a header that is too large.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use http::request::Parts;
use pingora_core::protocols::http::ServerSession;
use tokio::sync::oneshot;

use super::connection::Downstream;

/// Size of a field besides its bytes.
pub const FIELD: usize = 32;
/// Size of `:method`, `:scheme`, `:authority` and `:path` without their values, except the scheme.
const PSEUDO: usize = ":method:schemehttps:authority:path".len() + 4 * FIELD;
/// Largest header, as in kube-apiserver over HTTP/2: Go's 1 MiB, and ten fields.
pub const LIMIT: usize = (1 << 20) + 10 * FIELD;
/// Largest header that is read over HTTP/2, so that a client with a slightly larger one gets an explanation. h2 answers
/// larger headers with an empty 431, and closes the connection for four times as much.
pub const READ: u32 = (1 << 20) + (64 << 10);
/// A larger header gets its own connection: it comes near to a server's limit.
const SHARED: usize = 256 << 10;
/// Smaller headers are not counted; the number of streams limits them.
const COUNTED: usize = 64 << 10;
/// Limit for all running requests of a connection.
pub const OF_A_CONNECTION: usize = 4 << 20;
/// Limit for all running requests.
const OF_ALL: usize = 128 << 20;
/// Most large headers that arrive at the same time.
const SLOTS: usize = 64;

/// Total size of large headers of running requests.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// The size of a header. The first line of HTTP/1 counts as the pseudo fields of HTTP/2; `http1` has all of it, also the
/// host of a whole URL.
pub fn weight(header: &Parts, http1: Option<&ServerSession>) -> usize {
    let fields = header.headers.iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + FIELD);
    let target = match http1 {
        Some(session) => session.req_header().raw_path().len(),
        None => header
            .uri
            .path_and_query()
            .map_or(0, |path| path.as_str().len()),
    };
    let authority = header.uri.authority().map_or(0, |host| host.as_str().len());
    let line = header.method.as_str().len() + target + authority;
    fields.sum::<usize>() + line + PSEUDO
}

/// A request's share of the limits for large headers, while it runs.
pub struct LargeHeaderPermit {
    weight: usize,
    /// The connection on which it is counted.
    counted: Option<Arc<Downstream>>,
}

impl LargeHeaderPermit {
    /// `None`: the limits are exceeded.
    pub fn take(downstream: &Arc<Downstream>, weight: usize) -> Option<Self> {
        let counted = (weight > COUNTED).then(|| downstream.clone());
        let permit = Self { weight, counted };
        let Some(downstream) = &permit.counted else {
            return Some(permit);
        };
        let of_all = ALL.fetch_add(weight, Ordering::Relaxed) + weight;
        let own = downstream.large.fetch_add(weight, Ordering::Relaxed) + weight;
        (of_all <= OF_ALL && own <= OF_A_CONNECTION).then_some(permit)
    }

    /// Whether the request must not share a connection.
    pub fn is_large(&self) -> bool {
        self.weight > SHARED
    }
}

impl Drop for LargeHeaderPermit {
    fn drop(&mut self) {
        if let Some(downstream) = &self.counted {
            ALL.fetch_sub(self.weight, Ordering::Relaxed);
            downstream.large.fetch_sub(self.weight, Ordering::Relaxed);
        }
    }
}

/// A slot for a large header that is still arriving. There are few: when all are taken, the oldest loses its slot. A
/// well-behaved client needs one only for a short time.
#[derive(Debug)]
pub struct IncomingHeaderSlot {
    number: u64,
    lost: oneshot::Receiver<()>,
}

struct OccupiedSlot {
    number: u64,
    /// The owner is notified when this is dropped.
    _keep: oneshot::Sender<()>,
}

static OCCUPIED: Mutex<VecDeque<OccupiedSlot>> = Mutex::new(VecDeque::new());
static NUMBER: AtomicU64 = AtomicU64::new(0);

impl IncomingHeaderSlot {
    pub fn take() -> Self {
        let (keep, lost) = oneshot::channel();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut occupied = occupied();
        while occupied.len() >= SLOTS {
            occupied.pop_front();
        }
        occupied.push_back(OccupiedSlot {
            number,
            _keep: keep,
        });
        Self { number, lost }
    }

    /// Ready when the slot was lost.
    pub fn poll_lost(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // Nothing is ever sent.
        Pin::new(&mut self.lost).poll(context).map(|_| ())
    }
}

impl Drop for IncomingHeaderSlot {
    fn drop(&mut self) {
        occupied().retain(|slot| slot.number != self.number);
    }
}

/// Locked for a short time, and only for large headers.
fn occupied() -> MutexGuard<'static, VecDeque<OccupiedSlot>> {
    OCCUPIED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn the_host_of_a_whole_url_counts() {
        let host = "a".repeat(100 << 10);
        let head = format!("GET http://{host}/api HTTP/1.0\r\n\r\n");
        let (mut client, server) = tokio::io::duplex(head.len());
        client.write_all(head.as_bytes()).await.unwrap();
        let mut session = ServerSession::new_http1(Box::new(server));
        assert!(session.read_request().await.unwrap());
        let header: &Parts = session.req_header().as_ref();
        assert!(weight(header, Some(&session)) > host.len());
    }
}
