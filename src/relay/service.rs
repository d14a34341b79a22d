//! The HTTP application of the TLS port, one for each serving thread: the way of a request. It is read, planned
//! ([`crate::relay::plan`]), and forwarded ([`crate::relay::forward`]) or refused.

mod hand_over;
mod http1;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use arc_swap::ArcSwap;
use bytes::BytesMut;
use http::Method;
use http::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use pingora_core::protocols::Stream;
use prometheus::IntGauge;
use rand::Rng as _;
use tokio::io::{AsyncRead, AsyncWrite};

use self::http1::{idle, linger, read};
use crate::metrics::Open;
use crate::net::{boxed, buffered, rare};
use crate::relay::answer::{Refusal, StatusFormat};
use crate::relay::client::{
    AnswerWriter, ClientSession, Downstream, Expectation, LargeHeaderPermit, has_one_length,
    is_hosted, names_a_path,
};
use crate::relay::exchange::{Delivered, Upload, WatchRest};
use crate::relay::forward::forward;
use crate::relay::observe::{AccessEntry, RequestMeter, RequestSpan, VerbClass, begin_span};
use crate::relay::outcome::Outcome;
use crate::relay::plan::{self, RequestContext, Route, is_held_back};
use crate::relay::shared::Shared;
use crate::relay::upstream::{RequestKind, Tokens, Upstreams};
use crate::request::again::WatchRequest;
use crate::request::caller::Caller;
use crate::request::headers::{IF_READY, PEER_PROXIED, REROUTED, means_upgrade};
use crate::request::info::{self, RequestInfo, Verb};
use crate::request::token;
use crate::routing::decide::Row;
use crate::routing::table::ServerKind;
use crate::shutdown::Shutdown;
use crate::watches::history::resumed_after;

pub use self::http1::{FIRST_REQUEST_TIMEOUT, HEADER_TIMEOUT, IDLE_TIMEOUT};

/// A watch with a longer `Authorization` does not go on elsewhere.
const LONGEST_AUTHORIZATION: usize = 16 << 10;

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

    pub fn shutdown(&self) -> &Shutdown {
        &self.shared.shutdown
    }

    /// Whether a new connection comes from a peer. Such a connection carries requests of many users.
    pub fn is_peer(&self, downstream: &Downstream) -> bool {
        let authenticator = self.shared.callers.authenticator.load();
        let peer =
            authenticator.caller(&downstream.client, false, SystemTime::now()) == Caller::Peer;
        if peer {
            downstream.outflow.mark_as_peer();
        }
        peer
    }

    /// Serves one HTTP/2 request. `_running` is dropped at its end.
    pub async fn process_stream(
        self: Arc<Self>,
        mut session: ClientSession,
        downstream: Arc<Downstream>,
        _running: impl Send,
    ) {
        match self.serve_to_end(&mut session, &downstream).await {
            // The client may have gone away meanwhile.
            Outcome::Answered { reusable: true, .. } => drop(session.finish_body().await),
            served => rare(|| end(session, served)).await,
        }
    }

    /// Serves a request until its answer has ended.
    async fn serve_to_end(
        &self,
        session: &mut ClientSession,
        downstream: &Arc<Downstream>,
    ) -> Outcome {
        // Boxed, so that its memory is given back before a watch waits for hours.
        let (mut rest, begun) = match boxed(|| self.serve(session, downstream.clone())).await {
            Ok(begun) => begun,
            Err(outcome) => return outcome,
        };
        let outcome = loop {
            // Boxed, because tokio copies the future of every request when it begins.
            match Box::pin(rest.run(&self.shared, downstream, session)).await {
                Ok(outcome) => break outcome,
                Err(reason) => {
                    match rare(|| self.hand_over(session, rest, downstream, reason)).await {
                        Delivered::Continues(next) => rest = next,
                        Delivered::Ended(outcome) => break outcome,
                    }
                }
            }
        };
        begun.entry.log(&downstream.client, &begun.caller, outcome);
        outcome
    }

    /// Serves an HTTP/1 connection to its end.
    pub async fn serve_http1(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        downstream: &Arc<Downstream>,
    ) {
        let (stream, flush) = buffered(stream);
        let serving = Box::pin(self.serve_requests(Box::new(stream), downstream));
        flush.run(serving).await.unwrap_or_default();
    }

    /// Serves the requests of an HTTP/1 connection; `None` at its end.
    async fn serve_requests(&self, mut stream: Stream, downstream: &Arc<Downstream>) -> Option<()> {
        let mut begun = BytesMut::new();
        loop {
            let mut session = read(&self.shared, stream, begun).await?;
            match self.serve_to_end(&mut session, downstream).await {
                Outcome::Answered { reusable: true, .. } => {
                    let ClientSession::H1(session) = session else {
                        return None;
                    };
                    let connection = session.finish().await.ok()??;
                    (stream, begun) = idle(&self.shared, connection).await?;
                }
                served => {
                    end(session, served).await;
                    return None;
                }
            }
        }
    }

    /// Serves a request until its answer ends (an error), or is a watch that has begun.
    async fn serve(
        &self,
        session: &mut ClientSession,
        downstream: Arc<Downstream>,
    ) -> Result<(Box<WatchRest>, Box<BegunWatch>), Outcome> {
        let started = Instant::now();
        let body_expected = session.has_body();
        let Some(mut header) = session.take_header() else {
            return Err(Outcome::Broken);
        };
        downstream.client.ask();
        // A copy, because the header's own holds everything that was read with it.
        let target = header.uri.path_and_query().map(PathAndQuery::as_str);
        let target: Box<str> = target.unwrap_or_default().into();
        let permit = LargeHeaderPermit::take(&downstream, &header, session.as_http1());
        let expectation = Expectation::of(&header);
        let mut context = self.context(session, &mut header, &target, downstream, started);
        let may_be_large = permit.is_some();
        let (row, route) = match unfit(&context, session, &header, expectation, may_be_large) {
            Some(refusal) => (None, Err(refusal)),
            None => plan::first(&mut context, &header.headers),
        };
        context.meter.row = row;
        self.go_away_by_chance(session, &context);
        let privileged = &self.shared.callers.privileged;
        let user = privileged.user(&context.caller, &header.headers).cloned();
        let decision = route.as_ref().ok().map(|route| route.row.name());
        let moved = route.iter().find_map(|route| counted_as(&context, route));
        let end = match route {
            Err(refusal) => {
                // Large headers are not kept while a slow client reads the answer.
                drop(header);
                Err(refusal)
            }
            Ok(mut route) => {
                context.again = kept_request(&context, &header);
                let _open = (counted(&context), moved.map(Open::new));
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
        let permit = permit.filter(LargeHeaderPermit::is_large);
        served(context, entry, moved.is_some(), permit, delivered)
    }

    /// Upstream connections with the current credentials.
    fn upstreams(&self) -> Arc<Upstreams> {
        let upstreams = self.upstreams.load_full();
        let credentials = self.shared.credentials.load();
        if Arc::ptr_eq(&upstreams.credentials, &credentials) {
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

    /// What a request is, also one for the rest of a watch. `target`: its path and query.
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
        let authenticator = shared.callers.authenticator.load();
        let caller = authenticator.caller(&downstream.client, bearer, SystemTime::now());
        let class = VerbClass::of(&header.method, &info, kind);
        let span = shared.tracer.as_ref().and_then(|tracer| {
            // Only an apiserver can verify other callers, also those of a peer.
            let privileged = &shared.callers.privileged;
            let trusted = privileged.user(&caller, &header.headers).is_some();
            begin_span(tracer, trusted, header, path)
        });
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
            query,
            kind,
            resume: match settings.watch.resume_routing {
                true => resumed_after(&self.shared.config.etcd, &info, query),
                false => None,
            },
            again: None,
            wanted: Ok(None),
            if_ready: settings.if_ready.enabled && headers.contains_key(IF_READY),
            accept: match info.long_running {
                // A watch would hold all that was read with the header's own.
                true => accept.and_then(|accept| HeaderValue::from_bytes(accept.as_bytes()).ok()),
                false => accept.cloned(),
            },
            settings,
            info,
            meter: RequestMeter::new(&shared.metrics.requests, started, class, span),
        }
    }
}

/// What another server would be asked for if the one that serves this watch stops. The proxy that has sent it here asks itself.
fn kept_request(context: &RequestContext<'_>, header: &Parts) -> Option<Arc<WatchRequest>> {
    let is_watch = context.info.verb == Verb::Watch && context.kind == RequestKind::Long;
    if !is_watch || context.rerouted || !context.settings.watch.hand_over {
        return None;
    }
    let privileged = &context.shared.callers.privileged;
    let vouched = (context.caller == Caller::Peer).then_some(privileged);
    // Who has a certificate is not asked for a token.
    let is_user = matches!(context.caller, Caller::User(_));
    let authorization = header.headers.get(AUTHORIZATION).filter(|_| !is_user);
    if authorization.is_some_and(|it| it.len() > LONGEST_AUTHORIZATION) {
        return None;
    }
    let authorization = authorization.map(|it| context.downstream.kept_authorization(it));
    let now = context.meter.started;
    WatchRequest::of(header, vouched, authorization, now).map(Arc::new)
}

/// Where a request is counted that is sent to another server for its version.
fn counted_as<'a>(context: &RequestContext<'a>, route: &Route) -> Option<&'a IntGauge> {
    let is_moved = context.bounded().is_some()
        && route.row == Row::Peers
        && route.server_kind != ServerKind::Local
        && (context.is_safe() || context.kind == RequestKind::Long)
        && plan::may_stay(context);
    is_moved.then(|| &context.shared.metrics.moved[usize::from(context.kind != RequestKind::Short)])
}

/// What is noted at the end of a watch, whose request is gone then.
struct BegunWatch {
    entry: AccessEntry<'static>,
    caller: Caller,
    /// Ends with the watch.
    _span: Option<Box<RequestSpan>>,
    /// pingora keeps a header as long as its connection to a server.
    _large: Option<LargeHeaderPermit>,
}

/// Logs and counts a request that has ended (an error), or returns the watch that has begun.
fn served(
    context: RequestContext<'_>,
    entry: AccessEntry<'_>,
    moved: bool,
    large: Option<LargeHeaderPermit>,
    delivered: Delivered,
) -> Result<(Box<WatchRest>, Box<BegunWatch>), Outcome> {
    let span = context.meter.ended(entry.refusal);
    match delivered {
        Delivered::Continues(mut rest) => {
            rest.moved = moved;
            let begun = BegunWatch {
                entry: entry.into_owned(),
                caller: context.caller,
                _span: span,
                _large: large,
            };
            Ok((rest, Box::new(begun)))
        }
        Delivered::Ended(outcome) => {
            entry.log(&context.downstream.client, &context.caller, outcome);
            Err(outcome)
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
    may_be_large: bool,
) -> Option<Refusal> {
    if !may_be_large {
        return Some(Refusal::HeaderTooLarge);
    }
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

/// Counts a request while it is open.
fn counted<'a>(context: &RequestContext<'a>) -> (Open<&'a IntGauge>, Option<Open<&'a IntGauge>>) {
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

/// Counts a refusal and answers it.
async fn answer_refused(
    context: &RequestContext<'_>,
    session: &mut ClientSession,
    refusal: Refusal,
) -> Outcome {
    let (shared, downstream) = (context.shared, &context.downstream);
    context.meter.answer_begins(refusal.code(), Instant::now());
    shared.metrics.refused(refusal);
    let ends_anonymous = shared.local.user_details().ends_anonymous;
    let is_unauthorized = refusal == Refusal::Unauthorized;
    if shared.shutdown.is_draining() || context.ends_connection(is_unauthorized, ends_anonymous) {
        session.end_connection(downstream);
    }
    if shared.shutdown.is_leaving() {
        session.close_after();
    }
    let (unread, outflow) = (&shared.limits.unread, &downstream.outflow);
    let mut answer_writer = AnswerWriter::new(unread, outflow, false, Some(0));
    let writing = pin!(write_refusal(context, session, refusal));
    match answer_writer.write(writing).await {
        Ok(reusable) => Outcome::Answered {
            code: refusal.code(),
            reusable,
        },
        Err(_) => Outcome::Broken,
    }
}

/// Whether a kubelet deletes or creates a pod. It does that for the mirror of a static pod before it starts the pod's containers,
/// and client-go sends it again ten times, each after `Retry-After`: kube-apiserver would not start because it is awaited.
fn comes_before_containers(context: &RequestContext<'_>) -> bool {
    let is_kubelet = || match &context.caller {
        Caller::User(user) => user.groups.iter().any(|group| group == "system:nodes"),
        _ => false,
    };
    let verb = context.info.verb;
    let gvr = context.info.gvr();
    matches!(verb, Verb::Create | Verb::Delete)
        && gvr.is_some_and(|it| it.group.is_empty() && it.resource == "pods")
        && is_kubelet()
}

/// Writes the answer. Returns whether the session can take another request.
async fn write_refusal(
    context: &RequestContext<'_>,
    session: &mut ClientSession,
    refusal: Refusal,
) -> pingora_core::Result<bool> {
    let (shared, config) = (context.shared, &context.settings.if_ready);
    // The apiserver may have gone down since the plan was made.
    let initialized = || refusal != Refusal::NotInitialized && shared.local.is_initialized();
    let ready = context.if_ready.then(initialized);
    if let Some(ready) = ready {
        shared.metrics.ready_answered(ready);
    }
    let jitter = rand::thread_rng().gen_range(0..=config.retry_after_jitter_seconds);
    let retry_after = match comes_before_containers(context) {
        true => 0,
        false => config.retry_after_seconds + jitter,
    };
    let format = StatusFormat::accepted(context.accept.as_ref());
    let (mut header, body) = refusal.response(retry_after, ready, format, context.rerouted)?;
    context.name_proxy(&mut header)?;
    let head = context.method == Method::HEAD;
    session
        .write_header(header, head && session.is_http2())
        .await?;
    if !head {
        session.write_body(body, true).await?;
    }
    Ok(session.is_body_done())
}
