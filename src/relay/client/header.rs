//! The header of a request: its form, which Go's HTTP server accepts and all parsers read the same way, and its size, with
//! limits for all running requests.
//!
//! The size is counted as in HTTP/2: the bytes of names and values, and 32 for each field. A large header never uses a
//! shared connection, because a server may close a connection with a header that is too large.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use http::header::{CONTENT_LENGTH, EXPECT, HOST, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, Version};
use pingora_core::protocols::http::ServerSession;
use tokio::sync::oneshot;

use super::connection::Downstream;

/// Whether the first line of an HTTP/1 request has a path or an absolute URL, as Go's HTTP server requires. pingora
/// takes anything else for `/`, and cuts off everything after a `#`, which Go treats as part of the path.
pub fn names_a_path(http1: Option<&ServerSession>) -> bool {
    let Some(session) = http1 else {
        return true;
    };
    let raw = session.to_h1_raw();
    let mut lines = raw.trim_ascii_start().split(|byte| *byte == b'\n');
    let line = lines.next().unwrap_or_default();
    let header = session.req_header();
    header.raw_path_is_utf8() && !line.contains(&b'#') && is_path_or_url(header.raw_path())
}

fn is_path_or_url(target: &[u8]) -> bool {
    target.starts_with(b"/")
        || [&b"http://"[..], b"https://"].iter().any(|scheme| {
            target
                .get(..scheme.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        })
}

/// Whether the request has a host that is valid in HTTP/2, which apiservers are reached over, or no host where that is
/// allowed.
pub fn is_hosted(header: &Parts) -> bool {
    header.uri.authority().is_some()
        || match header.headers.get(HOST).map(HeaderValue::as_bytes) {
            Some(host) => host.is_empty() || Authority::try_from(host).is_ok(),
            None => header.version < Version::HTTP_11,
        }
}

/// Whether all parsers find the same end of the request's body. pingora drops a Content-Length next to a
/// Transfer-Encoding, and accepts any codings that end with `chunked`. Another parser may find another end, and
/// kube-apiserver accepts only `chunked`.
pub fn has_one_length(http1: Option<&ServerSession>, headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else {
        return true;
    };
    let chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked") && codings.next().is_none();
    let raw = http1.map(ServerSession::to_h1_raw);
    chunked && !raw.as_deref().is_some_and(names_a_length)
}

/// Whether a raw header has a Content-Length.
fn names_a_length(raw: &[u8]) -> bool {
    let name = CONTENT_LENGTH.as_str().as_bytes();
    raw.split(|byte| *byte == b'\n').any(|line| {
        let (start, rest) = line.split_at_checked(name.len()).unwrap_or_default();
        start.eq_ignore_ascii_case(name) && rest.starts_with(b":")
    })
}

/// What a client expects before it sends its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expectation {
    Nothing,
    /// The client waits for `100 Continue`.
    Continue,
    /// Something that no server can meet.
    Unknown,
}

impl Expectation {
    /// As Go's HTTP server reads it. Over HTTP/2 it ignores what it does not know.
    pub fn of(header: &Parts) -> Self {
        let is_boundary = |byte: &u8| matches!(byte, b' ' | b',' | b'\t');
        let continues = |value: &HeaderValue| {
            let mut words = value.as_bytes().split(is_boundary);
            words.any(|word| word.eq_ignore_ascii_case(b"100-continue"))
        };
        let mut values = header.headers.get_all(EXPECT).iter();
        if header.version >= Version::HTTP_2 {
            return match values.any(continues) {
                true => Self::Continue,
                false => Self::Nothing,
            };
        }
        match values.next() {
            Some(value) if continues(value) && header.version == Version::HTTP_11 => Self::Continue,
            Some(value) if continues(value) || value.is_empty() => Self::Nothing,
            Some(_) => Self::Unknown,
            None => Self::Nothing,
        }
    }
}

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
pub struct IncomingHeaderSlot(oneshot::Receiver<()>);

/// The owner of a slot is notified when its sender is dropped. Nothing is ever sent.
static OCCUPIED: Mutex<VecDeque<oneshot::Sender<()>>> = Mutex::new(VecDeque::new());

impl IncomingHeaderSlot {
    pub fn take() -> Self {
        let (keep, lost) = oneshot::channel();
        let mut occupied = occupied();
        while occupied.len() >= SLOTS {
            occupied.pop_front();
        }
        occupied.push_back(keep);
        Self(lost)
    }

    /// Ready when the slot was lost.
    pub fn poll_lost(&mut self, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(context).map(|_| ())
    }
}

impl Drop for IncomingHeaderSlot {
    fn drop(&mut self) {
        self.0.close();
        occupied().retain(|keep| !keep.is_closed());
    }
}

/// Locked for a short time, and only for large headers.
fn occupied() -> MutexGuard<'static, VecDeque<oneshot::Sender<()>>> {
    OCCUPIED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    #[test]
    fn expectations_are_read_as_go_reads_them() {
        use Expectation::{Continue, Nothing, Unknown};
        let of = |version, values: &[&str]| {
            let mut request = http::Request::builder().version(version);
            for value in values {
                request = request.header(EXPECT, *value);
            }
            Expectation::of(&request.body(()).unwrap().into_parts().0)
        };
        for (values, http1, http2) in [
            (&[][..], Nothing, Nothing),
            (&[""], Nothing, Nothing),
            (&["100-continue"], Continue, Continue),
            (&["x, 100-Continue"], Continue, Continue),
            (&["100-continued"], Unknown, Nothing),
            (&["nonsense"], Unknown, Nothing),
            (&["nonsense", "100-continue"], Unknown, Continue),
            (&["100-continue", "nonsense"], Continue, Continue),
        ] {
            assert_eq!(of(Version::HTTP_11, values), http1, "{values:?}");
            assert_eq!(of(Version::HTTP_2, values), http2, "{values:?}");
        }
        assert_eq!(of(Version::HTTP_10, &["100-continue"]), Nothing);
        assert_eq!(of(Version::HTTP_10, &["nonsense"]), Unknown);
    }

    #[test]
    fn paths_and_urls_are_targets() {
        for target in ["/", "/a b", "//a", "/?x", "http://h", "HTTPS://h/a"] {
            assert!(is_path_or_url(target.as_bytes()), "{target}");
        }
        for target in ["", "a", "*", "h:443", "ftp://h/a", "http:/a", "x:y://h/a"] {
            assert!(!is_path_or_url(target.as_bytes()), "{target}");
        }
    }

    #[test]
    fn a_length_is_found_whatever_its_case_and_line_ends() {
        for raw in [
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n",
            "POST / HTTP/1.1\ncontent-LENGTH:5\n\n",
        ] {
            assert!(names_a_length(raw.as_bytes()), "{raw:?}");
        }
        for raw in [
            "POST / HTTP/1.1\r\nX-Content-Length: 5\r\n\r\n",
            "POST /?content-length: HTTP/1.1\r\nContent-Lengths: 5\r\n\r\n",
            "",
        ] {
            assert!(!names_a_length(raw.as_bytes()), "{raw:?}");
        }
    }

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
