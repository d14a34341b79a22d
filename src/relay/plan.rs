//! Where a request goes: to which server first, and to which next when one cannot answer; or why to none.
//!
//! Each plan reads the table with the current state: a local apiserver that was found down meanwhile is no longer
//! initialized. The snapshot is released here, so that a watch that stays open for days does not keep an old cluster in
//! memory. No effect but on counters.

mod documents;

use std::cmp::Reverse;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Method;

use crate::config::{Enforce, IfReadyConfig, IfReadyMode};
use crate::kube::gvr::Gvr;
use crate::kube::version::KubernetesVersion;
use crate::relay::answer::Refusal;
use crate::relay::context::RequestContext;
use crate::relay::documents::Overlay;
use crate::relay::shared::Shared;
use crate::relay::upstream::health::Health;
use crate::request::credential::{self, CredentialFeatures};
use crate::request::info::{RequestInfo, Verb};
use crate::routing::decide::{
    self, Decision, LocalServer, NoSuchResource, RoutingInput, Row, ServerChoice, decide,
};
use crate::routing::fit::Fit;
use crate::routing::table::{Server, ServerKind, Snapshot};

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
    pub patience: Option<Patience>,
    /// `X-Kubernetes-Ready` on the answer, for a client that asked.
    pub ready: Option<bool>,
}

/// How long an answer may take to begin: longer if everything is slow.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    pub least: Duration,
    pub most: Duration,
}

impl Patience {
    /// The request has taken `so_far`.
    pub fn after(self, so_far: Duration) -> Duration {
        (4 * so_far).clamp(self.least, self.most)
    }
}

/// Plans a request, again after the servers at `tried` could not answer. `last`: the refusal if no other server can be
/// tried. The row is that of the table, if the table was asked.
pub fn plan(
    context: &RequestContext<'_>,
    tried: &[SocketAddr],
    last: Option<Refusal>,
) -> (Option<Row>, Result<Box<Route>, Refusal>) {
    let shared = context.shared;
    let initialized = shared.local.is_initialized();
    let config = &context.settings.if_ready;
    if is_held_back(config, context.path, context.if_ready, initialized) {
        return (None, Err(Refusal::NotInitialized));
    }
    let reads = matches!(context.method, Method::GET | Method::HEAD);
    if context.path == "/readyz" && reads && !shared.is_ready() {
        return (None, Err(unreadiness(shared)));
    }
    let snapshot = shared.published.snapshot.load();
    let planning = Planning {
        ready: context.if_ready.then_some(initialized),
        ..Planning::new(context, &snapshot, tried)
    };
    if let Some(route) = documents::plan(&planning, last) {
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
    if shared.shutdown.is_leaving() {
        Refusal::NotReady
    } else if local.can_be_asked() && !local.trusts_proxy() {
        Refusal::NotBelieved
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
    let next = || plan(context, &tried, Some(Refusal::Unreachable)).1;
    let frozen = &context.shared.servers.frozen;
    context.rerouted || next().is_ok_and(|route| !frozen.is_suspected(route.address))
}

/// Where a watch goes after a server has answered 410; `tried`: the servers that were asked. None waits for a server from
/// which nothing comes: there is an answer.
pub fn after_expiry(context: &RequestContext<'_>, tried: &[SocketAddr]) -> Option<Route> {
    let snapshot = context.shared.published.snapshot.load();
    let planning = Planning::new(context, &snapshot, tried);
    if planning.is_tied() {
        return None;
    }
    let (question, local) = planning.question();
    let policy = (&context.settings).into();
    let route = planning.route(&decide::after_expiry(question, policy, local, &snapshot)?)?;
    let frozen = &context.shared.servers.frozen;
    (!frozen.is_suspected(route.address)).then_some(route)
}

/// What a plan is made of.
#[derive(Clone, Copy)]
struct Planning<'a> {
    context: &'a RequestContext<'a>,
    snapshot: &'a Snapshot,
    /// Servers that could not answer.
    tried: &'a [SocketAddr],
    /// The local apiserver is not tried last.
    local_serves: bool,
    /// See [`Route::ready`].
    ready: Option<bool>,
}

impl<'a> Planning<'a> {
    fn new(
        context: &'a RequestContext<'a>,
        snapshot: &'a Snapshot,
        tried: &'a [SocketAddr],
    ) -> Self {
        Self {
            context,
            snapshot,
            tried,
            local_serves: context.shared.local_serves(context.rerouted),
            ready: None,
        }
    }

    /// What the routing table says.
    fn decision(&self) -> Decision<'a> {
        let (context, snapshot) = (self.context, self.snapshot);
        let shared = context.shared;
        let (question, local) = self.question();
        let policy = (&context.settings).into();
        let decision = decide(question, policy, local, snapshot, || shared.is_stale());
        let only = |to| Decision {
            to,
            then: ServerChoice::Nowhere,
            finally: ServerChoice::Nowhere,
            ..decision.clone()
        };
        if context.rerouted && self.is_watch() && shared.local.is_history_void() {
            return only(ServerChoice::Nowhere);
        }
        if self.is_tied() {
            return only(ServerChoice::Local);
        }
        match !self.local_serves && shared.shutdown.is_draining() && self.is_same_everywhere() {
            true => Decision {
                to: ServerChoice::Peers(&snapshot.targets, None),
                then: ServerChoice::Local,
                ..decision
            },
            false => decision,
        }
    }

    /// What the routing table is asked.
    fn question(&self) -> (RoutingInput<'a>, LocalServer) {
        let context = self.context;
        let question = RoutingInput {
            resource: context.info.gvr(),
            rerouted: context.rerouted,
            resume: context.resume,
            version: context.version.unwrap_or_default(),
        };
        let history_start = |_| context.shared.local.history_start();
        let local = LocalServer {
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
        let (context, snapshot) = (self.context, self.snapshot);
        let local = &context.shared.local;
        let tied = |since| !local.may_resume_elsewhere(since) && !context.rerouted;
        let is_local = |gvr| {
            let holders = snapshot.holders(gvr);
            !snapshot.local_known
                || holders.map_or_else(|| snapshot.is_custom(gvr), |(_, holders)| holders.local)
        };
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
        let (info, custom) = (&self.context.info, &self.snapshot.custom);
        let name = |gvr: Option<&Arc<Gvr>>| {
            let custom = || custom.name_of(info.gvr()?).map(Arc::new);
            gvr.cloned().or_else(custom)
        };
        let to = |place: &ServerChoice<'_>, no_such_resource| {
            let (route, rerouted_as) = match *place {
                ServerChoice::Local => (self.local()?, None),
                ServerChoice::Peers(indices, gvr) => {
                    (self.to(self.server(indices, None, None)?), name(gvr))
                }
                ServerChoice::Fitting(indices, gvr, version) => (
                    self.to(self.server(indices, Some(version), None)?),
                    Some(gvr.clone()),
                ),
                ServerChoice::Historians(indices, gvr, since) => {
                    (self.to(self.server(indices, None, Some(since))?), name(gvr))
                }
                ServerChoice::Nowhere => return None,
            };
            Some(Route {
                rerouted_as,
                no_such_resource,
                row: decision.row,
                ..route
            })
        };
        let (first, later) = match is_proxied_path(info, self.snapshot) {
            true => (NoSuchResource::Pass, NoSuchResource::Pass),
            false => (decision.no_such_resource, NoSuchResource::Doubt),
        };
        to(&decision.to, first)
            .or_else(|| to(&decision.then, later))
            .or_else(|| to(&decision.finally, later))
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

    /// One of the servers at `indices` that was not tried. `version`: the version to fit; `since`: the etcd revision that its
    /// history must reach back to.
    fn server(
        &self,
        indices: &[usize],
        version: Option<KubernetesVersion>,
        since: Option<i64>,
    ) -> Option<&'a Server> {
        let servers = indices.iter();
        let servers = servers.filter_map(|index| self.snapshot.servers.get(*index));
        let untried = servers.filter(|server| {
            let void = self.is_watch() && server.history_void;
            let left_out = void || self.tried.contains(&server.endpoint);
            !left_out && since.is_none_or(|since| server.reaches(since))
        });
        let shared = self.context.shared;
        let seed = self.context.downstream.client.seed;
        choose(untried, version, seed, &shared.servers.health)
    }
}

/// Whether the request goes through an apiserver's `proxy` subresource: its 404s are not the apiserver's.
fn is_proxied_path(info: &RequestInfo<'_>, snapshot: &Snapshot) -> bool {
    let listed = |gvr| {
        let listed = snapshot.holders(gvr);
        listed.is_some_and(|(_, holders)| holders.local || !holders.targets.is_empty())
    };
    let proxies = |gvr| listed(gvr) && gvr.subresource == "proxy";
    info.verb == Verb::Proxy || info.gvr().is_some_and(proxies)
}

/// Chooses one of several servers by rendezvous hashing: the servers that fit the version best come first, those
/// that are unhealthy or not ready last. All requests of a connection get the same server while the servers stay the same.
/// When a server goes away, its connections spread over all that are left. `seed`: nobody outside knows it.
fn choose<'s>(
    servers: impl Iterator<Item = &'s Server>,
    version: Option<KubernetesVersion>,
    seed: u64,
    health: &Health,
) -> Option<&'s Server> {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    servers.max_by_key(|server| {
        let fit = version.map(|wanted| Reverse(Fit::of(server.version, wanted)));
        let healthy = server.ready && !health.is_suspect(server.endpoint);
        (fit, healthy, hasher.hash_one((seed, server.endpoint)))
    })
}

#[cfg(test)]
mod tests;
