//! What to do with a request: answer it, or forward it to one place; and, when that place cannot answer, to whom next.
//!
//! Each time the table is asked with what is known at that moment: a local apiserver found down meanwhile is not
//! initialized any more. The snapshot is let go of here: a watch that stays open for days must not keep the cluster of
//! its first moment in memory.

use std::cmp::Reverse;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::SocketAddr;

use http::Method;

use super::answer::Refusal;
use super::discovery;
use super::discovery::Overlay;
use super::forward::Side;
use super::health::Health;
use super::if_ready::{Gate, gate};
use super::shared::Shared;
use crate::request::credential::{self, Details};
use crate::request::info::{RequestInfo, Target, Verb};
use crate::request::who::Caller;
use crate::routing::decide::{Decision, Local, Place, Question, Row, decide};
use crate::routing::table::{Gvr, GvrRef, Server, Snapshot};
use crate::routing::version::{Fit, Malformed, Version};

/// A request as it was read.
pub struct Asked<'a> {
    /// Its method.
    pub method: &'a Method,
    /// Its path, as on the wire.
    pub path: &'a str,
    /// What it asks for.
    pub info: &'a RequestInfo<'a>,
    /// Go's HTTP server would take its target.
    pub well_formed: bool,
    /// Who asks.
    pub caller: &'a Caller,
    /// It is from a peer, and was rerouted once.
    pub rerouted: bool,
    /// It is a watch that goes on after this etcd revision.
    pub resume: Option<i64>,
    /// The version that it wants to be served with.
    pub version: Result<Option<Version>, Malformed>,
    /// It has `X-Kubernetes-If-Ready`.
    pub if_ready: bool,
    /// Drawn for the client's connection.
    pub seed: u64,
}

/// What to do with a request.
pub struct Plan {
    /// `X-Kubernetes-Ready` on the answer, for a client that asked.
    pub tell: Option<bool>,
    /// Answer or forward.
    pub step: Step,
}

/// Answer or forward.
pub enum Step {
    /// The proxy answers.
    Answer(Refusal),
    /// An apiserver answers.
    Forward(Way),
}

/// Where a request is sent.
pub struct Way {
    /// To whom.
    pub side: Side,
    /// To which address.
    pub address: SocketAddr,
    /// For the counter of rerouted requests: the resource's name as listed, if it is.
    pub rerouted_as: Option<Gvr>,
    /// Whether "no such resource" may be passed on.
    pub pass_no_such_resource: bool,
    /// It is a discovery document, and others are involved.
    pub overlay: Option<Overlay>,
    /// What the apiserver there gives certificate users.
    pub details: Details,
    /// The row of the routing table that led there.
    pub row: Row,
}

/// Plans. No effect but on counters.
pub fn plan(shared: &Shared, asked: &Asked<'_>) -> Plan {
    gated(shared, asked, |initialized| match refusal(shared, asked) {
        Some(refusal) => Step::Answer(refusal),
        None => first(shared, asked, initialized),
    })
}

/// What `step` says, if the request may pass now; it is told whether the local apiserver is initialized.
fn gated(shared: &Shared, asked: &Asked<'_>, step: impl FnOnce(bool) -> Step) -> Plan {
    let initialized = shared.local.is_initialized();
    let config = &shared.config.if_ready;
    match gate(config, asked.path, asked.if_ready, initialized) {
        Gate::Refuse { tell } => Plan {
            tell,
            step: Step::Answer(Refusal::NotInitialized),
        },
        Gate::Pass { tell } => Plan {
            tell,
            step: step(initialized),
        },
    }
}

/// What needs no routing to be refused.
fn refusal(shared: &Shared, asked: &Asked<'_>) -> Option<Refusal> {
    let reads = matches!(*asked.method, Method::GET | Method::HEAD);
    if !asked.well_formed {
        Some(Refusal::BadTarget)
    } else if *asked.caller == Caller::Unverifiable {
        Some(Refusal::Unauthorized)
    } else if asked.path == "/readyz" && reads && !shared.is_ready() {
        let asked = shared.local.can_be_asked() && !shared.is_leaving();
        Some(match asked && !shared.local.believes_us() {
            true => Refusal::NotBelieved,
            false => Refusal::NotReady,
        })
    } else if asked.version.is_err() && !asked.rerouted {
        Some(Refusal::BadVersion)
    } else {
        None
    }
}

fn first(shared: &Shared, asked: &Asked<'_>, initialized: bool) -> Step {
    let snapshot = shared.published.snapshot.load();
    if let Some(step) = discovery::first(shared, asked, initialized, &snapshot) {
        shared.metrics.decided(Row::NotAResource);
        return step;
    }
    let decision = ask(shared, asked, initialized, &snapshot);
    shared.metrics.decided(decision.row);
    match way(shared, asked, &decision, &snapshot, &[]) {
        Some(way) => Step::Forward(way),
        None => Step::Answer(match decision.row {
            Row::Rerouted => Refusal::PeerNotInitialized,
            Row::Unsynced => Refusal::Unsynced,
            _ => Refusal::Unreachable,
        }),
    }
}

/// What to do now that those at `tried` could not answer; `last`: the refusal if nobody is left.
pub fn next(shared: &Shared, asked: &Asked<'_>, tried: &[SocketAddr], last: Refusal) -> Plan {
    gated(shared, asked, |initialized| {
        let snapshot = shared.published.snapshot.load();
        if let Some(step) = discovery::next(shared, asked, initialized, &snapshot, tried, last) {
            return step;
        }
        let decision = ask(shared, asked, initialized, &snapshot);
        let way = way(shared, asked, &decision, &snapshot, tried);
        way.map_or(Step::Answer(last), Step::Forward)
    })
}

fn ask<'s>(
    shared: &Shared,
    asked: &Asked<'_>,
    initialized: bool,
    snapshot: &'s Snapshot,
) -> Decision<'s> {
    let question = Question {
        resource: gvr(asked.info),
        rerouted: asked.rerouted,
        resume: asked.resume,
        version: asked.version.unwrap_or_default(),
    };
    let local = Local {
        initialized,
        history_start: asked
            .resume
            .map_or(i64::MAX, |_| shared.local.history_start()),
    };
    let stale = || shared.is_stale();
    decide(question, shared.policy, local, snapshot, stale)
}

/// The first place of a decision that was not tried.
fn way(
    shared: &Shared,
    asked: &Asked<'_>,
    decision: &Decision<'_>,
    snapshot: &Snapshot,
    tried: &[SocketAddr],
) -> Option<Way> {
    let local = shared.config.api_server.address;
    let peer = |indices: &[usize], since: Option<i64>, version, gvr: Option<&Gvr>, pass| {
        let servers = indices
            .iter()
            .filter_map(|index| snapshot.servers.get(*index));
        let untried = servers.filter(|server| {
            !tried.contains(&server.endpoint) && since.is_none_or(|since| server.reaches(since))
        });
        choose(untried, version, asked.seed, &shared.health).map(|server| Way {
            side: match server.native {
                true => Side::Native,
                false => Side::Peer,
            },
            address: server.endpoint,
            rerouted_as: gvr.cloned(),
            pass_no_such_resource: pass,
            overlay: None,
            details: details(server),
            row: decision.row,
        })
    };
    let at = |place: &Place<'_>, pass| match place {
        Place::Local if !tried.contains(&local) => Some(Way {
            side: Side::Local,
            address: local,
            rerouted_as: None,
            pass_no_such_resource: pass,
            overlay: None,
            details: shared.local.user_details(),
            row: decision.row,
        }),
        Place::Peers(indices, gvr) => peer(indices, None, None, *gvr, pass),
        Place::Fitting(indices, gvr, version) => {
            peer(indices, None, Some(*version), Some(*gvr), pass)
        }
        Place::Historians(indices, gvr, since) => {
            peer(indices, Some(*since), None, Some(*gvr), pass)
        }
        Place::Local | Place::Nowhere => None,
    };
    let proxied = is_proxied_path(asked.info, snapshot);
    at(&decision.to, decision.pass_no_such_resource || proxied)
        .or_else(|| at(&decision.then, proxied))
        .or_else(|| at(&decision.finally, proxied))
}

/// What a server's apiserver gives certificate users.
pub fn details(server: &Server) -> Details {
    let version = server.binary_version.as_deref();
    version.map(credential::details).unwrap_or_default()
}

/// One of several: of those that fit the version best, the unhealthy last; the same for all requests of a connection
/// while they stay the same. When one goes away, its connections spread over all that are left (rendezvous hashing).
pub(super) fn choose<'s>(
    servers: impl Iterator<Item = &'s Server>,
    version: Option<Version>,
    seed: u64,
    health: &Health,
) -> Option<&'s Server> {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    servers.max_by_key(|server| {
        let score = hasher.hash_one((seed, server.endpoint));
        let fit = version.map(|wanted| Reverse(Fit::of(server.version, wanted)));
        (fit, !health.is_suspect(server.endpoint), score)
    })
}

fn gvr<'a>(info: &'a RequestInfo<'_>) -> Option<GvrRef<'a>> {
    match &info.target {
        Target::Resource(resource) => Some(resource.into()),
        _ => None,
    }
}

/// Whether what is asked lies behind an apiserver's `proxy` subresource: its 404s are not the apiserver's.
fn is_proxied_path(info: &RequestInfo<'_>, snapshot: &Snapshot) -> bool {
    let listed = |gvr| {
        snapshot
            .holders(gvr)
            .is_some_and(|(_, holders)| holders.local || !holders.targets.is_empty())
    };
    info.verb == Verb::Proxy
        || gvr(info).is_some_and(|gvr| gvr.subresource == "proxy" && listed(gvr))
}

#[cfg(test)]
mod tests;
