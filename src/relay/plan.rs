//! What a request is, and where it goes: to which server first, and to which next when one cannot answer; or why to none.
//!
//! Each plan reads the table with the current state: a local apiserver that was found down meanwhile is no longer
//! initialized. The snapshot is released here, so that a watch that stays open for days does not keep an old cluster in
//! memory. No effect but on counters.

mod documents;
pub mod version;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method};
use pingora_http::ResponseHeader;

use self::version::choose;
use crate::config::settings::Settings;
use crate::config::{Enforce, IfReadyConfig, IfReadyMode};
use crate::kube::gvr::{Gvr, GvrRef};
use crate::kube::version::MalformedVersion;
use crate::relay::answer::Refusal;
use crate::relay::client::Downstream;
use crate::relay::documents::Overlay;
use crate::relay::observe::RequestMeter;
use crate::relay::shared::Shared;
use crate::relay::upstream::{RequestKind, Tokens, Upstreams};
use crate::request::again::WatchRequest;
use crate::request::caller::Caller;
use crate::request::credential::{self, CredentialFeatures};
use crate::request::headers::{SERVER_ID, version_asked};
use crate::request::info::{RequestInfo, Target, Verb};
use crate::routing::decide::{
    self, Decision, LocalServer, NoSuchResource, Peers, RoutingInput, Row, ServerChoice, decide,
};
use crate::routing::hand_over::StoppedWatch;
use crate::routing::table::{Holders, Server, ServerKind, Snapshot};
use crate::routing::versions::Wanted;

/// A request that was read: who asks, what for, and where it came from. [`crate::relay::service`] makes it and lends it to
/// the plan, to the loop over servers, and to each exchange.
pub struct RequestContext<'a> {
    pub shared: &'a Shared,
    /// Connections to servers.
    pub upstreams: Arc<Upstreams>,
    /// Tokens that apiservers have accepted.
    pub tokens: &'a Tokens,
    /// The client's connection.
    pub downstream: Arc<Downstream>,
    /// Those in force when it began.
    pub settings: Settings,
    pub caller: Caller,
    pub method: Method,
    /// As on the wire.
    pub path: &'a str,
    pub query: Option<&'a str>,
    pub info: RequestInfo<'a>,
    pub kind: RequestKind,
    /// A peer has rerouted it once.
    pub rerouted: bool,
    /// The etcd revision after which a watch continues.
    pub resume: Option<i64>,
    /// Of a watch: what another server would be asked for if its own stops.
    pub again: Option<Arc<WatchRequest>>,
    /// Which versions it prefers, once it was planned.
    pub wanted: Result<Option<Wanted>, MalformedVersion>,
    /// It has the header `X-Kubernetes-If-Ready`, and that is looked at.
    pub if_ready: bool,
    /// The first `Accept` header, the only one that kube-apiserver reads.
    pub accept: Option<HeaderValue>,
    /// Counts it when its answer begins.
    pub meter: RequestMeter<'a>,
}

impl RequestContext<'_> {
    /// Says in an answer that a proxy is here, and which one, if a peer may seek that: it takes this server for an apiserver.
    pub fn name_proxy(&self, answer: &mut ResponseHeader) -> pingora_core::Result<()> {
        match self.caller == Caller::Peer && !self.rerouted {
            true => answer.insert_header(SERVER_ID, self.shared.server_id_header()),
            false => Ok(()),
        }
    }

    /// Whether it may be executed twice. `exec` over WebSocket is a GET too, but no read.
    pub fn is_safe(&self) -> bool {
        let reads = matches!(self.method, Method::GET | Method::HEAD | Method::OPTIONS);
        reads && self.kind != RequestKind::Upgrade
    }

    /// Whether its client may take as long as it likes.
    pub fn is_unlimited(&self) -> bool {
        self.kind != RequestKind::Short || self.info.is_unlimited()
    }

    /// Whether its connection ends with the answer, as it would at an apiserver. `is_unauthorized`: the apiserver, or this
    /// proxy, does not accept the caller; `ends_anonymous`: an apiserver like that ends connections of anonymous callers.
    pub fn ends_connection(&self, is_unauthorized: bool, ends_anonymous: bool) -> bool {
        match self.caller {
            Caller::Peer => false,
            Caller::Anonymous if ends_anonymous => true,
            _ => is_unauthorized,
        }
    }

    /// Which versions it prefers, if only so many such requests may be under way.
    pub fn bounded(&self) -> Option<Wanted> {
        self.wanted.ok().flatten().filter(|it| it.is_bounded())
    }

    /// Whether it is about a resource of a CRD or an aggregated API.
    pub fn is_custom(&self) -> bool {
        let snapshot = || self.shared.published.snapshot.load();
        let gvr = self.info.gvr();
        gvr.is_some_and(|gvr| snapshot().is_custom(gvr))
    }
}

/// Where a request is sent.
#[derive(Clone)]
pub struct Route {
    pub server_kind: ServerKind,
    pub address: SocketAddr,
    /// For the counter of rerouted requests: the resource's name, as discovery or etcd has it.
    pub rerouted_as: Option<Arc<Gvr>>,
    /// What becomes of "no such resource".
    pub no_such_resource: NoSuchResource,
    /// For discovery documents to which other servers may add something.
    pub overlay: Option<Box<Overlay>>,
    /// Which details of certificate users the apiserver there knows.
    pub details: CredentialFeatures,
    /// The row of the routing table that led there.
    pub row: Row,
    /// How long the answer may take to begin; `None`: for ever.
    pub patience: Option<Duration>,
    /// `X-Kubernetes-Ready` on the answer, for a client that asked.
    pub ready: Option<bool>,
}

type Planned = (Option<Row>, Result<Box<Route>, Refusal>);

/// Plans a request that nobody was asked for yet. The row is that of the table, if the table was asked.
pub fn first(context: &mut RequestContext<'_>, headers: &HeaderMap) -> Planned {
    let shared = context.shared;
    let snapshot = shared.published.snapshot.load();
    // The version that its header names; else, while versions differ, the one that `version` says.
    if context.settings.version_awareness {
        let asked = version_asked(headers, &shared.config.version_awareness.header);
        let unasked = |window| version::unasked(context, headers, window, &snapshot);
        context.wanted = asked.map(|asked| match asked {
            Some(version) => Some(Wanted::Version(version)),
            None => snapshot.window.and_then(unasked),
        });
    }
    plan(context, &snapshot, &[], None)
}

/// Plans a request again, after the servers at `tried` could not answer. `last`: the refusal if no other server can be tried.
pub fn next(
    context: &RequestContext<'_>,
    tried: &[SocketAddr],
    last: Refusal,
) -> Result<Box<Route>, Refusal> {
    let snapshot = context.shared.published.snapshot.load();
    plan(context, &snapshot, tried, Some(last)).1
}

fn plan(
    context: &RequestContext<'_>,
    snapshot: &Snapshot,
    tried: &[SocketAddr],
    last: Option<Refusal>,
) -> Planned {
    let shared = context.shared;
    let initialized = shared.local.is_initialized();
    let config = &context.settings.if_ready;
    if is_held_back(config, context.path, context.if_ready, initialized) {
        return (None, Err(Refusal::NotInitialized));
    }
    if context.wanted.is_err() && !context.rerouted {
        return (None, Err(Refusal::BadVersion));
    }
    let reads = matches!(context.method, Method::GET | Method::HEAD);
    if context.path == "/readyz" && reads && !shared.is_ready() {
        return (None, Err(unreadiness(shared)));
    }
    let planning = Planning {
        ready: context.if_ready.then_some(initialized),
        ..Planning::new(context, snapshot, tried)
    };
    if let Target::Discovery(document) = &context.info.target
        && let Some(route) = documents::plan(&planning, document, last)
    {
        return (Some(Row::NotAResource), route.map(Box::new));
    }
    let decision = planning.decision();
    if decision.row == Row::Unreachable && last.is_none() {
        let listed = context.info.gvr().and_then(|gvr| snapshot.holders(gvr));
        let code = Refusal::Unreachable.code();
        shared.metrics.rerouted(code, listed.map(|(gvr, _)| &**gvr));
    }
    let refusal = || match decision.row {
        Row::Rerouted => shared.local_refusal(),
        Row::Unsynced => Refusal::Unsynced,
        _ => Refusal::Unreachable,
    };
    let route = planning.route(&decision).map(Box::new);
    if let Some(wanted) = context.bounded()
        && let Some(route) = route.as_ref().filter(|_| tried.is_empty())
    {
        version::count_left(context, snapshot, route, wanted);
    }
    (
        Some(decision.row),
        route.ok_or_else(|| last.unwrap_or_else(refusal)),
    )
}

/// `X-Kubernetes-If-Ready` (KEP-3028): whether the request is refused because the apiserver is not initialized. `asked`: it
/// has the header, with any value.
pub fn is_held_back(config: &IfReadyConfig, path: &str, asked: bool, initialized: bool) -> bool {
    let always = || config.enforce == Enforce::Always && !is_exempt(path);
    !initialized && config.enabled && config.mode == IfReadyMode::Retry && (asked || always())
}

/// Requests that are useful before an apiserver is up: they are refused only if they have the header.
fn is_exempt(path: &str) -> bool {
    let first = path.strip_prefix('/').unwrap_or(path);
    let first = first.split_once('/').map_or(first, |(first, _)| first);
    matches!(first, "livez" | "readyz" | "healthz" | "metrics") || path == "/version"
}

/// What `/readyz` says while the proxy is not ready.
fn unreadiness(shared: &Shared) -> Refusal {
    let local = &shared.local;
    if shared.shutdown.missing().is_some() {
        Refusal::NotReady
    } else if local.can_be_asked() && !local.trusts_proxy() {
        Refusal::CredentialsRejected
    } else if local.is_ready() {
        Refusal::NotPublished
    } else {
        Refusal::NotReady
    }
}

/// Whether no server lists the resource, as the snapshot says now.
pub fn is_nobodys(context: &RequestContext<'_>) -> bool {
    let snapshot = context.shared.published.snapshot.load();
    Planning::new(context, &snapshot, &[]).decision().row == Row::Nobody
}

/// Whether a request that waits for the frozen server `at` can be sent to another one. A peer's proxy sends it on itself.
pub fn can_leave(context: &RequestContext<'_>, at: SocketAddr, tried: &[SocketAddr]) -> bool {
    let tried = [tried, &[at]].concat();
    let next = || next(context, &tried, Refusal::Unreachable);
    let frozen = &context.shared.servers.frozen;
    context.rerouted || next().is_ok_and(|route| !frozen.is_suspected(route.address))
}

/// Where a request goes that other servers may answer better; `tried`: the servers that were asked. `misunderstood_by`: to
/// a newer server than that one, which does not understand it; `None`: to one with the history of a watch, after a 410. None
/// waits for a server from which nothing comes: there is an answer. `ready`: as for the server before.
pub fn elsewhere(
    context: &RequestContext<'_>,
    tried: &[SocketAddr],
    ready: Option<bool>,
    misunderstood_by: Option<&Route>,
) -> Option<Box<Route>> {
    let snapshot = context.shared.published.snapshot.load();
    let planning = Planning {
        ready,
        ..Planning::new(context, &snapshot, tried)
    };
    if planning.is_tied() {
        return None;
    }
    let (question, local) = planning.question();
    let settings = &context.settings;
    let decision = match misunderstood_by {
        None => decide::after_expiry(question, settings, local, &snapshot)?,
        Some(at) => {
            let mut servers = snapshot.servers.iter();
            let than = match at.server_kind {
                ServerKind::Local => snapshot.local_version,
                _ => servers.find(|it| it.endpoint == at.address)?.told_version(),
            };
            decide::among_newer(question, settings, local, &snapshot, than)?
        }
    };
    let frozen = &context.shared.servers.frozen;
    let route = planning.route(&decision);
    let route = route.filter(|route| !frozen.is_suspected(route.address));
    route.map(Box::new)
}

/// Whether this revision is of the history that etcd has now, as far as it is known: that of an apiserver reaches back to it.
pub fn is_of_this_etcd(context: &RequestContext<'_>, revision: i64) -> bool {
    let snapshot = context.shared.published.snapshot.load();
    let mut servers = snapshot.servers.iter();
    context.shared.local.history_start() <= revision
        || servers.any(|server| !server.history_void && server.reaches(revision))
}

/// Who goes on with a watch that `from` has served; `kept`: a peer that it has waited for; `tried`: servers that do not. Nothing is
/// asked of a server that is suspected to be frozen. If there is none, see [`StoppedWatch::histories`].
pub fn successor(
    shared: &Shared,
    (watch, from, seed): (&StoppedWatch<'_>, SocketAddr, u64),
    kept: Option<SocketAddr>,
    tried: &[SocketAddr],
) -> Result<SocketAddr, Option<i64>> {
    let snapshot = shared.published.snapshot.load();
    let (own, address) = (&shared.local, shared.config.api_server.address);
    let lacks_etcd = own.lacks_etcd() && snapshot.has_ready_target();
    let local = LocalServer {
        epoch: own.epoch(),
        initialized: own.serves() && !lacks_etcd && !own.is_shutting_down(),
        history_start: own.history_start(),
    };
    if watch.suits_local(&snapshot, local) && !tried.contains(&address) {
        return Ok(address);
    }
    let reroutes = shared.settings.load().rerouting && snapshot.synced;
    let is_asked = |peer: &Server| reroutes && !tried.contains(&peer.endpoint);
    let frozen = &shared.servers.frozen;
    let peers = || {
        let peers = watch.suitable(&snapshot);
        peers.filter(|peer| is_asked(peer) && !frozen.is_suspected(peer.endpoint))
    };
    let health = &shared.servers.health;
    let is_kept = |peer: SocketAddr| kept == Some(peer) && !health.is_suspect(peer);
    let kept = peers().find(|peer| is_kept(peer.endpoint));
    let peer = kept.or_else(|| choose(peers(), Peers::any(&[]), seed, health));
    peer.map(|peer| peer.endpoint)
        .ok_or_else(|| watch.histories(&snapshot, local, from, is_asked))
}

/// How `server` is asked to go on with a watch of `resource`.
pub fn to_successor(
    context: &RequestContext<'_>,
    resource: GvrRef<'_>,
    server: SocketAddr,
) -> Option<Route> {
    let snapshot = context.shared.published.snapshot.load();
    let planning = Planning::new(context, &snapshot, &[]);
    let route = match server == context.shared.config.api_server.address {
        true => planning.local()?,
        false => {
            let mut servers = snapshot.servers.iter();
            let peer = servers.find(|it| it.target && it.endpoint == server)?;
            Route {
                rerouted_as: snapshot.name_of(resource),
                ..planning.to(peer)
            }
        }
    };
    Some(Route {
        row: Row::Resume,
        ..route
    })
}

/// What a plan is made of.
#[derive(Clone, Copy)]
struct Planning<'a> {
    context: &'a RequestContext<'a>,
    snapshot: &'a Snapshot,
    /// Servers that could not answer.
    tried: &'a [SocketAddr],
    /// Requests go to the local apiserver first. One that has lost its etcd comes after peers that say that they are ready.
    local_serves: bool,
    /// See [`Route::ready`].
    ready: Option<bool>,
    /// Its preferred version does not count.
    is_crowded: bool,
}

fn local_serves(context: &RequestContext<'_>, snapshot: &Snapshot) -> bool {
    let local = &context.shared.local;
    // The proxy that a request was rerouted by knows whether there are others.
    let lacks_etcd = || local.lacks_etcd() && !context.rerouted && snapshot.has_ready_target();
    local.serves() && !lacks_etcd()
}

/// Whether the local apiserver would serve the request if its version did not count.
pub fn may_stay(context: &RequestContext<'_>) -> bool {
    let snapshot = context.shared.published.snapshot.load();
    let holders = context.info.gvr().and_then(|gvr| snapshot.holders(gvr));
    holders.is_some_and(|(_, it)| it.local) && local_serves(context, &snapshot)
}

impl<'a> Planning<'a> {
    fn new(
        context: &'a RequestContext<'a>,
        snapshot: &'a Snapshot,
        tried: &'a [SocketAddr],
    ) -> Self {
        let local_serves = local_serves(context, snapshot);
        Self {
            context,
            snapshot,
            tried,
            local_serves,
            ready: None,
            is_crowded: local_serves && context.bounded().is_some() && version::is_crowded(context),
        }
    }

    /// What the routing table says.
    fn decision(&self) -> Decision<'a> {
        let (context, snapshot) = (self.context, self.snapshot);
        let shared = context.shared;
        let (question, own) = self.question();
        let stale = || shared.is_stale();
        let decision = decide(question, &context.settings, own, snapshot, stale);
        let (local, targets) = (ServerChoice::Local, Peers::any(&snapshot.targets));
        let nowhere = ServerChoice::Nowhere;
        let order = if context.rerouted && self.is_watch() && shared.local.is_history_void() {
            [nowhere; 3]
        } else if self.is_tied() {
            [local, nowhere, nowhere]
        } else if !self.local_serves && shared.shutdown.is_draining() && self.is_same_everywhere() {
            [ServerChoice::Peers(targets), local, nowhere]
        } else {
            decision.order
        };
        Decision { order, ..decision }
    }

    /// What the routing table is asked.
    fn question(&self) -> (RoutingInput<'a>, LocalServer) {
        let context = self.context;
        let question = RoutingInput {
            resource: context.info.gvr(),
            rerouted: context.rerouted,
            resume: context.resume,
            wanted: context
                .wanted
                .unwrap_or_default()
                .filter(|_| !self.is_crowded),
        };
        let history_start = |_| context.shared.local.history_start();
        let local = LocalServer {
            epoch: context.shared.local.epoch(),
            initialized: self.local_serves,
            history_start: context.resume.map_or(i64::MAX, history_start),
        };
        (question, local)
    }

    fn is_watch(&self) -> bool {
        self.context.info.verb == Verb::Watch
    }

    /// Whether only the local apiserver may answer a watch that is resumed: after etcd was restored or replaced, until it
    /// is clear that the watch began after that.
    fn is_tied(&self) -> bool {
        let context = self.context;
        let local = &context.shared.local;
        let tied = |since| !local.may_resume_elsewhere(since) && !context.rerouted;
        let is_local = |gvr| self.snapshot.may_be_local(gvr);
        context.resume.is_some_and(tied) && context.info.gvr().is_some_and(is_local)
    }

    /// Whether a path that is not a resource means the same at every apiserver: unlike health, metrics and logs.
    fn is_same_everywhere(&self) -> bool {
        let (context, path) = (self.context, self.context.path);
        context.info.gvr().is_none()
            && !context.rerouted
            && context.settings.rerouting
            && (path == "/version"
                || path.starts_with("/.well-known/")
                || path.starts_with("/openid/"))
    }

    /// The first destination of a decision that was not tried. One that is suspected to be frozen comes last.
    fn route(&self, decision: &Decision<'a>) -> Option<Route> {
        let route = self.destination(decision)?;
        let frozen = &self.context.shared.servers.frozen;
        if !frozen.is_suspected(route.address) {
            return Some(route);
        }
        let avoided = [&frozen.suspected(), self.tried].concat();
        let planning = Planning {
            tried: &avoided,
            ..*self
        };
        planning.destination(decision).or(Some(route))
    }

    fn destination(&self, decision: &Decision<'_>) -> Option<Route> {
        let info = &self.context.info;
        let name = || info.gvr().and_then(|gvr| self.snapshot.name_of(gvr));
        let to = |choice: &ServerChoice<'_>, no_such_resource| {
            let (route, rerouted_as) = match *choice {
                ServerChoice::Local => (self.local()?, None),
                ServerChoice::Peers(peers) => (self.to(self.server(peers)?), name()),
                ServerChoice::Nowhere => return None,
            };
            Some(Route {
                rerouted_as,
                no_such_resource,
                row: decision.row,
                ..route
            })
        };
        let (first, later) = match is_proxied_path(&self.context.info, self.snapshot) {
            true => (NoSuchResource::Pass, NoSuchResource::Pass),
            false => (decision.no_such_resource, NoSuchResource::Doubt),
        };
        let [next, others @ ..] = &decision.order;
        let mut others = others.iter().chain([&decision.last]);
        to(next, first).or_else(|| others.find_map(|choice| to(choice, later)))
    }

    /// To the local apiserver, unless it was tried.
    fn local(&self) -> Option<Route> {
        let shared = self.context.shared;
        let address = shared.config.api_server.address;
        let details = || shared.local.user_details();
        let untried = !self.tried.contains(&address);
        untried.then(|| self.at(ServerKind::Local, address, details()))
    }

    fn to(&self, server: &Server) -> Route {
        let version = server.binary_version.as_deref();
        let details = version.map(credential::details).unwrap_or_default();
        self.at(server.kind, server.endpoint, details)
    }

    fn at(
        &self,
        server_kind: ServerKind,
        address: SocketAddr,
        details: CredentialFeatures,
    ) -> Route {
        Route {
            server_kind,
            address,
            rerouted_as: None,
            no_such_resource: NoSuchResource::Doubt,
            overlay: None,
            details,
            row: Row::NotAResource,
            patience: None,
            ready: self.ready,
        }
    }

    /// Whether the client may go on, where a history is in order, from what a void one would tell it.
    fn needs_order(&self) -> bool {
        let info = &self.context.info;
        let goes_on = |gvr| self.snapshot.may_go_on_in_order(gvr);
        match info.verb {
            Verb::Watch => true,
            // Newer apiservers list what etcd has lost, at a revision of the restored etcd.
            Verb::List => info.gvr().is_some_and(goes_on),
            _ => false,
        }
    }

    /// One of `peers` that was not tried.
    fn server(&self, peers: Peers<'_>) -> Option<&'a Server> {
        let servers = peers.indices.iter();
        let servers = servers.filter_map(|index| self.snapshot.servers.get(*index));
        let untried = servers.filter(|server| {
            let void = server.history_void && self.needs_order();
            let left_out = void || self.tried.contains(&server.endpoint);
            !left_out && peers.since.is_none_or(|since| server.reaches(since))
        });
        let seed = self.context.downstream.client.seed;
        choose(untried, peers, seed, &self.context.shared.servers.health)
    }
}

/// Whether the request goes through an apiserver's `proxy` subresource: its 404s are not the apiserver's.
fn is_proxied_path(info: &RequestInfo<'_>, snapshot: &Snapshot) -> bool {
    let has_proxies = |(_, holders): (_, &Holders)| holders.local || !holders.targets.is_empty();
    let listed = || info.gvr().and_then(|gvr| snapshot.holders(gvr));
    info.is_proxied() && (info.verb == Verb::Proxy || listed().is_some_and(has_proxies))
}

#[cfg(test)]
mod tests;
