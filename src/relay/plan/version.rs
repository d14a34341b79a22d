//! Which servers a request prefers by their versions: by its header, by the policy, by what it is or contains.
//!
//! Asked only while servers are of different versions. Nothing of it authorizes anybody, and it refuses nothing:
//! it only orders the servers that list a resource.

use std::cmp::Reverse;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use http::header::{HeaderMap, USER_AGENT};

use crate::config::DefaultVersion;
use crate::relay::plan::{RequestContext, Route};
use crate::relay::upstream::RequestKind;
use crate::relay::upstream::health::Health;
use crate::request::since::{client_version, parameters_since};
use crate::routing::decide::{Peers, Row};
use crate::routing::table::{Holders, Server, ServerKind, Snapshot};
use crate::routing::versions::{VersionWindow, Wanted};

/// At most so many reads at a time are sent to others than the local server for their version, without long-running ones. A
/// kube-apiserver has 400 seats for reads by default.
const READS: i64 = 100;
/// At most so many watches and other long-running reads.
const LONG_READS: i64 = 1000;

/// While versions differ, in `window`: what a request prefers that names no version.
pub fn unasked(
    context: &RequestContext<'_>,
    headers: &HeaderMap,
    window: VersionWindow,
    snapshot: &Snapshot,
) -> Option<Wanted> {
    let settings = &context.settings;
    // What no server understands cannot be had, and what all understand needs none.
    let is_had_by_some = |it: &_| window.oldest < *it && *it <= window.newest;
    let needed = parameters_since(&context.info, context.query).filter(is_had_by_some);
    let not_older = |version| Wanted::NotOlder { version, needed };
    match settings.default_version {
        // An older server would ignore the parameter, and the client wait for ever.
        DefaultVersion::Oldest => Some(needed.map_or(Wanted::Oldest, not_older)),
        DefaultVersion::Newest => Some(Wanted::Newest),
        DefaultVersion::Any => {
            let user_agent = headers.get(USER_AGENT).filter(|_| settings.user_agents);
            let client = user_agent.and_then(|it| client_version(it.as_bytes()));
            // Who is newer than all is not moved to who is older than the local server. That one comes first if it is late
            // enough.
            let client = client.map(|it| match it > window.newest {
                true => snapshot.local_version.unwrap_or(window.newest),
                false => it,
            });
            client.filter(is_had_by_some).max(needed).map(not_older)
        }
    }
}

/// Whether a [bounded](RequestContext::bounded) read is not sent to another server for its version, because many are under way
/// there.
pub fn is_crowded(context: &RequestContext<'_>) -> bool {
    let moved = &context.shared.metrics.moved;
    match context.kind {
        RequestKind::Long => moved[1].get() >= LONG_READS,
        RequestKind::Short => moved[0].get() >= READS && context.is_safe(),
        RequestKind::Upgrade => false,
    }
}

/// Counts a request that stays at the local server although it prefers others.
pub fn count_left(
    context: &RequestContext<'_>,
    snapshot: &Snapshot,
    route: &Route,
    wanted: Wanted,
) {
    let holders = context.info.gvr().and_then(|gvr| snapshot.holders(gvr));
    let prefers_others = |(_, holders): (_, &Holders)| {
        holders.local && !snapshot.before_local(&holders.targets, wanted).is_empty()
    };
    let stays =
        matches!(route.row, Row::Local | Row::Peers) && route.server_kind == ServerKind::Local;
    if stays && holders.is_some_and(prefers_others) {
        let is_load = is_crowded(context);
        context.shared.metrics.class_left[usize::from(!is_load)].inc();
    }
}

/// Chooses one of several servers by rendezvous hashing: the servers that fit best come first, those that are unhealthy or
/// not ready last. All requests of a connection get the same server while the servers stay the same. When a server goes
/// away, its connections spread over all that are left. `peers`: what is wanted. `seed`: nobody outside knows it.
pub fn choose<'s>(
    servers: impl Iterator<Item = &'s Server>,
    peers: Peers<'_>,
    seed: u64,
    health: &Health,
) -> Option<&'s Server> {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let is_healthy = |server: &Server| server.ready && !health.is_suspect(server.endpoint);
    let servers = servers.filter(|server| !peers.ready || is_healthy(server));
    servers.max_by_key(|server| {
        let fit = peers.wanted.map(|wanted| Reverse(server.fit(wanted)));
        let healthy = is_healthy(server);
        // Who names a version gets it; other preferences end where nobody is ready.
        let yields = healthy || !peers.wanted.is_some_and(Wanted::needs_ready);
        (
            yields,
            fit,
            healthy,
            server.known,
            hasher.hash_one((seed, server.endpoint)),
        )
    })
}
