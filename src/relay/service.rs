//! The HTTP application of the TLS port, one for each serving thread: the way of a request. It is read, planned
//! ([`crate::relay::plan`]), and forwarded ([`crate::relay::forward`]) or answered (`refuse`).

mod http1;
mod refuse;

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use arc_swap::ArcSwap;
use bytes::BytesMut;
use h2::server::Builder;
use http::header::{ACCEPT, HeaderMap, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{Method, Version};
use pingora_core::protocols::Stream;
use pingora_core::protocols::tls::SslDigest;
use pingora_core::server::ShutdownWatch;
use rand::Rng as _;
use tokio::io::{AsyncRead, AsyncWrite};

use self::http1::read;
use self::refuse::answer_refused;
use crate::metrics::Open;
use crate::net::{boxed, buffered, rare};
use crate::relay::answer::Refusal;
use crate::relay::client::header::{self as client_header, LargeHeaderPermit, READ};
use crate::relay::client::unread::SEND_BUFFER;
use crate::relay::client::{ClientSession, Downstream, idle, linger};
use crate::relay::client::{Expectation, has_one_length, is_hosted, names_a_path};
use crate::relay::context::RequestContext;
use crate::relay::exchange::{Delivered, Upload};
use crate::relay::forward::forward;
use crate::relay::observe::{AccessEntry, RequestMeter, RequestSpan, VerbClass};
use crate::relay::outcome::Outcome;
use crate::relay::plan::{is_held_back, plan};
use crate::relay::shared::Shared;
use crate::relay::upstream::{RequestKind, STREAMS, Tokens, Upstreams};
use crate::request::caller::Caller;
use crate::request::headers::{IF_READY, PEER_PROXIED, REROUTED, means_upgrade, version_asked};
use crate::request::info::{self, RequestInfo};
use crate::request::token;
use crate::watches::history::resumed_after;

pub use self::http1::HEADER_TIMEOUT;

/// As kube-apiserver.
const MAX_STREAMS: u32 = 250;
/// All users of a peer share a few connections. A watch that waits for a stream would look like a watch that hangs.
const PEERS_STREAMS: u32 = 1000;
/// Bytes of a request's body that may wait here, as in kube-apiserver; and of all bodies of one connection. Fewer than
/// 64 stalled uploads do not delay other requests of the connection; on a peer's, as many as it sends on one.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 64 * STREAM_WINDOW;
const PEERS_WINDOW: u32 = STREAMS * STREAM_WINDOW;
/// Most streams that were reset before they were accepted; HTTP/2 closes a connection with more. All users of a peer
/// share a few connections.
const RESET_STREAMS: usize = 256;

/// Serves the requests of one thread, over upstream connections of this thread.
pub struct RelayService {
    shared: Arc<Shared>,
    upstreams: ArcSwap<Upstreams>,
    tokens: Tokens,
}

impl RelayService {
    pub fn new(shared: Arc<Shared>) -> Self {
        let credentials = shared.credentials.load_full();
        Self {
            upstreams: ArcSwap::from_pointee(Upstreams::new(&shared.config, credentials)),
            tokens: Tokens::default(),
            shared,
        }
    }

    /// Whether a new connection comes from a peer. Such a connection carries requests of many users.
    pub fn is_peer(&self, downstream: &Downstream) -> bool {
        let judge = self.shared.callers.judge.load();
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
        options.max_header_list_size(READ);
        options.max_pending_accept_reset_streams(RESET_STREAMS);
        options.initial_window_size(STREAM_WINDOW);
        options.initial_connection_window_size(window);
        options.max_send_buffer_size(SEND_BUFFER);
        options
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

    /// Serves an HTTP/1 connection to its end.
    pub async fn serve_http1(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        tls: Option<Arc<SslDigest>>,
        shutdown: &ShutdownWatch,
    ) {
        let (stream, flush) = buffered(stream, tls);
        let serving = Box::pin(self.serve_requests(Box::new(stream), shutdown));
        flush.run(serving).await.unwrap_or_default();
    }

    /// Serves the requests of an HTTP/1 connection; `None` at its end.
    async fn serve_requests(&self, mut stream: Stream, shutdown: &ShutdownWatch) -> Option<()> {
        let mut begun = BytesMut::new();
        loop {
            let mut session = read(&self.shared, stream, begun, shutdown).await?;
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

    /// Serves a request until its answer ends, or is a watch that has begun.
    async fn serve(&self, session: &mut ClientSession) -> Delivered {
        let started = Instant::now();
        let body_expected = session.has_body();
        let Some((mut header, downstream)) = session.take_header().zip(session.downstream()) else {
            return Outcome::Broken.into();
        };
        downstream.client.ask();
        // A copy, because the header's own holds everything that was read with it.
        let target = header.uri.path_and_query().map(PathAndQuery::as_str);
        let target: Box<str> = target.unwrap_or_default().into();
        let permit = header_permit(&downstream, &header, session);
        let expectation = Expectation::of(&header);
        let mut context = self.context(session, &mut header, &target, downstream, started);
        let unfit = match permit {
            Some(_) => unfit(&context, session, &header, expectation),
            None => Some(Refusal::HeaderTooLarge),
        };
        let (row, route) = match unfit {
            Some(refusal) => (None, Err(refusal)),
            None => plan(&context, &[], None),
        };
        context.meter.row = row;
        self.go_away_by_chance(session, &context);
        let vouched = self.shared.callers.user(&context.caller, &header.headers);
        let user = vouched.cloned();
        let decision = route.as_ref().ok().map(|route| route.row.name());
        let end = match route {
            Err(refusal) => {
                // Large headers are not kept while a slow client reads the answer.
                drop(header);
                Err(refusal)
            }
            Ok(mut route) => {
                let _open = counted(&context);
                let expects_continue = expectation == Expectation::Continue;
                let mut upload = Upload::new(header, body_expected, expects_continue);
                let alone = permit.as_ref().is_some_and(LargeHeaderPermit::is_large);
                forward(&context, session, &mut upload, &mut route, alone).await
            }
        };
        let refusal = end.as_ref().err().map(|refused| refused.name());
        let delivered = match end {
            Ok(delivered) => delivered,
            Err(refused) => rare(|| answer_refused(&context, session, refused))
                .await
                .into(),
        };
        let entry = AccessEntry {
            user,
            decision,
            refusal,
            method: context.method.clone(),
            path: context.path.into(),
        };
        let delivered = logged(&context, entry, delivered);
        context.meter.ended(refusal);
        delivered
    }

    /// What a request is. `target`: its path and query.
    fn context<'a>(
        &'a self,
        session: &ClientSession,
        header: &mut Parts,
        target: &'a str,
        downstream: Arc<Downstream>,
        started: Instant,
    ) -> RequestContext<'a> {
        let shared = &*self.shared;
        let settings = shared.settings.load();
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (target, None),
        };
        let path = if path.is_empty() { "/" } else { path };
        let info = info::read(&header.method, path, query);
        let asks_upgrade = session.is_upgrade() && means_upgrade(&header.headers);
        let kind = kind(&info, path, &header.headers, asks_upgrade);
        let bearer = token::is_there(&header.headers, asks_upgrade);
        let judge = shared.callers.judge.load();
        let caller = judge.caller(&downstream.client, bearer, SystemTime::now());
        let class = VerbClass::of(&header.method, &info, kind);
        let span = span(shared, &caller, header, path);
        let headers = &header.headers;
        let marked = headers.contains_key(REROUTED) || headers.contains_key(PEER_PROXIED);
        let accept = headers.get(ACCEPT);
        RequestContext {
            shared,
            upstreams: self.upstreams(),
            tokens: &self.tokens,
            downstream,
            rerouted: caller == Caller::Peer && marked,
            caller,
            method: header.method.clone(),
            path,
            kind,
            resume: match settings.watch.resume_routing {
                true => resumed_after(&self.shared.config.etcd, &info, query),
                false => None,
            },
            version: match settings.version_awareness {
                true => version_asked(headers, &shared.config.version_awareness.header),
                false => Ok(None),
            },
            if_ready: settings.if_ready.enabled && headers.contains_key(IF_READY),
            accept: match info.long_running {
                // A watch would hold all that was read with the header's own.
                true => accept.and_then(|accept| HeaderValue::from_bytes(accept.as_bytes()).ok()),
                false => accept.cloned(),
            },
            settings,
            info,
            meter: RequestMeter::new(&shared.metrics.requests, started, None, class, span),
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

    /// Ends the connection with this request, by chance, so that the client's next one may reach another node. As in
    /// kube-apiserver (`--goaway-chance`).
    fn go_away_by_chance(&self, session: &ClientSession, context: &RequestContext<'_>) {
        let chance = self.shared.config.serving.goaway_chance;
        if chance > 0.0
            && context.kind == RequestKind::Short
            && session.is_http2()
            && context.caller != Caller::Peer
            && rand::thread_rng().gen_bool(chance)
        {
            context.downstream.go_away();
        }
    }
}

/// Logs a request that has ended. What is left of a watch is logged at its end.
fn logged(context: &RequestContext<'_>, entry: AccessEntry<'_>, delivered: Delivered) -> Delivered {
    match delivered {
        Delivered::Continues(mut rest) => {
            rest.request = Some(entry.into_owned());
            Delivered::Continues(rest)
        }
        Delivered::Ended(outcome) => {
            entry.log(&context.downstream.client, &context.caller, outcome);
            Delivered::Ended(outcome)
        }
    }
}

/// How the request uses its connection to a server. `asks_upgrade`: it asks for another protocol.
fn kind(
    info: &RequestInfo<'_>,
    path: &str,
    headers: &HeaderMap,
    asks_upgrade: bool,
) -> RequestKind {
    let may_be_upgraded = || info.may_be_upgraded(path) || token::is_in_protocols(headers);
    match info.long_running {
        _ if asks_upgrade && may_be_upgraded() => RequestKind::Upgrade,
        true => RequestKind::Long,
        false => RequestKind::Short,
    }
}

/// Refuses a request that cannot be planned.
fn unfit(
    context: &RequestContext<'_>,
    session: &ClientSession,
    header: &Parts,
    expectation: Expectation,
) -> Option<Refusal> {
    // CONNECT names no path, and proxies read it differently.
    let is_well_formed = || {
        names_a_path(session.as_http1())
            && context.method != Method::CONNECT
            && is_hosted(header)
            && info::is_well_formed(context.path, header.uri.query())
    };
    let refusal = if !has_one_length(session.as_http1(), &header.headers) {
        return Some(Refusal::Unreadable);
    } else if expectation == Expectation::Unknown {
        return Some(Refusal::ExpectationFailed);
    } else if !is_well_formed() {
        Refusal::BadTarget
    } else if context.caller == Caller::Unverifiable {
        Refusal::Unauthorized
    } else if context.version.is_err() && !context.rerouted {
        Refusal::BadVersion
    } else {
        return None;
    };
    // Whatever a request that could be read asks for: a starting apiserver comes first.
    let (config, asked) = (&context.settings.if_ready, context.if_ready);
    let initialized = context.shared.local.is_initialized();
    match is_held_back(config, context.path, asked, initialized) {
        true => Some(Refusal::NotInitialized),
        false => Some(refusal),
    }
}

/// A permit for the size of a header; `None` if it is too large.
fn header_permit(
    downstream: &Arc<Downstream>,
    header: &Parts,
    session: &ClientSession,
) -> Option<LargeHeaderPermit> {
    let weight = client_header::weight(header, session.as_http1());
    // Over HTTP/1 the bytes were counted while they were read.
    let fits = header.version < Version::HTTP_2 || weight <= client_header::LIMIT;
    fits.then(|| LargeHeaderPermit::take(downstream, weight))
        .flatten()
}

/// Begins the request's span, if it is sampled.
fn span<'a>(
    shared: &'a Shared,
    caller: &Caller,
    header: &mut Parts,
    path: &str,
) -> Option<Box<RequestSpan<'a>>> {
    let tracer = shared.tracer.as_ref()?;
    // Only an apiserver can verify other callers, also those of a peer.
    let trusted = shared.callers.user(caller, &header.headers).is_some();
    RequestSpan::begin(tracer, trusted, header, path)
}

/// Counts a request while it is open.
fn counted<'a>(context: &RequestContext<'a>) -> (Open<'a>, Option<Open<'a>>) {
    let (shared, metrics) = (context.shared, &context.shared.metrics);
    if context.kind == RequestKind::Short {
        return (Open::new(&metrics.in_flight), None);
    }
    let late = shared.shutdown.is_draining();
    let late = late.then(|| Open::new(&metrics.late_long_running));
    (Open::new(&metrics.long_running), late)
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
