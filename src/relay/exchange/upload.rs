//! A request on its way to servers. Its header and the beginning of its body are kept until an answer comes, so that they
//! can be sent to another server.

use std::future::poll_fn;

use bytes::Bytes;
use h2::SendStream;
use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use http::{Request, Uri};
use pingora_core::{ErrorType, OkOrErr};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::net::poll_send;
use crate::relay::client::ClientSession;
use crate::relay::upstream::UpstreamSession;

/// Longest body that is kept to be sent again, in bytes. It is the window that kube-apiserver gives a new stream, 256 KiB,
/// and the piece that is read after that: of a request that it has not processed, because its GOAWAY came first, no more
/// can have been sent.
const REPLAY_LIMIT: usize = (256 + 64) << 10;
/// Most objects are smaller than this.
const SMALL_BODY: usize = 64 << 10;
/// Larger bodies that are kept at the same time. Others are not kept.
static LARGE_BODIES: Semaphore = Semaphore::const_new(512);

/// A request on its way to servers.
#[derive(Default)]
pub struct Upload {
    /// The request's header, until a server is sent it.
    header: Option<Box<Parts>>,
    /// From then on, while another server may get the request.
    sent_header: Option<SentHeader>,
    expected: bool,
    /// The client waits for `100 Continue` before it sends its body.
    continue_owed: bool,
    /// What was read so far, for another server; `None` if it is too long, or no longer needed.
    kept: Option<Replay>,
    /// The client's body was read to its end.
    read: bool,
    /// The server accepts no more of the body. Usually it has answered early, and its answer counts.
    refused: bool,
    /// Read and not sent yet, and whether it is the end.
    pending: Option<(Bytes, bool)>,
    /// The sending half of an HTTP/2 stream.
    writer: Option<SendStream<Bytes>>,
}

impl Upload {
    /// `expected`: there is a body; `expects_continue`: the client waits for `100 Continue`.
    pub fn new(header: Box<Parts>, expected: bool, expects_continue: bool) -> Self {
        Self {
            header: Some(header),
            expected,
            continue_owed: expected && expects_continue,
            kept: Some(Replay::default()),
            read: !expected,
            ..Self::default()
        }
    }

    /// `None`: a server was sent it.
    pub fn header_mut(&mut self) -> Option<&mut Parts> {
        self.header.as_deref_mut()
    }

    /// The header for a server, to which this one's own fields may be added.
    pub fn header_to_send(&mut self) -> pingora_core::Result<Box<Parts>> {
        if let Some(header) = self.header.take() {
            self.sent_header = Some(SentHeader::of(&header));
            return Ok(header);
        }
        let sent = self.sent_header.as_ref().map(SentHeader::again);
        sent.or_err(ErrorType::InternalError, "the answer has begun")
    }

    /// The next server is asked for this instead.
    pub fn ask_for(&mut self, target: Uri) {
        let sent = self.sent_header.as_mut().map(|sent| &mut sent.line);
        if let Some(header) = self.header.as_deref_mut().or(sent) {
            header.uri = target;
        }
    }

    /// Whether nothing more is to be read from the client.
    pub fn is_read(&self) -> bool {
        self.read
    }

    pub fn is_expected(&self) -> bool {
        self.expected
    }

    /// Whether to send `100 Continue` now. `true` once.
    pub fn is_continue_owed(&mut self) -> bool {
        std::mem::take(&mut self.continue_owed)
    }

    /// Starts the body after the header was written to `up`: first the pieces that an earlier server was sent.
    pub async fn begin(&mut self, up: &mut UpstreamSession) {
        if !self.expected {
            return;
        }
        self.writer = match up {
            UpstreamSession::H2(stream) => stream.writer.take(),
            UpstreamSession::H1(_) => None,
        };
        self.refused = false;
        self.pending = None;
        let kept = self.kept.as_ref().map(|kept| &*kept.body);
        let again = Bytes::copy_from_slice(kept.unwrap_or_default());
        if self.read || !again.is_empty() {
            self.send(again, self.read, up).await;
        }
    }

    /// Whether the whole body can be sent to another server.
    pub fn can_begin_again(&self) -> bool {
        self.kept.is_some()
    }

    /// Drops what was kept: no other server will be tried.
    pub fn forget(&mut self) {
        self.sent_header = None;
        self.kept = None;
    }

    /// Whether the body was sent completely: the server's connection can be used again after the answer.
    pub fn is_sent(&self) -> bool {
        self.read && !self.refused && self.pending.is_none()
    }

    /// Whether no body is read now, so that the client can only go away; and whether to wait for the client. Over HTTP/1 a
    /// client that goes away is not noticed behind a body that is not read, and the rest of an unwanted body must not be
    /// read as the next request.
    pub fn interest(&self, down: &ClientSession) -> (bool, bool) {
        let pending = self.pending.is_some();
        let idle = self.read || pending || self.refused;
        let followed = down.is_http2() || !idle || (self.read && !pending);
        (idle, followed)
    }

    /// Accepts a piece from the client; `end`: it is the last. An error: the client went away.
    pub async fn take(
        &mut self,
        piece: pingora_core::Result<Option<Bytes>>,
        end: bool,
        up: &mut UpstreamSession,
    ) -> pingora_core::Result<()> {
        let piece = piece?;
        let end = end || piece.is_none();
        self.read = end;
        let data = piece.unwrap_or_default();
        let fits = self.kept.as_mut().is_some_and(|kept| kept.keep(&data));
        if !fits {
            self.kept = None;
        }
        self.send(data, end, up).await;
        Ok(())
    }

    async fn send(&mut self, data: Bytes, end: bool, up: &mut UpstreamSession) {
        match self.writer {
            Some(_) => self.pending = Some((data, end)),
            None => self.refused = Box::pin(send(data, end, up)).await.is_err(),
        }
    }

    /// Sends as much of the pending data as the server's window allows; without any it waits for ever. Cancel safe.
    pub async fn progress(&mut self) {
        let (Some(writer), Some((data, end))) = (&mut self.writer, &mut self.pending) else {
            return std::future::pending().await;
        };
        let sent = poll_fn(|context| poll_send(writer, data, *end, context)).await;
        self.refused |= sent.is_err();
        // All was sent, or the server takes no more.
        if sent.unwrap_or(true) {
            self.pending = None;
        }
    }
}

/// Sends a piece over HTTP/1.1. An HTTP/2 stream has a writer as long as there is a body.
async fn send(data: Bytes, end: bool, up: &mut UpstreamSession) -> pingora_core::Result<()> {
    let UpstreamSession::H1(session) = up else {
        return Ok(());
    };
    // An empty piece would be the end of a chunked body.
    if !data.is_empty() {
        session.write_body(&data).await?;
    }
    if end {
        session.finish_body().await?;
    }
    Ok(())
}

/// A header that a server was sent. Its fields are a list: a copy of the map would take more time and several times the
/// memory, for a case that is rare.
struct SentHeader {
    /// Without fields.
    line: Parts,
    fields: Vec<(HeaderName, HeaderValue)>,
}

impl SentHeader {
    fn of(header: &Parts) -> Self {
        let mut line = Request::new(()).into_parts().0;
        line.method = header.method.clone();
        line.uri = header.uri.clone();
        line.version = header.version;
        let fields = header.headers.iter();
        let fields = fields.map(|(name, value)| (name.clone(), value.clone()));
        Self {
            line,
            fields: fields.collect(),
        }
    }

    /// The header once more.
    fn again(&self) -> Box<Parts> {
        let mut header = Box::new(self.line.clone());
        header.headers.extend(self.fields.iter().cloned());
        header
    }
}

/// What was read so far of a body: a copy, because pieces may be parts of much larger buffers.
#[derive(Debug, Default)]
struct Replay {
    body: Vec<u8>,
    /// One of the [`LARGE_BODIES`], if it is longer than [`SMALL_BODY`].
    large: Option<SemaphorePermit<'static>>,
}

impl Replay {
    /// Keeps a piece; `false`: the body is too long, or too many long ones are kept.
    fn keep(&mut self, piece: &[u8]) -> bool {
        let length = self.body.len() + piece.len();
        if length > SMALL_BODY && self.large.is_none() {
            let Ok(permit) = LARGE_BODIES.try_acquire() else {
                return false;
            };
            self.large = Some(permit);
            // Else its capacity would be doubled.
            self.body.reserve_exact(REPLAY_LIMIT - self.body.len());
        }
        let fits = length <= REPLAY_LIMIT;
        if fits {
            self.body.extend_from_slice(piece);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use http::Version;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_body_is_kept_up_to_limits() {
        let mut replay = Replay::default();
        assert!(replay.keep(b"") && replay.body.is_empty());
        assert!(replay.keep(&vec![0; REPLAY_LIMIT - 2]));
        assert!(replay.keep(b"a") && replay.keep(b"b"));
        assert_eq!(replay.body.len(), REPLAY_LIMIT);
        assert!(replay.body.ends_with(b"ab"));
        assert!(!replay.keep(b"c"));
        drop(replay);
        // In this test, because others would find none left.
        let all = LARGE_BODIES.try_acquire_many(512).unwrap();
        assert!(!Replay::default().keep(&[0; SMALL_BODY + 1]));
        assert!(Replay::default().keep(&[0; SMALL_BODY]));
        drop(all);
        assert!(Replay::default().keep(&[0; SMALL_BODY + 1]));
    }

    fn header(fields: &[(String, Vec<u8>)]) -> Parts {
        let mut request = Request::put("https://host:6443/api/v1/pods?x=1");
        for (name, value) in fields {
            request = request.header(name, &value[..]);
        }
        request.body(()).unwrap().into_parts().0
    }

    proptest! {
        #[test]
        fn a_header_is_the_same_afterwards(
            fields in prop::collection::vec(("[a-d]{1,2}|accept|authorization", "[ -~\u{80}-\u{ff}]{0,40}"), 0..20),
            sensitive in any::<bool>(),
        ) {
            let fields: Vec<_> = fields.into_iter().map(|(name, value)| (name, value.into_bytes())).collect();
            let mut header = header(&fields);
            header.version = Version::HTTP_2;
            for value in header.headers.values_mut() {
                value.set_sensitive(sensitive);
            }
            let again = SentHeader::of(&header).again();
            prop_assert_eq!(&again.headers, &header.headers);
            let list = |header: &Parts| -> Vec<_> {
                let fields = header.headers.iter();
                fields.map(|(name, value)| (name.clone(), value.clone(), value.is_sensitive())).collect()
            };
            prop_assert_eq!(list(&again), list(&header));
            prop_assert_eq!((again.method.clone(), again.uri.clone(), again.version), (header.method.clone(), header.uri.clone(), header.version));
        }
    }
}
