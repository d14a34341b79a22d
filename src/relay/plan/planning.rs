//! Plans what to do with a request: answer it, or forward it to one server; and, when that server cannot answer, to
//! which server next.
//!
//! Each plan reads the table with the current state: a local apiserver that was found down meanwhile is no longer
//! initialized. The snapshot is released here, so that a watch that stays open for days does not keep an old cluster in
//! memory.

use std::net::SocketAddr;
use std::sync::Arc;

use http::Method;

use super::documents;
use super::if_ready::{Gate, gate};
use super::route::{Action, Candidates, Plan, Route, RouteRequest};
use crate::relay::answer::Refusal;
use crate::relay::shared::Shared;
use crate::request::caller::Caller;
use crate::request::info::{RequestInfo, Verb};
use crate::routing::decide::{
    self, Decision, LocalServer, NoSuchResource, RoutingInput, Row, ServerChoice, decide,
};
use crate::routing::table::Snapshot;

/// Plans a request. No effect but on counters.
pub fn plan(shared: &Shared, request: &RouteRequest<'_>) -> Plan {
    gated(shared, request, |initialized| {
        match refusal(shared, request) {
            Some(refusal) => (None, Action::Answer(refusal)),
            None => {
                let (row, action) = first(shared, request, initialized);
                (Some(row), action)
            }
        }
    })
}

/// The result of `action` if the request may pass now. Its argument: the local apiserver is not tried last.
fn gated(
    shared: &Shared,
    request: &RouteRequest<'_>,
    action: impl FnOnce(bool) -> (Option<Row>, Action),
) -> Plan {
    let initialized = shared.local.is_initialized();
    let config = &request.settings.if_ready;
    match gate(config, request.path, request.if_ready, initialized) {
        Gate::Refuse { ready } => Plan {
            ready,
            row: None,
            action: Action::Answer(Refusal::NotInitialized),
        },
        Gate::Pass { ready } => {
            let (row, action) = action(shared.local_serves(request.rerouted));
            Plan { ready, row, action }
        }
    }
}

/// Refuses what needs no routing.
fn refusal(shared: &Shared, request: &RouteRequest<'_>) -> Option<Refusal> {
    let reads = matches!(*request.method, Method::GET | Method::HEAD);
    if !request.well_formed {
        Some(Refusal::BadTarget)
    } else if *request.caller == Caller::Unverifiable {
        Some(Refusal::Unauthorized)
    } else if request.path == "/readyz" && reads && !shared.is_ready() {
        Some(unreadiness(shared))
    } else if request.version.is_err() && !request.rerouted {
        Some(Refusal::BadVersion)
    } else {
        None
    }
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

fn first(shared: &Shared, request: &RouteRequest<'_>, initialized: bool) -> (Row, Action) {
    let snapshot = shared.published.snapshot.load();
    if let Some(action) = documents::first(shared, request, initialized, &snapshot) {
        return (Row::NotAResource, action);
    }
    let decision = ask(shared, request, initialized, &snapshot);
    if decision.row == Row::Unreachable {
        let listed = request.info.gvr().and_then(|gvr| snapshot.holders(gvr));
        let code = Refusal::Unreachable.code();
        shared.metrics.rerouted(code, listed.map(|(gvr, _)| &**gvr));
    }
    let action = match route(shared, request, &decision, &snapshot, &[]) {
        Some(route) => Action::forward(route),
        None => Action::Answer(match decision.row {
            Row::Rerouted => shared.local_refusal(),
            Row::Unsynced => Refusal::Unsynced,
            _ => Refusal::Unreachable,
        }),
    };
    (decision.row, action)
}

/// Plans again after the servers at `tried` could not answer. `last`: the refusal if no other server can be tried.
pub fn next(
    shared: &Shared,
    request: &RouteRequest<'_>,
    tried: &[SocketAddr],
    last: Refusal,
) -> Plan {
    gated(shared, request, |initialized| {
        let snapshot = shared.published.snapshot.load();
        if let Some(action) = documents::next(shared, request, initialized, &snapshot, tried, last)
        {
            return (Some(Row::NotAResource), action);
        }
        let decision = ask(shared, request, initialized, &snapshot);
        let route = route(shared, request, &decision, &snapshot, tried);
        let action = route.map_or(Action::Answer(last), Action::forward);
        (Some(decision.row), action)
    })
}

/// Whether no server lists the resource, as the snapshot says now.
pub fn is_nobodys(shared: &Shared, request: &RouteRequest<'_>) -> bool {
    let snapshot = shared.published.snapshot.load();
    let serves = shared.local_serves(request.rerouted);
    ask(shared, request, serves, &snapshot).row == Row::Nobody
}

/// Whether a request that waits for the frozen server `at` can be sent to another one. A peer's proxy sends it on itself.
pub fn can_leave(
    shared: &Shared,
    request: &RouteRequest<'_>,
    at: SocketAddr,
    tried: &[SocketAddr],
) -> bool {
    let tried = [tried, &[at]].concat();
    let next = || next(shared, request, &tried, Refusal::Unreachable).action;
    let answers = |route: &Route| !shared.servers.frozen.is_suspected(route.address);
    request.rerouted || matches!(next(), Action::Forward(route) if answers(&route))
}

/// Where a watch goes after a server has answered 410; `tried`: the servers that were asked. None waits for a server from
/// which nothing comes: there is an answer.
pub fn after_expiry(
    shared: &Shared,
    request: &RouteRequest<'_>,
    tried: &[SocketAddr],
) -> Option<Route> {
    let initialized = shared.local_serves(request.rerouted);
    let snapshot = shared.published.snapshot.load();
    if is_tied(shared, request, &snapshot) {
        return None;
    }
    let (question, local) = question(shared, request, initialized);
    let decision = decide::after_expiry(question, request.settings.into(), local, &snapshot)?;
    let route = route(shared, request, &decision, &snapshot, tried);
    route.filter(|route| !shared.servers.frozen.is_suspected(route.address))
}

fn ask<'s>(
    shared: &Shared,
    request: &RouteRequest<'_>,
    initialized: bool,
    snapshot: &'s Snapshot,
) -> Decision<'s> {
    let (question, local) = question(shared, request, initialized);
    let stale = || shared.is_stale();
    let decision = decide(question, request.settings.into(), local, snapshot, stale);
    let only = |to| Decision {
        to,
        then: ServerChoice::Nowhere,
        finally: ServerChoice::Nowhere,
        ..decision.clone()
    };
    if request.rerouted && is_watch(request) && shared.local.is_history_void() {
        return only(ServerChoice::Nowhere);
    }
    if is_tied(shared, request, snapshot) {
        return only(ServerChoice::Local);
    }
    match !initialized && shared.shutdown.is_draining() && may_be_answered_elsewhere(request) {
        true => Decision {
            to: ServerChoice::Peers(&snapshot.targets, None),
            then: ServerChoice::Local,
            ..decision
        },
        false => decision,
    }
}

fn is_watch(request: &RouteRequest<'_>) -> bool {
    request.info.verb == Verb::Watch
}

/// Whether only the local apiserver may answer a watch that is resumed: after etcd was restored or replaced, until it is
/// clear that the watch began after that.
fn is_tied(shared: &Shared, request: &RouteRequest<'_>, snapshot: &Snapshot) -> bool {
    let tied = |since| !shared.local.may_resume_elsewhere(since) && !request.rerouted;
    let is_local = |gvr| {
        let holders = snapshot.holders(gvr);
        !snapshot.local_known
            || holders.map_or_else(|| snapshot.is_custom(gvr), |(_, holders)| holders.local)
    };
    request.resume.is_some_and(tied) && request.info.gvr().is_some_and(is_local)
}

/// What the routing table is asked.
fn question<'a>(
    shared: &Shared,
    request: &'a RouteRequest<'_>,
    initialized: bool,
) -> (RoutingInput<'a>, LocalServer) {
    let question = RoutingInput {
        resource: request.info.gvr(),
        rerouted: request.rerouted,
        resume: request.resume,
        version: request.version.unwrap_or_default(),
    };
    let local = LocalServer {
        initialized,
        history_start: request
            .resume
            .map_or(i64::MAX, |_| shared.local.history_start()),
    };
    (question, local)
}

/// Whether a path that is not a resource means the same at every apiserver: unlike health, metrics and logs.
fn may_be_answered_elsewhere(request: &RouteRequest<'_>) -> bool {
    const SAME_EVERYWHERE: [&str; 2] = ["/.well-known/", "/openid/"];
    let path = request.path;
    request.info.gvr().is_none()
        && !request.rerouted
        && request.settings.rerouting
        && (path == "/version" || SAME_EVERYWHERE.iter().any(|below| path.starts_with(below)))
}

/// The first destination of a decision that was not tried. One that is suspected to be frozen comes last.
fn route(
    shared: &Shared,
    request: &RouteRequest<'_>,
    decision: &Decision<'_>,
    snapshot: &Snapshot,
    tried: &[SocketAddr],
) -> Option<Route> {
    let route = destination(shared, request, decision, snapshot, tried)?;
    if !shared.servers.frozen.is_suspected(route.address) {
        return Some(route);
    }
    let avoided = [shared.servers.frozen.suspected(), tried.to_vec()].concat();
    destination(shared, request, decision, snapshot, &avoided).or(Some(route))
}

fn destination(
    shared: &Shared,
    request: &RouteRequest<'_>,
    decision: &Decision<'_>,
    snapshot: &Snapshot,
    tried: &[SocketAddr],
) -> Option<Route> {
    let candidates = Candidates {
        shared,
        snapshot,
        tried,
        seed: request.seed,
        row: decision.row,
        watch: is_watch(request),
    };
    let custom = || snapshot.custom.name_of(request.info.gvr()?).map(Arc::new);
    let to = |place: &ServerChoice<'_>, no_such_resource| {
        let (route, rerouted_as) = match *place {
            ServerChoice::Local => (candidates.local()?, None),
            ServerChoice::Peers(indices, gvr) => (
                candidates.peer(indices, None, None)?,
                gvr.cloned().or_else(custom),
            ),
            ServerChoice::Fitting(indices, gvr, version) => (
                candidates.peer(indices, Some(version), None)?,
                Some(gvr.clone()),
            ),
            ServerChoice::Historians(indices, gvr, since) => (
                candidates.peer(indices, None, Some(since))?,
                gvr.cloned().or_else(custom),
            ),
            ServerChoice::Nowhere => return None,
        };
        Some(Route {
            rerouted_as,
            no_such_resource,
            ..route
        })
    };
    let (first, later) = match is_proxied_path(request.info, snapshot) {
        true => (NoSuchResource::Pass, NoSuchResource::Pass),
        false => (decision.no_such_resource, NoSuchResource::Doubt),
    };
    to(&decision.to, first)
        .or_else(|| to(&decision.then, later))
        .or_else(|| to(&decision.finally, later))
}

/// Whether the request goes through an apiserver's `proxy` subresource: its 404s are not the apiserver's.
fn is_proxied_path(info: &RequestInfo<'_>, snapshot: &Snapshot) -> bool {
    let listed = |gvr| {
        snapshot
            .holders(gvr)
            .is_some_and(|(_, holders)| holders.local || !holders.targets.is_empty())
    };
    info.verb == Verb::Proxy
        || info
            .gvr()
            .is_some_and(|gvr| gvr.subresource == "proxy" && listed(gvr))
}
