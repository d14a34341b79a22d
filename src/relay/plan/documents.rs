//! Where a discovery document is asked for, and what is added to the answer (KEP-4020).
//!
//! Other requests cost one comparison. If there is nothing to add, the request is routed like any other request without
//! a resource, to the local apiserver. Otherwise the local apiserver is asked first, as the caller, because it decides
//! whether the caller may read discovery. While it is not known what the local apiserver lacks (it is not initialized,
//! or was not read since), a peer's document takes its place, with other known entries added.

use std::sync::Arc;
use std::time::Duration;

use http::Method;

use super::{Planning, Route};
use crate::config::{DiscoveryMode, Unsynced};
use crate::discovery::fallback::{lacking, unread};
use crate::discovery::newest::{newer_targets, targets_of};
use crate::discovery::peer_discovery::{PeerDiscovery, PeerListing};
use crate::kube::discovery::DiscoveryDocument;
use crate::relay::answer::Refusal;
use crate::relay::documents::{Overlay, UNKEPT};
use crate::relay::upstream::health::TRIAL;
use crate::routing::decide::{NoSuchResource, Peers};
use crate::routing::table::Server;

/// How long a peer may take to begin the list of resources of a group version that the local apiserver lacks: four times
/// as long as the request has taken so far, within these bounds. A client asks for all of them before a command, some of
/// them one after the other and again and again, and goes on without one. For a peer that has failed and not answered
/// since, requests wait for a short part of each second only ([`TRIAL`]).
const LEAST_PATIENCE: Duration = Duration::from_millis(500);
const MOST_PATIENCE: Duration = Duration::from_secs(3);

/// The route of a discovery document, or the refusal; `None`: it is served like any other request without a resource.
/// `last`: as for [`super::plan`].
pub(super) fn plan(
    planning: &Planning<'_>,
    request: &DiscoveryDocument,
    last: Option<Refusal>,
) -> Option<Result<Route, Refusal>> {
    let (context, snapshot) = (planning.context, planning.snapshot);
    let reads = matches!(context.method, Method::GET | Method::HEAD);
    let settings = &context.settings;
    // No other server serves the document, or adds to it.
    if !reads || settings.discovery == DiscoveryMode::Local || !settings.rerouting {
        return None;
    }
    let shared = context.shared;
    let peer_discovery = shared.peer_discovery.current.load_full();
    if context.rerouted {
        return match last {
            None => rerouted(planning, request, peer_discovery),
            Some(_) => None,
        };
    }
    let is_openapi = matches!(
        request,
        DiscoveryDocument::OpenApiV2
            | DiscoveryDocument::OpenApiV3
            | DiscoveryDocument::OpenApiV3Version(_)
    );
    let is_newest = settings.discovery == DiscoveryMode::Newest;
    if !snapshot.synced {
        // It is not known what the local document lacks, and clients take missing entries for deleted; not of OpenAPI.
        let refused = !is_openapi && !is_newest && settings.unsynced == Unsynced::Reject;
        return refused.then_some(Err(Refusal::Unsynced));
    }
    let is_current = is_newest || peer_discovery.is_current_for(&shared.local);
    let document = Document {
        planning,
        sure: planning.local_serves && is_current,
        is_newest,
        adds: !is_newest && peer_discovery.adds_to(request),
        peer_discovery,
        request,
    };
    let newer = match &document.peer_discovery {
        it if is_newest => newer_targets(it.local.as_ref(), it.told, snapshot),
        _ => Vec::new(),
    };
    let adds = document.adds || document.adds_own() || document.may_be_unread();
    if document.sure && newer.is_empty() && !adds {
        return None;
    }
    let route = document.route(&newer);
    Some(route.ok_or_else(|| document.refusal(last)))
}

/// The route of a peer's request. Peers get nothing of other peers: two merged documents would keep alive what no server
/// lists any more. They do get what the local apiserver serves and does not list.
fn rerouted(
    planning: &Planning<'_>,
    document: &DiscoveryDocument,
    peer_discovery: Arc<PeerDiscovery>,
) -> Option<Result<Route, Refusal>> {
    let (context, shared) = (planning.context, planning.context.shared);
    // A starting apiserver does not list everything yet, and another server can be tried.
    if !planning.local_serves {
        return Some(Err(shared.local_refusal()));
    }
    let is_merged = context.settings.discovery == DiscoveryMode::Merged;
    if !is_merged || !document.lists_groups() {
        return None;
    }
    if !peer_discovery.is_current_for(&shared.local) {
        // It is not known yet what its list may lack.
        return Some(Err(shared.local_refusal()));
    }
    let accept = context.accept.as_ref();
    if !peer_discovery.own.may_add_to(document, accept) {
        return None;
    }
    Some(Ok(Route {
        no_such_resource: NoSuchResource::Pass,
        overlay: Some(Overlay::new(document, peer_discovery, true)),
        ..planning.local()?
    }))
}

/// A document to which other servers may add something.
struct Document<'a> {
    planning: &'a Planning<'a>,
    request: &'a DiscoveryDocument,
    peer_discovery: Arc<PeerDiscovery>,
    /// Peers may have something to add.
    adds: bool,
    /// The local apiserver is initialized, and what it lacks is known.
    sure: bool,
    /// `discovery.mode: Newest`
    is_newest: bool,
}

impl Document<'_> {
    /// To the first server in order that was not tried. `newer`: targets that are newer than the local apiserver, with
    /// `discovery.mode: Newest`.
    fn route(&self, newer: &[usize]) -> Option<Route> {
        let snapshot = self.planning.snapshot;
        let targets = &snapshot.targets;
        let holders = match self.request.group_version() {
            Some(of) if !self.is_newest && (self.adds || !self.sure) => targets_of(snapshot, of),
            _ => Vec::new(),
        };
        let route = if self.is_newest {
            let mut newer = newer.iter().filter_map(|index| self.to_peer(&[*index]));
            let others = || self.to_peer(targets).filter(|_| !self.sure);
            newer.next().or_else(others).or_else(|| self.local())
        } else if self.hides_anothers() {
            self.to_peer(&holders)
        } else if self.sure {
            self.local().or_else(|| self.to_peer(&holders))
        } else {
            let peers = if holders.is_empty() {
                targets
            } else {
                &holders
            };
            self.to_peer(peers).or_else(|| self.local())
        }?;
        // Only listed names become label values, not names that a client made up.
        let listed = self.request.group_version().filter(|_| !holders.is_empty());
        Some(Route {
            rerouted_as: listed.map(|of| Arc::new(of.gvr(""))),
            ..route
        })
    }

    /// Whether only servers that serve it themselves may give it. The document of any other may have a CRD's resource in place
    /// of theirs, and nothing is known that could take its place there.
    fn hides_anothers(&self) -> bool {
        let DiscoveryDocument::Resources(of) = self.request else {
            return false;
        };
        let listing = self.peer_discovery.lists(&of.group, &of.version);
        (!self.sure || listing == PeerListing::Stale)
            && self.planning.snapshot.may_hide_anothers(of)
    }

    fn local(&self) -> Option<Route> {
        let route = self.planning.local()?;
        let added = self.added(None);
        let is_known = self.sure || self.is_newest || self.is_openapi();
        let is_gone = self.is_gone() && (is_known || added.is_none());
        Some(self.with(route, added, is_gone))
    }

    fn to_peer(&self, indices: &[usize]) -> Option<Route> {
        let server = self.planning.server(Peers::any(indices))?;
        let health = &self.planning.context.shared.servers.health;
        let of_one = matches!(self.request, DiscoveryDocument::Resources(_));
        let patience = match self.sure && !self.is_newest && of_one {
            false => None,
            true if !health.is_suspect(server.endpoint) => {
                let so_far = self.planning.context.meter.started.elapsed();
                Some((4 * so_far).clamp(LEAST_PATIENCE, MOST_PATIENCE))
            }
            true if health.may_be_waited_for(server.endpoint) => Some(TRIAL),
            true => return None,
        };
        let route = Route {
            patience,
            ..self.planning.to(server)
        };
        Some(self.with(route, self.added(Some(server)), self.is_gone()))
    }

    fn with(&self, route: Route, added: Option<Arc<PeerDiscovery>>, is_gone: bool) -> Route {
        Route {
            no_such_resource: match self.is_openapi() || is_gone {
                true => NoSuchResource::Pass,
                false => NoSuchResource::Doubt,
            },
            overlay: added
                .filter(|_| self.request.is_merged())
                .map(|added| Overlay::new(self.request, added, false)),
            ..route
        }
    }

    /// What is added to the document of a server, or of the local apiserver (`None`), as far as it is known to lack that.
    fn added(&self, server: Option<&Server>) -> Option<Arc<PeerDiscovery>> {
        let (snapshot, known) = (self.planning.snapshot, &self.peer_discovery);
        let adds = self.adds || self.adds_own();
        let all = || adds.then(|| known.clone());
        let others = match server {
            _ if self.is_openapi() => return all(),
            None if self.sure || self.is_newest => return all(),
            None => unread(self.planning.local_serves, snapshot, known),
            // What the local apiserver does not serve itself, the peer may.
            Some(_) if self.sure => all()?.others.clone(),
            Some(server) => lacking(server, snapshot, known),
        };
        let peer_discovery = PeerDiscovery {
            generation: UNKEPT,
            others,
            ..PeerDiscovery::default()
        };
        let adds = peer_discovery.adds_to(self.request);
        adds.then(|| Arc::new(peer_discovery))
    }

    /// Whether the local apiserver's own list may lack what it serves.
    fn adds_own(&self) -> bool {
        let (own, accept) = (&self.peer_discovery.own, &self.planning.context.accept);
        !self.is_newest && self.sure && own.may_add_to(self.request, accept.as_ref())
    }

    /// Whether it is of a group, or of a version of one, and what some live server serves is not known, or may not be as it was.
    fn may_be_unread(&self) -> bool {
        let of_a_group = matches!(
            self.request,
            DiscoveryDocument::Group(_) | DiscoveryDocument::Resources(_)
        );
        let is_unknown =
            || self.planning.snapshot.peer_unknown || self.planning.context.shared.is_stale();
        of_a_group && !self.is_newest && is_unknown()
    }

    /// Whether "no such resource" may be passed on. A group version that other servers list, or may list, exists although one
    /// server does not know it.
    fn is_gone(&self) -> bool {
        match self.sure {
            _ if self.may_be_unread() => false,
            true => !self.adds || self.request.group_version().is_none(),
            false => self.planning.snapshot.targets.is_empty() && !self.adds,
        }
    }

    fn is_openapi(&self) -> bool {
        matches!(
            self.request,
            DiscoveryDocument::OpenApiV2 | DiscoveryDocument::OpenApiV3
        )
    }

    /// No server is left.
    fn refusal(&self, last: Option<Refusal>) -> Refusal {
        match (self.request.group_version(), last) {
            // The apiserver's own answer passes.
            (_, Some(Refusal::Terminating)) => Refusal::Terminating,
            (Some(_), _) => Refusal::NoDocument,
            (None, _) if self.may_be_unread() => Refusal::NoDocument,
            (None, last) => last.unwrap_or(Refusal::Unreachable),
        }
    }
}
