//! A request that is forwarded: how it is sent to one server, and what its answer is counted as.

use std::net::SocketAddr;
use std::sync::Arc;

use http::Method;
use http::request::Parts;

use super::authentication::Authentication;
use crate::kube::gvr::Gvr;
use crate::log_throttle::LogRateLimit;
use crate::net::RedactedError;
use crate::relay::answer::Refusal;
use crate::relay::client::ClientSession;
use crate::relay::context::RequestContext;
use crate::relay::documents::DocumentOutcome;
use crate::relay::exchange::{Delivered, Exchange, Expiry, Upload, headers, pass_kept};
use crate::relay::observe::RequestEvent;
use crate::relay::outcome::{ExchangeFailure, KeptAnswer, Outcome};
use crate::relay::plan::Route;
use crate::relay::upstream::{ConnectionChoice, PoolChoice, RequestKind, Upstreams};
use crate::request::caller::Caller;
use crate::routing::table::ServerKind;

/// A request that is forwarded.
pub struct ForwardedRequest<'a> {
    pub context: &'a RequestContext<'a>,
    /// Connections to servers.
    pub upstreams: &'a Upstreams,
    /// Its header is too large for a shared connection.
    pub exclusive: bool,
    /// `X-Kubernetes-Ready` on the answer.
    pub ready: Option<bool>,
    pub failed_reroute: Option<FailedReroute>,
}

/// A peer could not answer: the name of the resource it was asked for, for the counter of rerouted requests.
pub struct FailedReroute(pub(super) Option<Arc<Gvr>>);

/// The proxy answers with this refusal.
#[derive(Debug, Clone, Copy)]
pub struct Refused {
    pub refusal: Refusal,
    /// The server that was tried last, if any.
    pub server: Option<SocketAddr>,
}

impl Refused {
    /// No server was tried.
    pub fn untried(refusal: Refusal) -> Self {
        Self {
            refusal,
            server: None,
        }
    }
}

impl<'a> ForwardedRequest<'a> {
    pub fn new(
        context: &'a RequestContext<'a>,
        upstreams: &'a Upstreams,
        exclusive: bool,
        ready: Option<bool>,
    ) -> Self {
        Self {
            context,
            upstreams,
            exclusive,
            ready,
            failed_reroute: None,
        }
    }

    /// Whether the request may be executed twice. `exec` over WebSocket is a GET too, but no read.
    pub(super) fn is_safe(&self) -> bool {
        let reads = matches!(
            *self.context.request.method,
            Method::GET | Method::HEAD | Method::OPTIONS
        );
        reads && self.context.kind != RequestKind::Upgrade
    }

    /// What becomes of a 410 to this request.
    pub(super) fn expiry(&self, upload: &Upload) -> Expiry<'static> {
        let RequestContext { request, kind, .. } = self.context;
        let resumes = request.resume.is_some() && !request.rerouted;
        match resumes && *kind == RequestKind::Long && !upload.is_expected() {
            true => Expiry::Ask,
            false => Expiry::Pass,
        }
    }

    /// Writes the headers that are the same for every server. Returns whether the proxy client certificate is
    /// presented.
    pub(super) fn write_common_headers(&self, upload: &mut Upload) -> Result<bool, Refused> {
        let caller = self.context.request.caller;
        let Some(header) = upload.header_mut() else {
            return Err(Refused::untried(Refusal::BadTarget));
        };
        headers::for_any_server(
            self.context.shared,
            header,
            &self.context.downstream.client,
            caller,
            self.context.kind,
            self.context.request.settings,
        )
        .map_err(|error| unwritable(&error))
    }

    /// The exchange with the server of `route`, and the header that is sent there. `exclusive`: on a connection of its
    /// own.
    pub(super) fn exchange<'s>(
        &self,
        authentication: &'s Authentication<'a>,
        route: &'s Route,
        upload: &mut Upload,
        exclusive: bool,
    ) -> Result<(Exchange<'s>, Box<Parts>), Refused>
    where
        'a: 's,
    {
        self.write_exchange(authentication, route, upload, exclusive)
            .map_err(|error| unwritable(&error))
    }

    fn write_exchange<'s>(
        &self,
        authentication: &'s Authentication<'a>,
        route: &'s Route,
        upload: &mut Upload,
        exclusive: bool,
    ) -> pingora_core::Result<(Exchange<'s>, Box<Parts>)>
    where
        'a: 's,
    {
        let mut header = upload.header_to_send()?;
        let context = self.context;
        let (shared, upstreams) = (context.shared, self.upstreams);
        let caller = context.request.caller;
        let (headers, server_kind) = (&mut header.headers, route.server_kind);
        headers::for_server_kind(shared, headers, caller, server_kind)?;
        let merge_request = route
            .overlay
            .as_ref()
            .map(|overlay| overlay.begin(&shared.merge_cache, headers));
        if let Caller::User(user) = caller {
            let privileged = &shared.callers.privileged;
            privileged.stamp_details(headers, user, route.details)?;
        }
        let group = match server_kind {
            ServerKind::Local => &upstreams.local,
            ServerKind::Proxied | ServerKind::Native | ServerKind::Bare => &upstreams.peers,
        };
        let exchange = Exchange {
            context,
            route,
            group,
            destination: group.at(route.address),
            pool_choice: self.pool_choice(authentication, route),
            connection_choice: match exclusive {
                _ if self.exclusive => ConnectionChoice::NewHttp1,
                true => ConnectionChoice::New,
                false => ConnectionChoice::Any,
            },
            token: authentication.token,
            permit: authentication.permit.as_ref(),
            ready: self.ready,
            leaving: None,
            expiry: Expiry::Pass,
            merge_request: merge_request.transpose()?.flatten().map(Box::new),
        };
        Ok((exchange, header))
    }

    /// The connections that the request may use.
    fn pool_choice(&self, authentication: &Authentication<'_>, route: &Route) -> PoolChoice {
        let context = self.context;
        // Tokens and anonymous requests go to a peer's proxy with our certificate, because it believes only a peer's
        // reroute mark. An apiserver would reject an anonymous request with our certificate.
        if authentication.certificate || route.server_kind == ServerKind::Proxied {
            return PoolChoice::Certificate;
        }
        let known = authentication
            .token
            .is_some_and(|token| context.tokens.is_known(token));
        if known || !route.details.ends_anonymous {
            return PoolChoice::Shared;
        }
        let own = context.downstream.unverified_pools(self.upstreams);
        PoolChoice::Unverified(match route.server_kind {
            ServerKind::Local => own.local,
            ServerKind::Proxied | ServerKind::Native | ServerKind::Bare => own.peers,
        })
    }

    /// Passes on an answer that was kept, which `exchange` got from the server of `from`.
    pub(super) async fn pass(
        &self,
        exchange: &Exchange<'_>,
        session: &mut ClientSession,
        upload: &Upload,
        from: &Route,
        answer: &KeptAnswer,
    ) -> Delivered {
        let passing = pass_kept(exchange, answer, session, upload);
        let delivered = passing.await.into();
        self.count_answer(from, &delivered);
        delivered
    }

    pub(super) fn count_answer(&self, route: &Route, delivered: &Delivered) {
        let shared = self.context.shared;
        let (code, is_cut) = match delivered {
            Delivered::Continues(rest) => (rest.code, false),
            Delivered::Ended(Outcome::Answered { code, reusable }) => (*code, !reusable),
            Delivered::Ended(Outcome::Upgraded) => (101, false),
            Delivered::Ended(Outcome::Broken | Outcome::Declined) => return,
        };
        if self.failed_reroute.is_some() {
            shared.metrics.failed_reroute(true);
        }
        let from_peer = route.server_kind != ServerKind::Local;
        self.count_rerouted(code, from_peer.then_some(route));
        if from_peer {
            // What was cut off may have been cut off because the peer is gone.
            if !is_cut {
                shared.servers.health.answered(route.address);
            }
            shared.recent.rerouted.add(|| {
                let request = Some((self.context.request.method, self.context.request.info));
                RequestEvent::new(request, Some(route.address), code, route.row.name())
            });
            if route.overlay.is_some() {
                shared.metrics.documents.count(DocumentOutcome::Rerouted);
            }
        }
    }

    /// Whether the request is about a resource of a CRD or an aggregated API.
    pub(super) fn is_custom(&self) -> bool {
        let gvr = self.context.request.info.gvr();
        gvr.is_some_and(|gvr| self.context.shared.published.snapshot.load().is_custom(gvr))
    }

    /// Counts a request that a peer was asked for. `by`: the route to the peer that answered; `None`: another server or
    /// the proxy did, with `code`.
    pub(super) fn count_rerouted(&self, code: u16, by: Option<&Route>) {
        let failed = self.failed_reroute.as_ref();
        let gvr = by.map(|route| route.rerouted_as.as_deref());
        if let Some(gvr) = gvr.or(failed.map(|failed| failed.0.as_deref())) {
            self.context.shared.metrics.rerouted(code, gvr);
        }
    }

    /// The refusal after `failure` if no other server can be tried.
    pub(super) fn refusal(&self, failure: &ExchangeFailure, custom: bool) -> Refusal {
        match failure {
            // A peer asks whether this apiserver knows the resource, too.
            failure if failure.is_no_such_resource() && self.context.request.rerouted && custom => {
                Refusal::NotServed
            }
            failure if failure.is_no_such_resource() => Refusal::DoubtfulNotFound,
            ExchangeFailure::Terminating(_) | ExchangeFailure::Unavailable(_) => {
                Refusal::Terminating
            }
            ExchangeFailure::Unmerged => Refusal::Unmerged,
            ExchangeFailure::Frozen if self.context.request.rerouted => Refusal::PeerFrozen,
            _ => Refusal::Failed {
                maybe_executed: failure.maybe_executed() && !self.is_safe(),
            },
        }
    }
}

pub(super) fn unwritable(error: &pingora_core::Error) -> Refused {
    static LOG_RATE: LogRateLimit = LogRateLimit::new();
    if let Some(left_out) = LOG_RATE.admit() {
        tracing::warn!(error = %RedactedError(error), left_out, "request headers cannot be written");
    }
    Refused::untried(Refusal::BadTarget)
}
