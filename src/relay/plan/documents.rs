//! Routes requests for discovery documents, and decides what is added to the answer (KEP-4020).
//!
//! Other requests cost one comparison. If there is nothing to add, the request is routed like any other request without
//! a resource, to the local apiserver. Otherwise the local apiserver is asked first, as the caller, because it decides
//! whether the caller may read discovery. While it is not known what the local apiserver lacks (it is not initialized,
//! or was not read since), a peer's document takes its place, with other known entries added.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::Method;

use super::route::{Action, Candidates, Patience, Route, RouteRequest};
use crate::config::settings::Settings;
use crate::config::{DiscoveryMode, Unsynced};
use crate::discovery::fallback::{lacking, unread};
use crate::discovery::newest::targets_of;
use crate::discovery::peer_discovery::{PeerDiscovery, PeerListing};
use crate::discovery::peer_union::PeerUnion;
use crate::kube::discovery::DiscoveryDocument;
use crate::kube::gvr::{GroupVersion, Gvr};
use crate::relay::answer::Refusal;
use crate::relay::documents::{DocumentOutcome, Overlay, UNKEPT};
use crate::relay::shared::Shared;
use crate::relay::upstream::health::TRIAL;
use crate::request::info::Target;
use crate::routing::decide::{NoSuchResource, Row};
use crate::routing::documents::{RouteStop, merged, newest};
use crate::routing::table::Snapshot;

/// How long a peer may take to begin the list of resources of a group version that the local apiserver lacks. A client
/// asks for all of them before a command, some of them one after the other and again and again, and goes on without one.
/// For a peer that has failed and not answered since, requests wait for a short part of each second only.
const PATIENCE: Patience = Patience {
    least: Duration::from_millis(500),
    most: Duration::from_secs(3),
};
const SUSPECTS_PATIENCE: Patience = Patience {
    least: TRIAL,
    most: TRIAL,
};

/// The requested document, if other servers may serve it or add to it.
fn requested_document(request: &RouteRequest<'_>) -> Option<DiscoveryDocument> {
    let Target::Discovery(discovery) = &request.info.target else {
        return None;
    };
    let reads = matches!(*request.method, Method::GET | Method::HEAD);
    let settings = request.settings;
    let concerns = reads && settings.discovery != DiscoveryMode::Local && settings.rerouting;
    concerns.then(|| discovery.clone())
}

/// The first action for a discovery document; `None`: it is served like any other request without a resource.
pub(super) fn first(
    shared: &Shared,
    request: &RouteRequest<'_>,
    initialized: bool,
    snapshot: &Snapshot,
) -> Option<Action> {
    let document = requested_document(request)?;
    if request.rerouted {
        return rerouted(shared, request, initialized, snapshot, &document);
    }
    if !snapshot.synced {
        // It is not known what the local document lacks, and clients take missing entries for deleted.
        return is_refused(request.settings, &document)
            .then_some(Action::Answer(Refusal::Unsynced));
    }
    let action = action(shared, request, initialized, snapshot, document, &[]);
    if action.is_none() {
        shared.metrics.documents.count(DocumentOutcome::Passed);
    }
    action
}

/// The first action for a peer's request. Peers get nothing of other peers: two merged documents would keep alive what
/// no server lists any more. They do get what the local apiserver serves and does not list.
fn rerouted(
    shared: &Shared,
    request: &RouteRequest<'_>,
    initialized: bool,
    snapshot: &Snapshot,
    document: &DiscoveryDocument,
) -> Option<Action> {
    // A starting apiserver does not list everything yet, and another server can be tried.
    let refused = || Some(Action::Answer(shared.local_refusal()));
    if !initialized {
        return refused();
    }
    let is_merged = request.settings.discovery == DiscoveryMode::Merged;
    if !is_merged || !document.lists_groups() {
        return None;
    }
    let peer_discovery = shared.peer_discovery.load_full();
    if !peer_discovery.is_current_for(&shared.local) {
        // It is not known yet what its list may lack.
        return refused();
    }
    if !peer_discovery
        .own
        .may_add_to(document, request.accept.as_ref())
    {
        return None;
    }
    let candidates = candidates(shared, request, snapshot, &[]);
    candidates.local().map(|route| {
        Action::forward(Route {
            no_such_resource: NoSuchResource::Pass,
            overlay: Some(Box::new(Overlay {
                document: document.clone(),
                peer_discovery: Some(peer_discovery),
                for_one: true,
            })),
            ..route
        })
    })
}

/// Whether a document is refused before etcd was read. Clients do not take what OpenAPI lacks for deleted.
fn is_refused(settings: &Settings, document: &DiscoveryDocument) -> bool {
    let is_openapi = matches!(
        document,
        DiscoveryDocument::OpenApiV2
            | DiscoveryDocument::OpenApiV3
            | DiscoveryDocument::OpenApiV3Version(_)
    );
    !is_openapi
        && settings.discovery == DiscoveryMode::Merged
        && settings.unsynced == Unsynced::Reject
}

/// The next action, after the servers at `tried` could not answer. `last`: the refusal if no other server can be tried.
pub(super) fn next(
    shared: &Shared,
    request: &RouteRequest<'_>,
    initialized: bool,
    snapshot: &Snapshot,
    tried: &[SocketAddr],
    last: Refusal,
) -> Option<Action> {
    if request.rerouted || !snapshot.synced {
        return None;
    }
    let document = requested_document(request)?;
    let peer_discovery = shared.peer_discovery.load();
    let stale = is_stale(&document, &peer_discovery);
    let of_one = document.group_version().is_some();
    let action = action(shared, request, initialized, snapshot, document, tried)?;
    Some(match action {
        // The apiserver's own answer passes.
        Action::Answer(_) if of_one && last != Refusal::Terminating => {
            if stale {
                shared.metrics.documents.count(DocumentOutcome::Stale);
            }
            Action::Answer(Refusal::NoDocument)
        }
        Action::Answer(_) => Action::Answer(last),
        action => action,
    })
}

/// `None`: there is nothing to add.
fn action(
    shared: &Shared,
    request: &RouteRequest<'_>,
    initialized: bool,
    snapshot: &Snapshot,
    document: DiscoveryDocument,
    tried: &[SocketAddr],
) -> Option<Action> {
    let peer_discovery = shared.peer_discovery.load_full();
    let targets = &snapshot.targets;
    let is_newest = request.settings.discovery == DiscoveryMode::Newest;
    let sure = initialized && (is_newest || peer_discovery.is_current_for(&shared.local));
    let adds = !is_newest && peer_discovery.adds_to(&document);
    let accept = request.accept.as_ref();
    let adds_own = !is_newest && sure && peer_discovery.own.may_add_to(&document, accept);
    let of = document.group_version();
    let refusal = match of {
        Some(_) => Refusal::NoDocument,
        None => Refusal::Unreachable,
    };
    let holders = of.filter(|_| !is_newest && (adds || !sure));
    let holders = holders.map(|of| targets_of(snapshot, &of.group, &of.version));
    let holders = holders.unwrap_or_default();
    // Only listed names become label values, not names that a client made up.
    let listed = of.filter(|_| !holders.is_empty()).map(name).map(Arc::new);
    let stops = match is_newest {
        true => newest(initialized, peer_discovery.newer(snapshot), targets),
        false if sure && !adds && !adds_own => return None,
        // Any other document may have a CRD's resource in place of what `holders` serve.
        false if !sure && hides_anothers(snapshot, &document) => vec![RouteStop::Peers(holders)],
        false => merged(sure, holders, targets),
    };
    if stops == [RouteStop::Local] && !adds && !adds_own && tried.is_empty() {
        return None;
    }
    let routes = DocumentRoutes {
        candidates: candidates(shared, request, snapshot, tried),
        // A group version that other servers list exists although one server does not know it.
        is_gone: match sure {
            true => !(adds && of.is_some()),
            false => targets.is_empty() && !adds,
        },
        initialized,
        sure,
        is_newest,
        adds: adds || adds_own,
        listed,
        document,
        peer_discovery,
    };
    let route = stops.iter().find_map(|stop| routes.to(stop));
    Some(route.map_or(Action::Answer(refusal), Action::forward))
}

fn candidates<'a>(
    shared: &'a Shared,
    request: &RouteRequest<'_>,
    snapshot: &'a Snapshot,
    tried: &'a [SocketAddr],
) -> Candidates<'a> {
    Candidates {
        shared,
        snapshot,
        tried,
        seed: request.seed,
        row: Row::NotAResource,
        watch: false,
    }
}

fn name(of: &GroupVersion) -> Gvr {
    Gvr {
        group: of.group.clone(),
        version: of.version.clone(),
        resource: String::new(),
        subresource: String::new(),
    }
}

/// Makes routes for one document.
struct DocumentRoutes<'a> {
    candidates: Candidates<'a>,
    document: DiscoveryDocument,
    peer_discovery: Arc<PeerDiscovery>,
    /// It may have something to add.
    adds: bool,
    initialized: bool,
    /// The local apiserver is initialized, and what it lacks is known.
    sure: bool,
    is_newest: bool,
    /// "No such resource" may be passed on.
    is_gone: bool,
    /// The group version, if it is a known one.
    listed: Option<Arc<Gvr>>,
}

impl DocumentRoutes<'_> {
    fn to(&self, stop: &RouteStop) -> Option<Route> {
        match stop {
            RouteStop::Local => self.to_local(),
            RouteStop::Peers(indices) => self.to_peer(indices),
        }
    }

    fn to_local(&self) -> Option<Route> {
        let route = self.candidates.local()?;
        if self.sure || self.is_newest || self.is_openapi() {
            return Some(self.route(route, self.known(), self.is_gone));
        }
        let snapshot = self.candidates.snapshot;
        let added = self.added(unread(self.initialized, snapshot, &self.peer_discovery));
        let is_gone = self.is_gone && added.is_none();
        Some(self.route(route, added.filter(|_| self.document.is_merged()), is_gone))
    }

    fn to_peer(&self, indices: &[usize]) -> Option<Route> {
        let server = self.candidates.server(indices, None, None)?;
        let snapshot = self.candidates.snapshot;
        let added = match self.sure || self.is_openapi() {
            true => self.known_of_peer(),
            false => self
                .added(lacking(server, snapshot, &self.peer_discovery))
                .filter(|_| self.document.is_merged()),
        };
        let health = &self.candidates.shared.servers.health;
        let of_one = matches!(self.document, DiscoveryDocument::Resources(_));
        let patience = match self.sure && !self.is_newest && of_one {
            false => None,
            true if !health.is_suspect(server.endpoint) => Some(PATIENCE),
            true if health.may_be_waited_for(server.endpoint) => Some(SUSPECTS_PATIENCE),
            true => return None,
        };
        let route = Route {
            patience,
            ..self.candidates.to(server)
        };
        Some(self.route(route, added, self.is_gone))
    }

    fn route(&self, route: Route, added: Option<Arc<PeerDiscovery>>, is_gone: bool) -> Route {
        Route {
            rerouted_as: self.listed.clone(),
            no_such_resource: match self.is_openapi() || is_gone {
                true => NoSuchResource::Pass,
                false => NoSuchResource::Doubt,
            },
            overlay: Some(Box::new(Overlay {
                document: self.document.clone(),
                peer_discovery: added,
                for_one: false,
            })),
            ..route
        }
    }

    fn is_openapi(&self) -> bool {
        matches!(
            self.document,
            DiscoveryDocument::OpenApiV2 | DiscoveryDocument::OpenApiV3
        )
    }

    /// What is known to be lacking.
    fn known(&self) -> Option<Arc<PeerDiscovery>> {
        let merged = self.adds && self.document.is_merged();
        merged.then(|| self.peer_discovery.clone())
    }

    /// What a peer's document is known to lack: what the local apiserver does not serve itself, the peer may.
    fn known_of_peer(&self) -> Option<Arc<PeerDiscovery>> {
        let known = self.known()?;
        match self.is_openapi() {
            true => Some(known),
            false => self.added(PeerUnion {
                replaces: false,
                ..known.others.clone()
            }),
        }
    }

    /// What other servers add, if anything. Made for one request.
    fn added(&self, others: PeerUnion) -> Option<Arc<PeerDiscovery>> {
        let peer_discovery = PeerDiscovery {
            generation: UNKEPT,
            others,
            ..PeerDiscovery::default()
        };
        let adds = peer_discovery.adds_to(&self.document);
        adds.then(|| Arc::new(peer_discovery))
    }
}

/// Whether it may be a list of resources that the local apiserver has from CRDs only.
fn hides_anothers(snapshot: &Snapshot, document: &DiscoveryDocument) -> bool {
    matches!(document, DiscoveryDocument::Resources(of) if snapshot.may_hide_anothers(of))
}

/// Whether only servers that cannot be asked are known to have a document.
fn is_stale(document: &DiscoveryDocument, peer_discovery: &PeerDiscovery) -> bool {
    match document {
        DiscoveryDocument::Resources(of) | DiscoveryDocument::OpenApiV3Version(of) => {
            peer_discovery.lists(&of.group, &of.version) == PeerListing::Stale
        }
        _ => false,
    }
}
