//! The HTTP application of the TLS port: one of these for each serving thread.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use http::header::{EXPECT, HeaderValue};
use http::{Method, Version};
use pingora_core::ErrorType;
use pingora_core::apps::{
    HttpPersistentSettings, HttpServerApp, HttpServerOptions, ReusedHttpStream,
};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::{H2Options, default_h2_options};
use pingora_core::server::ShutdownWatch;
use pingora_http::RequestHeader;

use super::answer::{self, Manner, Refusal};
use super::attempts::{End, Request};
use super::between::{IDLE_TIMEOUT, idle, linger};
use super::framing::{Discreet, has_one_length, is_hosted, names_a_path};
use super::plan::{Asked, Plan, Step, plan};
use super::shared::Shared;
use super::upload::Upload;
use super::upstream::{Kind, Upstreams};
use crate::request::headers::{IF_READY, PEER_PROXIED, REROUTED, means_upgrade, version_asked};
use crate::request::info;
use crate::request::token;
use crate::request::who::{Caller, Connection};
use crate::watches::resume::Resume;

/// As kube-apiserver: for a header to come to its end.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// More than kube-apiserver's 100 to 250: behind the proxy of a peer all of its users share few connections, and a
/// watch that has to wait for a stream looks like one that hangs.
const MAX_STREAMS: u32 = 1000;
/// Bytes of a request's body that may wait here, as in kube-apiserver; and of all bodies of one connection, so that
/// uploads that hang, less than 64 of them, hold up nobody else on it.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 64 * STREAM_WINDOW;
/// All fields of a request's header, counted as HTTP/2 does. The same whatever the client speaks: what is sent on shares
/// a connection to a peer with what others sent, and HTTP/2 closes it over a header that is far too large.
const HEADER_LIST: u32 = 64 << 10;
/// Streams that were reset before anybody looked at them; HTTP/2 closes a connection with more of them. Those of all
/// users of a peer's proxy come on few connections.
const RESET_STREAMS: usize = 256;
/// Bytes of an answer that may wait for the client's socket.
const SEND_BUFFER: usize = 128 << 10;

/// Serves requests with connections of one thread.
pub struct Front {
    shared: Arc<Shared>,
    upstreams: ArcSwap<Upstreams>,
    resume: Resume,
    options: HttpServerOptions,
}

impl Front {
    /// With upstream connections of its own.
    pub fn new(shared: Arc<Shared>) -> Self {
        let credentials = shared.credentials.load_full();
        let upstreams = ArcSwap::from_pointee(Upstreams::new(&shared.config, credentials));
        let resume = Resume::new(&shared.config);
        let mut options = HttpServerOptions::default();
        options.h2_idle_timeout = Some(IDLE_TIMEOUT);
        Self {
            shared,
            upstreams,
            resume,
            options,
        }
    }

    /// Reads the next request of a connection; `None` when there is none.
    async fn read(&self, session: &mut ServerSession, shutdown: &ShutdownWatch) -> Option<()> {
        if session.is_http2() {
            return Some(());
        }
        let mut shutdown = shutdown.clone();
        session.set_read_timeout(Some(HEADER_TIMEOUT));
        tokio::select! {
            biased;
            read = tokio::time::timeout(HEADER_TIMEOUT, session.read_request()) => match read {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) | Err(_) => return None,
                Ok(Err(error)) => {
                    tracing::debug!(error = %Discreet(&error), "unreadable request");
                    if *error.etype() == ErrorType::InvalidHTTPHeader {
                        self.shared.refused(Refusal::Unreadable, None, None);
                        // The connection is closed afterwards, whether this can be written or not.
                        let _ = answer::refuse_unreadable(session).await;
                    }
                    return None;
                }
            },
            _ = shutdown.changed() => return None,
        }
        // A body may pause for as long as it likes: `exec` is one.
        session.set_read_timeout(None);
        session.set_pipelining_enabled(true);
        let http10 = session.req_header().version < Version::HTTP_11;
        if http10 {
            session.set_keepalive(None);
        }
        Some(())
    }

    async fn serve(&self, session: &mut ServerSession) -> Served {
        let started = Instant::now();
        let body_expected = !session.is_body_empty();
        let header = take_header(session);
        let upgrade = session.is_upgrade_req() && means_upgrade(&header.headers);
        let named = names_a_path(session, &header);
        let Some(connection) = connection(session) else {
            return Served::Broken;
        };
        connection.ask();
        let bearer = token::is_there(&header.headers, upgrade);
        let caller = self
            .shared
            .judge
            .load()
            .caller(&connection, bearer, SystemTime::now());
        let method = header.method.clone();
        let target = header.uri.path_and_query().cloned();
        let (path, query) = target
            .as_ref()
            .map_or(("/", None), |target| (target.path(), target.query()));
        let info = info::read(&method, path, query);
        let marked = |name| header.headers.contains_key(name);
        let asked = Asked {
            method: &method,
            path,
            info: &info,
            well_formed: named && is_well_formed(&header) && info::is_well_formed(path, query),
            caller: &caller,
            rerouted: caller == Caller::Peer && (marked(REROUTED) || marked(PEER_PROXIED)),
            resume: self.resume.of(&info, query),
            version: version_asked(&header.headers, &self.shared.config.version_awareness),
            if_ready: marked(IF_READY),
            seed: connection.seed,
        };
        let Plan { tell, step } = match unfit(session, &header) {
            Some(refusal) => Plan {
                tell: None,
                step: Step::Answer(refusal),
            },
            None => plan(&self.shared, &asked),
        };
        let mut manner = Manner::of(&header, tell, asked.rerouted);
        let kind = match info.long_running {
            _ if upgrade => Kind::Upgrade,
            true => Kind::Long,
            false => Kind::Short,
        };
        let user = self.user(&caller, &header);
        let decision = match &step {
            Step::Forward(way) => Some(way.row.name()),
            Step::Answer(_) => None,
        };
        let upload = Upload::new(body_expected, header.headers.contains_key(EXPECT));
        let end = match step {
            Step::Answer(refusal) => End::Refused(refusal, None),
            Step::Forward(way) => {
                let _open =
                    (kind != Kind::Short).then(|| Open::new(&self.shared.metrics.long_running));
                let request = Request {
                    asked: &asked,
                    connection: &connection,
                    header,
                    kind,
                    tell: manner.tell,
                    started,
                };
                let upstreams = self.upstreams();
                let running = request.run(&self.shared, &upstreams, session, upload, way);
                running.await
            }
        };
        let refusal = match &end {
            End::Refused(refusal, _) => Some(refusal.name()),
            _ => None,
        };
        let result = match end {
            End::Answered { code, reusable } => Served::Answered { code, reusable },
            End::Upgraded => Served::Upgraded,
            End::Broken => Served::Broken,
            End::Refused(refusal, server) => {
                let request = Some((&method, &info));
                self.shared.refused(refusal, request, server);
                // An apiserver that went down meanwhile is not what the client was promised.
                let initialized = self.shared.local.is_initialized();
                manner.tell = manner.tell.map(|tell| tell && initialized);
                self.refuse(session, refusal, &manner).await
            }
        };
        tracing::info!(
            target: "access",
            client = ?connection.address,
            caller = caller.name(),
            user = user.as_ref().map(tracing::field::debug),
            decision,
            refusal,
            %method,
            path,
            ?result,
            "request"
        );
        result
    }

    /// Who asks, for the access log: answers of the proxy itself are in no apiserver's audit log. Whose a token is only the
    /// apiserver knows.
    fn user(&self, caller: &Caller, header: &RequestHeader) -> Option<HeaderValue> {
        let privileged = &self.shared.privileged;
        match caller {
            Caller::User(who) => Some(who.user.clone()),
            Caller::Peer => privileged.named_user(&header.headers).cloned(),
            Caller::Bearer | Caller::Anonymous | Caller::Unverifiable => None,
        }
    }

    /// Connections made with the certificates of this moment.
    fn upstreams(&self) -> Arc<Upstreams> {
        let upstreams = self.upstreams.load_full();
        let credentials = self.shared.credentials.load();
        if upstreams.are_of(&credentials) {
            return upstreams;
        }
        let new = Arc::new(Upstreams::new(&self.shared.config, credentials.clone()));
        self.upstreams.store(new.clone());
        new
    }

    async fn refuse(
        &self,
        session: &mut ServerSession,
        refusal: Refusal,
        manner: &Manner,
    ) -> Served {
        if self.shared.is_leaving() {
            session.set_keepalive(None);
        }
        let seconds = self.shared.retry_after();
        match answer::refuse(session, refusal, seconds, manner).await {
            Ok(()) => Served::Answered {
                code: refusal.code(),
                reusable: session.is_body_done(),
            },
            Err(_) => Served::Broken,
        }
    }
}

/// Whether Go's HTTP server would take a request of this form. CONNECT names no path, and means something else to
/// everybody on the way.
fn is_well_formed(header: &RequestHeader) -> bool {
    header.method != Method::CONNECT && is_hosted(header)
}

/// What no plan is made for, whoever asks.
fn unfit(session: &ServerSession, header: &RequestHeader) -> Option<Refusal> {
    match is_too_large(header) {
        true => Some(Refusal::HeaderTooLarge),
        false => (!has_one_length(session, header)).then_some(Refusal::Unreadable),
    }
}

/// HTTP/2 has refused such a request before.
fn is_too_large(header: &RequestHeader) -> bool {
    let fields = header.headers.iter();
    let size: usize = fields
        .map(|(name, value)| name.as_str().len() + value.len() + 32)
        .sum();
    header.version < Version::HTTP_2 && size + header.raw_path().len() > HEADER_LIST as usize
}

/// How a request ended for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Served {
    Answered {
        code: u16,
        reusable: bool,
    },
    /// Nothing is left of the connection.
    Upgraded,
    Broken,
}

/// Counts something open while it lives.
struct Open<'a>(&'a prometheus::IntGauge);

impl<'a> Open<'a> {
    fn new(gauge: &'a prometheus::IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The request header, to be written upstream. An HTTP/1 session goes on needing its own.
fn take_header(session: &mut ServerSession) -> Box<RequestHeader> {
    match session {
        ServerSession::H2(session) => {
            let empty = RequestHeader::from(http::Request::new(()).into_parts().0);
            Box::new(std::mem::replace(session.req_header_mut(), empty))
        }
        session => Box::new(session.req_header().clone()),
    }
}

/// What the handshake left with the connection.
fn connection(session: &ServerSession) -> Option<Arc<Connection>> {
    session
        .digest()?
        .ssl_digest
        .as_ref()?
        .extension
        .get::<Arc<Connection>>()
        .cloned()
}

#[async_trait]
impl HttpServerApp for Front {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        self.read(&mut session, shutdown).await?;
        match self.serve(&mut session).await {
            Served::Answered { reusable: true, .. } => {
                let settings = HttpPersistentSettings::for_session(&session);
                let connection = session.finish().await.ok()??;
                idle(connection, settings, shutdown).await
            }
            Served::Answered {
                reusable: false, ..
            } => {
                session.set_keepalive(None);
                linger(&mut session).await;
                let _ = session.finish().await;
                None
            }
            Served::Upgraded => None,
            Served::Broken => {
                session.shutdown().await;
                None
            }
        }
    }

    fn h2_options(&self) -> Option<H2Options> {
        let mut options = default_h2_options();
        options.max_concurrent_streams(MAX_STREAMS);
        options.max_header_list_size(HEADER_LIST);
        options.max_pending_accept_reset_streams(RESET_STREAMS);
        options.initial_window_size(STREAM_WINDOW);
        options.initial_connection_window_size(CONNECTION_WINDOW);
        options.max_send_buffer_size(SEND_BUFFER);
        Some(options)
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        Some(&self.options)
    }
}
