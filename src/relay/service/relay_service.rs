//! The service of one thread: requests from their headers to their ends.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use arc_swap::ArcSwap;
use bytes::BytesMut;
use h2::server::Builder;
use http::header::{ACCEPT, HeaderValue};
use http::request::Parts;
use pingora_core::protocols::Stream;
use pingora_core::server::ShutdownWatch;
use rand::Rng as _;

use super::http1::read;
use super::reading::{Received, is_well_formed, kind, span, user};
use super::refuse::answer_refused;
use crate::metrics::Open;
use crate::net::{boxed, buffered, rare};
use crate::relay::answer::ResponseOptions;
use crate::relay::client::large_headers;
use crate::relay::client::unread::SEND_BUFFER;
use crate::relay::client::{ClientSession, Downstream, idle, linger};
use crate::relay::context::RequestContext;
use crate::relay::exchange::Delivered;
use crate::relay::forward::{ForwardedRequest, Refused, forward};
use crate::relay::observe::{AccessEntry, RequestMeter, VerbClass, WatchRequest};
use crate::relay::outcome::Outcome;
use crate::relay::plan::{Action, Plan, RouteRequest, plan};
use crate::relay::shared::Shared;
use crate::relay::upstream::{RequestKind, STREAMS, Tokens, Upstreams};
use crate::request::caller::Caller;
use crate::request::headers::{IF_READY, PEER_PROXIED, REROUTED, version_asked};
use crate::request::info::{self, RequestInfo, Target};
use crate::watches::resume::Resume;

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
        options.max_header_list_size(large_headers::READ);
        options.max_pending_accept_reset_streams(RESET_STREAMS);
        options.initial_window_size(STREAM_WINDOW);
        options.initial_connection_window_size(window);
        options.max_send_buffer_size(SEND_BUFFER);
        options
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

    async fn serve(&self, session: &mut ClientSession) -> Delivered {
        let started = Instant::now();
        let shared = &*self.shared;
        let Some((mut header, received)) = Received::take(shared, session) else {
            return Outcome::Broken.into();
        };
        let (downstream, caller) = (&received.downstream, &received.caller);
        let (path, query) = received.path_and_query();
        let info = info::read(&received.method, path, query);
        let kind = kind(&header, &info, path, received.asks_upgrade);
        let span = span(shared, caller, &mut header, path);
        let request = self.route_request(session, &header, &received, &info);
        let Plan { ready, row, action } = self.planned(session, &header, &received, &request);
        let options = self.options(&header, &request, ready);
        self.go_away_by_chance(session, &received, kind);
        let class = VerbClass::of(&received.method, &info, kind);
        let meter = RequestMeter::new(&shared.metrics.requests, started, row, class, span);
        let user = user(shared, caller, &header);
        let decision = action.decision();
        let context = RequestContext {
            shared,
            tokens: &self.tokens,
            request: &request,
            downstream,
            kind,
            meter: &meter,
        };
        let end = match action {
            Action::Answer(refusal) => {
                // Large headers are not kept while a slow client reads the answer.
                drop(header);
                Err(Refused::untried(refusal))
            }
            Action::Forward(mut route) => {
                let (mut upload, _open) = (received.upload(header), self.counted(kind));
                let (servers, large) = (self.upstreams(), received.is_large());
                let request = ForwardedRequest::new(&context, &servers, large, ready);
                forward(request, session, &mut upload, &mut route).await
            }
        };
        let refusal = end.as_ref().err().map(|refused| refused.refusal.name());
        let delivered = match end {
            Ok(delivered) => delivered,
            Err(refused) => {
                let answering = || answer_refused(&context, session, refused, options);
                rare(answering).await.into()
            }
        };
        meter.ended(refusal);
        let entry = AccessEntry {
            client: &downstream.client,
            caller,
            user: user.as_ref(),
            decision,
            refusal,
            method: &received.method,
            path,
        };
        logged(delivered, entry)
    }

    /// Counts a request while it is open.
    fn counted(&self, kind: RequestKind) -> (Open<'_>, Option<Open<'_>>) {
        let metrics = &self.shared.metrics;
        match kind {
            RequestKind::Short => (Open::new(&metrics.in_flight), None),
            RequestKind::Long | RequestKind::Upgrade => {
                let late = self.shared.shutdown.is_draining();
                let late = late.then(|| Open::new(&metrics.late_long_running));
                (Open::new(&metrics.long_running), late)
            }
        }
    }

    /// The request as the plan sees it.
    fn route_request<'r>(
        &self,
        session: &ClientSession,
        header: &Parts,
        received: &'r Received,
        info: &'r RequestInfo<'r>,
    ) -> RouteRequest<'r> {
        let (path, query) = received.path_and_query();
        let marked = |name| header.headers.contains_key(name);
        let settings = &received.settings;
        RouteRequest {
            settings,
            method: &received.method,
            path,
            info,
            well_formed: is_well_formed(session, header, path, query),
            caller: &received.caller,
            rerouted: received.caller == Caller::Peer && (marked(REROUTED) || marked(PEER_PROXIED)),
            resume: match settings.watch.resume_routing {
                true => self.resume.of(info, query),
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
            seed: received.downstream.client.seed,
        }
    }

    /// Plans a request that can be planned.
    fn planned(
        &self,
        session: &ClientSession,
        header: &Parts,
        received: &Received,
        request: &RouteRequest<'_>,
    ) -> Plan {
        let asked = request.settings.if_ready.enabled && request.if_ready;
        match received.unfit(session, header) {
            Some(refusal) => Plan {
                ready: asked.then(|| self.shared.local.is_initialized()),
                row: None,
                action: Action::Answer(refusal),
            },
            None => plan(&self.shared, request),
        }
    }

    /// What an answer of the proxy itself depends on.
    fn options(
        &self,
        header: &Parts,
        request: &RouteRequest<'_>,
        ready: Option<bool>,
    ) -> ResponseOptions {
        let server_id = request.may_seek_a_proxy();
        let server_id = server_id.then(|| self.shared.server_id_header());
        let mut options = ResponseOptions::of(header, ready, request.rerouted, server_id);
        if request.info.long_running {
            // A copy: a watch would hold all that was read with the header's own.
            let copy = |value: HeaderValue| HeaderValue::from_bytes(value.as_bytes()).ok();
            options.accept = options.accept.and_then(copy);
        }
        options
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
    fn go_away_by_chance(&self, session: &ClientSession, received: &Received, kind: RequestKind) {
        let chance = self.shared.config.serving.goaway_chance;
        if chance > 0.0
            && kind == RequestKind::Short
            && session.is_http2()
            && received.caller != Caller::Peer
            && rand::thread_rng().gen_bool(chance)
        {
            received.downstream.go_away();
        }
    }
}

/// Logs a request that has ended. What is left of a watch does that itself, at its end.
fn logged(delivered: Delivered, entry: AccessEntry<'_>) -> Delivered {
    match delivered {
        Delivered::Continues(mut rest) => {
            rest.request = Some(WatchRequest {
                user: entry.user.cloned(),
                decision: entry.decision,
                method: entry.method.clone(),
                path: entry.path.into(),
            });
            Delivered::Continues(rest)
        }
        Delivered::Ended(outcome) => {
            entry.log(outcome);
            Delivered::Ended(outcome)
        }
    }
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
