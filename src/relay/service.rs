//! The HTTP application of the TLS port. Each serving thread has one.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use bytes::BytesMut;
use h2::server::Builder;
use http::header::{ACCEPT, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Version};
use pingora_core::ErrorType;
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::ServerSession;
use pingora_core::server::ShutdownWatch;
use rand::Rng as _;

use crate::metrics::Open;
use crate::net::{RedactedError, boxed, buffered, rare};
use crate::relay::answer;
use crate::relay::answer::{Refusal, ResponseOptions};
use crate::relay::client::{
    ClientSession, Downstream, Expectation, FIRST_REQUEST_TIMEOUT, Head, HeadError, has_one_length,
    idle, is_hosted,
    large_headers::{self, LargeHeaderPermit},
    linger, linger_unread, names_a_path, read_head,
    unread::{AnswerWriter, SEND_BUFFER},
};
use crate::relay::context::RequestContext;
use crate::relay::exchange::{Delivered, Upload};
use crate::relay::forward::{ForwardedRequest, Refused, forward};
use crate::relay::observe::{AccessEntry, RequestMeter, RequestSpan, VerbClass, WatchRequest};
use crate::relay::outcome::Outcome;
use crate::relay::plan::{Action, Plan, RouteRequest, plan};
use crate::relay::shared::{Shared, retry_after};
use crate::relay::upstream::{RequestKind, STREAMS, Tokens, Upstreams};
use crate::request::caller::Caller;
use crate::request::headers::{IF_READY, PEER_PROXIED, REROUTED, means_upgrade, version_asked};
use crate::request::info::{self, Target};
use crate::request::token;
use crate::watches::resume::Resume;

/// Time for a request's header to arrive, as in kube-apiserver.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// As kube-apiserver.
const MAX_STREAMS: u32 = 250;
/// All users of a peer share a few connections. A watch that waits for a stream would look like a watch that hangs.
const PEERS_STREAMS: u32 = 1000;
/// Bytes of a request's body that may wait here, as in kube-apiserver; and of all bodies of one connection. Fewer than
/// 64 stalled uploads do not delay other requests of the connection; on a peer's, as many as it sends on one.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 64 * STREAM_WINDOW;
const PEERS_WINDOW: u32 = STREAMS * STREAM_WINDOW;
/// The value of `Keep-Alive: timeout` on answers over HTTP/1, in seconds. The real timeout is
/// [`crate::relay::client::IDLE_TIMEOUT`].
const KEEPALIVE: u64 = 60;
/// Most streams that were reset before they were accepted; HTTP/2 closes a connection with more. All users of a peer
/// share a few connections.
const RESET_STREAMS: usize = 256;

/// Serves the requests of one thread, over upstream connections of this thread.
pub struct RelayService {
    shared: Arc<Shared>,
    upstreams: ArcSwap<Upstreams>,
    tokens: Tokens,
    resume: Resume,
}

impl RelayService {
    pub fn new(shared: Arc<Shared>) -> Self {
        let credentials = shared.credentials.load_full();
        let upstreams = ArcSwap::from_pointee(Upstreams::new(&shared.config, credentials));
        let resume = Resume::new(&shared.config);
        Self {
            shared,
            upstreams,
            tokens: Tokens::default(),
            resume,
        }
    }

    /// Serves one HTTP/2 request.
    pub async fn process_stream(&self, mut session: ClientSession) {
        // Boxed, so that its memory is given back before a watch waits for hours.
        let served = match boxed(|| self.serve(&mut session)).await {
            Delivered::Ended(outcome) => outcome,
            Delivered::Continues(rest) => match session.downstream() {
                // Boxed, because tokio copies the future of every request when it begins.
                Some(downstream) => {
                    Box::pin(rest.run(&self.shared, &downstream, &mut session)).await
                }
                None => Outcome::Broken,
            },
        };
        match served {
            // The client may have gone away meanwhile.
            Outcome::Answered { reusable: true, .. } => drop(session.finish_body().await),
            served => rare(|| end(session, served)).await,
        }
    }

    /// Whether a new connection comes from a peer. Such a connection carries requests of many users.
    pub fn is_peer(&self, downstream: &Downstream) -> bool {
        let judge = self.shared.judge.load();
        let peer = judge.caller(&downstream.client, false, SystemTime::now()) == Caller::Peer;
        if peer {
            downstream.outflow.mark_as_peer();
        }
        peer
    }

    /// The HTTP/2 settings of a client's connection.
    pub fn http2_options(&self, peer: bool) -> Builder {
        let mut options = Builder::new();
        let (streams, window) = match peer {
            true => (PEERS_STREAMS, PEERS_WINDOW),
            false => (MAX_STREAMS, CONNECTION_WINDOW),
        };
        options.max_concurrent_streams(streams);
        options.max_header_list_size(large_headers::READ);
        options.max_pending_accept_reset_streams(RESET_STREAMS);
        options.initial_window_size(STREAM_WINDOW);
        options.initial_connection_window_size(window);
        options.max_send_buffer_size(SEND_BUFFER);
        options
    }

    /// Reads the next request of an HTTP/1 connection; `None` when there is none.
    async fn read(
        &self,
        stream: Stream,
        begun: BytesMut,
        shutdown: &ShutdownWatch,
    ) -> Option<ClientSession> {
        let keepalive = (!*shutdown.borrow()).then_some(KEEPALIVE);
        let mut session = tokio::select! {
            biased;
            read = tokio::time::timeout(HEADER_TIMEOUT, self.head(stream, begun, keepalive)) => read.ok()??,
            () = gives_up(shutdown.clone()) => return None,
        };
        // A body may pause for any time, as that of `exec` does.
        session.set_read_timeout(None);
        session.set_pipelining_enabled(true);
        let http10 = session.req_header().version < Version::HTTP_11;
        if http10 {
            session.set_keepalive(None);
        }
        Some(ClientSession::http1(session))
    }

    /// Reads a request's head. A client whose head cannot be read gets a refusal, if it is still there.
    async fn head(
        &self,
        mut stream: Stream,
        begun: BytesMut,
        keepalive: Option<u64>,
    ) -> Option<ServerSession> {
        let head = read_head(&mut stream, begun).await;
        let mut session = ServerSession::new_http1(stream);
        session.set_keepalive(keepalive);
        let parsed = match head {
            Ok(head) => parse(&mut session, head).await,
            Err(HeadError::Gone) => return None,
            Err(HeadError::TooLarge) => Err(Refusal::HeaderTooLarge),
            Err(HeadError::Malformed) => Err(Refusal::Unreadable),
        };
        match parsed {
            Ok(true) => Some(session),
            Ok(false) => None,
            Err(refusal) => {
                self.shared.refused(refusal, None, None);
                // The connection is closed afterwards, whether this can be written or not.
                let written = answer::refuse_unread(&mut session, refusal).await;
                if let (Ok(()), ServerSession::H1(session)) = (written, session) {
                    linger_unread(session.into_inner()).await;
                }
                None
            }
        }
    }

    /// Serves an HTTP/1 connection to its end.
    pub async fn serve_http1(&self, stream: Stream, shutdown: &ShutdownWatch) {
        let (stream, flush) = buffered(stream);
        let serving = Box::pin(self.serve_requests(Box::new(stream), shutdown));
        flush.run(serving).await.unwrap_or_default();
    }

    /// Serves the requests of an HTTP/1 connection; `None` at its end.
    async fn serve_requests(&self, mut stream: Stream, shutdown: &ShutdownWatch) -> Option<()> {
        let mut begun = BytesMut::new();
        loop {
            let mut session = self.read(stream, begun, shutdown).await?;
            match boxed(|| self.serve(&mut session)).await {
                Delivered::Ended(Outcome::Answered { reusable: true, .. }) => {
                    let ClientSession::H1(session) = session else {
                        return None;
                    };
                    let connection = session.finish().await.ok()??;
                    (stream, begun) = idle(connection, shutdown).await?;
                }
                Delivered::Ended(served) => {
                    end(session, served).await;
                    return None;
                }
                // Only over HTTP/2.
                Delivered::Continues(_) => return None,
            }
        }
    }

    async fn serve(&self, session: &mut ClientSession) -> Delivered {
        let started = Instant::now();
        let settings = self.shared.settings.load();
        let body_expected = session.has_body();
        let (Some(mut header), Some(downstream)) = (session.take_header(), session.downstream())
        else {
            return Outcome::Broken.into();
        };
        let named = names_a_path(session.as_http1());
        let connection = &downstream.client;
        connection.ask();
        let permit = header_permit(&downstream, &header, session.as_http1());
        let asks_upgrade = session.is_upgrade() && means_upgrade(&header.headers);
        let bearer = token::is_there(&header.headers, asks_upgrade);
        let caller = self
            .shared
            .judge
            .load()
            .caller(connection, bearer, SystemTime::now());
        let method = header.method.clone();
        // A copy, because the header's own holds everything that was read with it.
        let target = header.uri.path_and_query().map(PathAndQuery::as_str);
        let target: Box<str> = target.unwrap_or_default().into();
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (&*target, None),
        };
        let path = if path.is_empty() { "/" } else { path };
        let info = info::read(&method, path, query);
        let upgrade =
            asks_upgrade && (info.may_be_upgraded(path) || token::is_in_protocols(&header.headers));
        let tracer = self.shared.tracer.as_ref();
        let span = tracer.and_then(|tracer| {
            // Only an apiserver can verify other callers, also those of a peer.
            let trusted = match &caller {
                Caller::User(_) => true,
                Caller::Peer => self.shared.privileged.named_user(&header.headers).is_some(),
                Caller::Bearer | Caller::Anonymous | Caller::Unverifiable => false,
            };
            RequestSpan::begin(tracer, trusted, &mut header, path)
        });
        let marked = |name| header.headers.contains_key(name);
        let route_request = RouteRequest {
            settings: &settings,
            method: &method,
            path,
            info: &info,
            well_formed: named && is_well_formed(&header) && info::is_well_formed(path, query),
            caller: &caller,
            rerouted: caller == Caller::Peer && (marked(REROUTED) || marked(PEER_PROXIED)),
            resume: match settings.watch.resume_routing {
                true => self.resume.of(&info, query),
                false => None,
            },
            version: match settings.version_awareness {
                true => version_asked(
                    &header.headers,
                    &self.shared.config.version_awareness.header,
                ),
                false => Ok(None),
            },
            if_ready: marked(IF_READY),
            accept: match info.target {
                Target::Discovery(_) => header.headers.get(ACCEPT).cloned(),
                _ => None,
            },
            seed: connection.seed,
        };
        let expectation = Expectation::of(&header);
        let Plan { ready, row, action } =
            match unfit(session, &header, permit.as_ref(), expectation) {
                Some(refusal) => Plan {
                    ready: (settings.if_ready.enabled && route_request.if_ready)
                        .then(|| self.shared.local.is_initialized()),
                    row: None,
                    action: Action::Answer(refusal),
                },
                None => plan(&self.shared, &route_request),
            };
        let server_id = route_request
            .may_seek_a_proxy()
            .then(|| self.shared.server_id_header());
        let mut options = ResponseOptions::of(&header, ready, route_request.rerouted, server_id);
        if info.long_running {
            // A copy, as of the header above: a watch would hold all that was read with it.
            let copy = |value: HeaderValue| HeaderValue::from_bytes(value.as_bytes()).ok();
            options.accept = options.accept.and_then(copy);
        }
        let kind = match info.long_running {
            _ if upgrade => RequestKind::Upgrade,
            true => RequestKind::Long,
            false => RequestKind::Short,
        };
        if kind == RequestKind::Short && session.is_http2() && self.goes_away(&caller) {
            downstream.go_away();
        }
        let class = VerbClass::of(&method, &info, kind);
        let meter = RequestMeter::new(&self.shared.metrics.requests, started, row, class, span);
        let user = self.user(&caller, &header);
        let decision = match &action {
            Action::Forward(route) => Some(route.row.name()),
            Action::Answer(_) => None,
        };
        let end = match action {
            Action::Answer(refusal) => {
                // Large headers are not kept while a slow client reads the answer.
                drop(header);
                Err(Refused::untried(refusal))
            }
            Action::Forward(mut route) => {
                let expects_continue = expectation == Expectation::Continue;
                let mut upload = Upload::new(header, body_expected, expects_continue);
                let metrics = &self.shared.metrics;
                let _open = Open::new(match kind {
                    RequestKind::Short => &metrics.in_flight,
                    RequestKind::Long | RequestKind::Upgrade => &metrics.long_running,
                });
                let _late = (kind != RequestKind::Short && self.shared.is_draining())
                    .then(|| Open::new(&metrics.late_long_running));
                let upstreams = self.upstreams();
                let context = RequestContext {
                    shared: &self.shared,
                    upstreams: &upstreams,
                    tokens: &self.tokens,
                    request: &route_request,
                    downstream: &downstream,
                    kind,
                    meter: &meter,
                };
                let mut request = ForwardedRequest {
                    context: &context,
                    exclusive: permit.as_ref().is_some_and(LargeHeaderPermit::is_large),
                    ready: options.ready,
                    failed_reroute: None,
                };
                forward(&mut request, session, &mut upload, &mut route).await
            }
        };
        let refusal = end.as_ref().err().map(|refused| refused.refusal.name());
        let delivered = match end {
            Ok(delivered) => delivered,
            Err(refused) => {
                meter.answer_begins(refused.refusal.code(), Instant::now());
                let answering =
                    || self.answer_refused(session, &downstream, &route_request, refused, options);
                rare(answering).await.into()
            }
        };
        meter.ended(refusal);
        match delivered {
            Delivered::Continues(mut rest) => {
                let path = path.into();
                rest.request = Some(WatchRequest {
                    user,
                    decision,
                    method,
                    path,
                });
                Delivered::Continues(rest)
            }
            Delivered::Ended(outcome) => {
                let entry = AccessEntry {
                    client: connection,
                    caller: &caller,
                    user: user.as_ref(),
                    decision,
                    refusal,
                    method: &method,
                    path,
                };
                entry.log(outcome);
                Delivered::Ended(outcome)
            }
        }
    }

    /// Counts a refusal and answers it.
    async fn answer_refused(
        &self,
        session: &mut ClientSession,
        downstream: &Downstream,
        request: &RouteRequest<'_>,
        Refused { refusal, server }: Refused,
        mut options: ResponseOptions,
    ) -> Outcome {
        let asked = (request.method, request.info);
        self.shared.refused(refusal, Some(asked), server);
        // The apiserver may have gone down since the plan was made.
        let initialized = self.shared.local.is_initialized();
        let ready = initialized && refusal != Refusal::NotInitialized;
        options.ready = options.ready.map(|before| before && ready);
        if let Some(ready) = options.ready {
            self.shared.metrics.ready_answered(ready);
        }
        if self.shared.is_draining() || self.ends_connection(request.caller, refusal) {
            session.end_connection(downstream);
        }
        let mut answer_writer =
            AnswerWriter::new(&self.shared.unread, &downstream.outflow, false, Some(0));
        let seconds = retry_after(&request.settings.if_ready);
        let refusing = self.refuse(session, refusal, seconds, &options);
        let refusing = std::pin::pin!(async { Ok(refusing.await) });
        answer_writer
            .write(refusing)
            .await
            .unwrap_or(Outcome::Broken)
    }

    /// The user, for the access log: no apiserver's audit log has the proxy's own answers. Only the apiserver knows the
    /// user of a token.
    fn user(&self, caller: &Caller, header: &Parts) -> Option<HeaderValue> {
        let privileged = &self.shared.privileged;
        match caller {
            Caller::User(user) => Some(user.user.clone()),
            Caller::Peer => privileged.named_user(&header.headers).cloned(),
            Caller::Bearer | Caller::Anonymous | Caller::Unverifiable => None,
        }
    }

    /// Upstream connections with the current credentials.
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

    /// Whether this request is the last of its connection, so that the client's next one may reach another node. As in
    /// kube-apiserver (`--goaway-chance`), by chance.
    fn goes_away(&self, caller: &Caller) -> bool {
        let chance = self.shared.config.serving.goaway_chance;
        chance > 0.0 && *caller != Caller::Peer && rand::thread_rng().gen_bool(chance)
    }

    /// Whether the connection ends after a refusal, as it would at an apiserver.
    fn ends_connection(&self, caller: &Caller, refusal: Refusal) -> bool {
        match caller {
            Caller::Peer => false,
            Caller::Anonymous => self.shared.local.user_details().ends_anonymous,
            _ => refusal == Refusal::Unauthorized,
        }
    }

    async fn refuse(
        &self,
        session: &mut ClientSession,
        refusal: Refusal,
        retry_after: u32,
        options: &ResponseOptions,
    ) -> Outcome {
        if self.shared.is_leaving() {
            session.close_after();
        }
        match answer::refuse(session, refusal, retry_after, options).await {
            Ok(()) => Outcome::Answered {
                code: refusal.code(),
                reusable: session.is_body_done(),
            },
            Err(_) => Outcome::Broken,
        }
    }
}

/// Resolves when a request that has not arrived completely is no longer waited for because the proxy stops.
async fn gives_up(mut shutdown: ShutdownWatch) {
    // The guard in the result must not be held. An error means that the process is ending.
    let _ = shutdown.wait_for(|stops| *stops).await.is_ok();
    tokio::time::sleep(FIRST_REQUEST_TIMEOUT).await;
}

/// Whether Go's HTTP server would accept the request's form. CONNECT names no path, and proxies read it differently.
fn is_well_formed(header: &Parts) -> bool {
    header.method != Method::CONNECT && is_hosted(header)
}

/// Refuses requests that cannot be planned at all. `permit`: `None` if the header is too large.
fn unfit(
    session: &ClientSession,
    header: &Parts,
    permit: Option<&LargeHeaderPermit>,
    expectation: Expectation,
) -> Option<Refusal> {
    match permit {
        None => Some(Refusal::HeaderTooLarge),
        Some(_) if !has_one_length(session.as_http1(), &header.headers) => {
            Some(Refusal::Unreadable)
        }
        Some(_) if expectation == Expectation::Unknown => Some(Refusal::ExpectationFailed),
        Some(_) => None,
    }
}

/// A permit for the size of a header; `None` if it is too large.
fn header_permit(
    downstream: &Arc<Downstream>,
    header: &Parts,
    http1: Option<&ServerSession>,
) -> Option<LargeHeaderPermit> {
    let weight = large_headers::weight(header, http1);
    // Over HTTP/1 the bytes were counted while they were read.
    let fits = header.version < Version::HTTP_2 || weight <= large_headers::LIMIT;
    fits.then(|| LargeHeaderPermit::take(downstream, weight))
        .flatten()
}

/// Lets pingora parse a head, and adds the fields that pingora could not read; `false`: there is no request.
async fn parse(session: &mut ServerSession, head: Head) -> Result<bool, Refusal> {
    session.set_pipelined_prefix(head.bytes);
    session.set_read_timeout(Some(HEADER_TIMEOUT));
    match session.read_request().await {
        Ok(true) => {}
        Err(error) if *error.etype() == ErrorType::InvalidHTTPHeader => {
            tracing::debug!(error = %RedactedError(&error), "unreadable request");
            return Err(Refusal::Unreadable);
        }
        Ok(false) | Err(_) => return Ok(false),
    }
    let header = session.req_header_mut();
    for (name, value) in head.aside {
        let added = header.append_header(name, value);
        added.map_err(|_| Refusal::HeaderTooLarge)?;
    }
    Ok(true)
}

/// Ends a session that nothing can follow.
async fn end(mut session: ClientSession, served: Outcome) {
    match served {
        Outcome::Answered { .. } => {
            session.close_after();
            Box::pin(linger(&mut session)).await;
            // The client may have gone away meanwhile.
            let _ = match session {
                ClientSession::H1(session) => Box::pin(session.finish()).await.map(drop),
                mut session => session.finish_body().await,
            };
        }
        Outcome::Upgraded => {}
        Outcome::Broken => session.abort(h2::Reason::INTERNAL_ERROR).await,
        Outcome::Declined => session.abort(h2::Reason::REFUSED_STREAM).await,
    }
}
