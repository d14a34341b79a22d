//! What to do with a request, decided as a whole before anything is sent: answer it, or forward it to one place.
//!
//! The snapshot is let go of here: a watch that stays open for days must not keep the cluster of its first moment in
//! memory.

use std::net::SocketAddr;

use http::Method;
use pingora_http::RequestHeader;

use super::answer::Refusal;
use super::forward::Side;
use super::if_ready::{Gate, gate};
use super::shared::Shared;
use crate::request::headers::{IF_READY, PEER_PROXIED, REROUTED};
use crate::request::info::{RequestInfo, Target, Verb};
use crate::request::who::Caller;
use crate::routing::decide::{Decision, Place, Question, Row, decide};
use crate::routing::table::{Gvr, GvrRef, Snapshot};

/// A request as it was read.
pub struct Asked<'a> {
    /// Its header.
    pub header: &'a RequestHeader,
    /// Its path, as on the wire.
    pub path: &'a str,
    /// What it asks for.
    pub info: &'a RequestInfo<'a>,
    /// Go's HTTP server would take its target.
    pub well_formed: bool,
    /// Who asks.
    pub caller: &'a Caller,
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
}

/// Plans. No effect but on counters.
pub fn plan(shared: &Shared, asked: &Asked<'_>) -> Plan {
    let wanted = asked.header.headers.contains_key(IF_READY);
    let initialized = shared.local.is_initialized();
    let tell = match gate(&shared.config.if_ready, wanted, initialized) {
        Gate::Refuse => {
            let step = Step::Answer(Refusal::NotInitialized);
            return Plan {
                tell: Some(false),
                step,
            };
        }
        Gate::Pass { tell } => tell,
    };
    let step = match refusal(shared, asked) {
        Some(refusal) => Step::Answer(refusal),
        None => route(shared, asked, initialized),
    };
    Plan { tell, step }
}

/// What needs no routing to be refused.
fn refusal(shared: &Shared, asked: &Asked<'_>) -> Option<Refusal> {
    let reads = matches!(asked.header.method, Method::GET | Method::HEAD);
    if !asked.well_formed {
        Some(Refusal::BadTarget)
    } else if *asked.caller == Caller::Unverifiable {
        Some(Refusal::Unauthorized)
    } else if asked.path == "/readyz" && reads && !shared.is_ready() {
        Some(Refusal::NotReady)
    } else {
        None
    }
}

fn route(shared: &Shared, asked: &Asked<'_>, initialized: bool) -> Step {
    let snapshot = shared.published.snapshot.load();
    let headers = &asked.header.headers;
    let marked = headers.contains_key(REROUTED) || headers.contains_key(PEER_PROXIED);
    let question = Question {
        resource: gvr(asked.info),
        rerouted: marked && *asked.caller == Caller::Peer,
    };
    let decision = decide(question, shared.policy, initialized, &snapshot, || {
        shared.is_stale()
    });
    shared.metrics.decided(decision.row);
    let pass_no_such_resource =
        decision.pass_no_such_resource || is_proxied_path(asked.info, &snapshot);
    match decision {
        Decision {
            to: Place::Local, ..
        } => Step::Forward(Way {
            side: Side::Local,
            address: shared.config.api_server.address,
            rerouted_as: None,
            pass_no_such_resource,
        }),
        Decision {
            to: Place::Peers(servers, gvr),
            ..
        } => match choose(servers, asked.seed) {
            Some(index) => Step::Forward(Way {
                side: match snapshot.servers[index].native {
                    true => Side::Native,
                    false => Side::Peer,
                },
                address: snapshot.servers[index].endpoint,
                rerouted_as: gvr.cloned(),
                pass_no_such_resource,
            }),
            None => Step::Answer(Refusal::Unreachable),
        },
        Decision {
            row: Row::Rerouted, ..
        } => Step::Answer(Refusal::PeerNotInitialized),
        Decision {
            row: Row::Unsynced, ..
        } => Step::Answer(Refusal::Unsynced),
        Decision {
            to: Place::Nowhere, ..
        } => Step::Answer(Refusal::Unreachable),
    }
}

/// One of several, the same for all requests of a connection while they stay the same.
fn choose(servers: &[usize], seed: u64) -> Option<usize> {
    let count = u64::try_from(servers.len())
        .ok()
        .filter(|count| *count > 0)?;
    servers.get(usize::try_from(seed % count).ok()?).copied()
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
mod tests {
    use super::*;

    #[test]
    fn a_connection_keeps_to_its_choice_and_connections_spread() {
        let servers = [4, 7, 9];
        for seed in [0, 1, u64::MAX] {
            assert_eq!(choose(&servers, seed), choose(&servers, seed));
        }
        let chosen: std::collections::BTreeSet<_> =
            (0..100).filter_map(|seed| choose(&servers, seed)).collect();
        assert_eq!(chosen, servers.into());
        assert_eq!(choose(&[], 3), None);
    }
}
