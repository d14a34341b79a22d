//! Where a request for a discovery document is sent, and what is to be added to the answer (KEP-4020).
//!
//! Costs other requests one comparison. Where there is nothing to add the request goes on as any other that is no
//! resource, to the local apiserver. Otherwise the local apiserver is asked first, as the caller: whether it may see
//! discovery is decided there. While nobody knows what the local apiserver lacks (it is not initialized, or was not
//! read since) a peer's document stands in for it, with what is known besides.

use std::net::SocketAddr;
use std::sync::Arc;

use http::Method;
use pingora_http::RequestHeader;

use super::answer::Refusal;
use super::forward::Side;
use super::overlay::Merging;
use super::overlay::cache::UNKEPT;
use super::plan::{Asked, Step, Way, choose, details};
use super::shared::Shared;
use crate::admin::documents::How;
use crate::config::{DiscoveryMode, Unsynced};
use crate::discovery::gathered::{Gathered, Listed};
use crate::discovery::newest::targets_of;
use crate::discovery::openapi::Form;
use crate::discovery::others::Others;
use crate::discovery::stand_in::{lacking, unread};
use crate::request::info::Target;
use crate::routing::decide::Row;
use crate::routing::documents::{Document, Stop, merged, newest};
use crate::routing::table::{Gvr, Snapshot};

/// A discovery document on its way.
#[derive(Clone)]
pub struct Overlay {
    /// Which.
    pub document: Document,
    /// What to add to it, if anything.
    pub gathered: Option<Arc<Gathered>>,
}

impl Overlay {
    /// Prepares a request's header; `None`: the answer passes as it is.
    pub fn begin(
        &self,
        shared: &Shared,
        header: &mut RequestHeader,
    ) -> pingora_core::Result<Option<Merging>> {
        let gathered = self.gathered.as_ref();
        let merging = |gathered| Merging::begin(&self.document, gathered, &shared.merges, header);
        gathered.map(merging).transpose()
    }
}

/// The document that is asked for, if it may have to come from others or be added to.
fn wanted(shared: &Shared, asked: &Asked<'_>) -> Option<Document> {
    let Target::Discovery(discovery) = &asked.info.target else {
        return None;
    };
    let reads = matches!(*asked.method, Method::GET | Method::HEAD);
    let concerns =
        reads && shared.config.discovery.mode != DiscoveryMode::Local && shared.policy.rerouting;
    Document::of(discovery).filter(|_| concerns)
}

/// The first step for a discovery document; `None`: it is served as any other request that is no resource.
pub fn first(
    shared: &Shared,
    asked: &Asked<'_>,
    initialized: bool,
    snapshot: &Snapshot,
) -> Option<Step> {
    let document = wanted(shared, asked)?;
    if asked.rerouted {
        // Two merged documents would keep alive what nobody serves any more: peers get local ones. A starting apiserver
        // has not said everything yet, and somebody else can be asked.
        return (!initialized).then_some(Step::Answer(Refusal::PeerNotInitialized));
    }
    if !snapshot.synced {
        // Nobody knows what the local document lacks, and what is in none is taken for gone.
        return is_refused(shared, &document).then_some(Step::Answer(Refusal::Unsynced));
    }
    let step = step(shared, asked, initialized, snapshot, document, &[]);
    if step.is_none() {
        shared.metrics.documents.count(How::Passed);
    }
    step
}

/// Whether a document is refused before etcd was read. Nobody takes what OpenAPI does not describe for gone.
fn is_refused(shared: &Shared, document: &Document) -> bool {
    let is_openapi = matches!(
        document,
        Document::OpenApiV2 | Document::OpenApiV3 | Document::OpenApiV3Version(_)
    );
    !is_openapi
        && shared.config.discovery.mode == DiscoveryMode::Merged
        && shared.policy.unsynced == Unsynced::Reject
}

/// The next step, now that those at `tried` could not answer; `last`: the refusal if nobody is left.
pub fn next(
    shared: &Shared,
    asked: &Asked<'_>,
    initialized: bool,
    snapshot: &Snapshot,
    tried: &[SocketAddr],
    last: Refusal,
) -> Option<Step> {
    if asked.rerouted || !snapshot.synced {
        return None;
    }
    let document = wanted(shared, asked)?;
    let gathered = shared.gathering.load();
    let stale = is_stale(&document, &gathered);
    let step = step(shared, asked, initialized, snapshot, document, tried)?;
    Some(match step {
        Step::Answer(_) if stale => {
            shared.metrics.documents.count(How::Stale);
            Step::Answer(Refusal::Unreachable)
        }
        Step::Answer(_) => Step::Answer(last),
        step => step,
    })
}

/// `None`: there is nothing to add.
fn step(
    shared: &Shared,
    asked: &Asked<'_>,
    initialized: bool,
    snapshot: &Snapshot,
    document: Document,
    tried: &[SocketAddr],
) -> Option<Step> {
    let gathered = shared.gathering.load();
    let targets = &snapshot.targets;
    let is_newest = shared.config.discovery.mode == DiscoveryMode::Newest;
    let sure = initialized && (is_newest || gathered.is_of(&shared.local));
    let adds = !is_newest && is_lacking(&document, &gathered);
    let of = document.group_version();
    let holders = of.filter(|_| !is_newest && (adds || !sure));
    let holders = holders.map(|of| targets_of(snapshot, &of.group, &of.version));
    let holders = holders.unwrap_or_default();
    // A name that somebody lists, and not just one that a client thought of.
    let listed = of.filter(|_| !holders.is_empty()).map(|of| Gvr {
        group: of.group.clone(),
        version: of.version.clone(),
        resource: String::new(),
        subresource: String::new(),
    });
    let stops = match is_newest {
        true => newest(initialized, gathered.newer(snapshot), targets),
        false if sure && !adds => return None,
        false => merged(sure, holders, targets),
    };
    if stops == [Stop::Local] && !adds && tried.is_empty() {
        return None;
    }
    let is_openapi = matches!(document, Document::OpenApiV2 | Document::OpenApiV3);
    // What others list is not gone because one server does not know it.
    let is_gone = match sure {
        true => !(adds && of.is_some()),
        false => targets.is_empty() && !adds,
    };
    let way = |side, address, gathered, is_gone, details| Way {
        side,
        address,
        rerouted_as: listed.clone(),
        pass_no_such_resource: is_openapi || is_gone,
        details,
        row: Row::NotAResource,
        overlay: Some(Overlay {
            document: document.clone(),
            gathered,
        }),
    };
    let own = (adds && document.is_merged()).then(|| gathered.clone());
    let local = shared.config.api_server.address;
    let at = |stop: &Stop| match stop {
        Stop::Local => (!tried.contains(&local)).then(|| {
            let details = shared.local.user_details();
            if sure || is_newest || is_openapi {
                return way(Side::Local, local, own.clone(), is_gone, details);
            }
            let known = unread(initialized, snapshot, &gathered);
            let added = added(&document, known);
            let is_gone = is_gone && added.is_none();
            let added = added.filter(|_| document.is_merged());
            way(Side::Local, local, added, is_gone, details)
        }),
        Stop::Peers(indices) => {
            let servers = indices
                .iter()
                .filter_map(|index| snapshot.servers.get(*index));
            let untried = servers.filter(|server| !tried.contains(&server.endpoint));
            let server = choose(untried, None, asked.seed, &shared.health)?;
            let side = if server.native {
                Side::Native
            } else {
                Side::Peer
            };
            let gathered = match sure || is_openapi {
                true => own.clone(),
                false => added(&document, lacking(server, snapshot, &gathered))
                    .filter(|_| document.is_merged()),
            };
            let details = details(server);
            let address = server.endpoint;
            Some(way(side, address, gathered, is_gone, details))
        }
    };
    let way = stops.iter().find_map(at);
    Some(way.map_or(Step::Answer(Refusal::Unreachable), Step::Forward))
}

/// What others have for a document, if anything; made for one request.
fn added(document: &Document, others: Others) -> Option<Arc<Gathered>> {
    let gathered = Gathered {
        generation: UNKEPT,
        others,
        ..Gathered::default()
    };
    is_lacking(document, &gathered).then(|| Arc::new(gathered))
}

/// Whether only servers that cannot be asked are known to have a document.
fn is_stale(document: &Document, gathered: &Gathered) -> bool {
    match document {
        Document::Resources(of) | Document::OpenApiV3Version(of) => {
            gathered.lists(&of.group, &of.version) == Listed::Stale
        }
        _ => false,
    }
}

/// Whether others have something for a document that the local apiserver's lacks.
fn is_lacking(document: &Document, gathered: &Gathered) -> bool {
    let others = &gathered.others.document;
    match document {
        Document::Versions => others.group("").is_some(),
        Document::Groups => others.groups.iter().any(|group| !group.name.is_empty()),
        Document::Group(name) => others.group(name).is_some(),
        Document::Resources(of) | Document::OpenApiV3Version(of) => {
            gathered.lists(&of.group, &of.version) != Listed::No
        }
        Document::OpenApiV2 => !gathered.is_empty(),
        Document::OpenApiV3 => {
            let indices = gathered.openapi.of(Form::V3Index);
            indices.is_some_and(|indices| !indices.is_empty())
        }
    }
}
