//! Where a request is sent.
//!
//! `Candidates` is the only place that builds a [`Route`]; [`super::planning`] and [`super::documents`] add what they
//! know of the request. [`crate::relay::forward`] follows the route.

use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method};

use crate::config::settings::Settings;
use crate::kube::gvr::Gvr;
use crate::kube::version::{KubernetesVersion, MalformedVersion};
use crate::relay::answer::Refusal;
use crate::relay::documents::Overlay;
use crate::relay::shared::Shared;
use crate::relay::upstream::health::Health;
use crate::request::caller::Caller;
use crate::request::credential::{self, CredentialFeatures};
use crate::request::info::RequestInfo;
use crate::routing::decide::{NoSuchResource, Row};
use crate::routing::fit::Fit;
use crate::routing::table::ServerKind;
use crate::routing::table::{Server, Snapshot};

/// A request as the plan sees it.
pub struct RouteRequest<'a> {
    /// Those in force when it began.
    pub settings: &'a Settings,
    pub method: &'a Method,
    /// As on the wire.
    pub path: &'a str,
    pub info: &'a RequestInfo<'a>,
    /// Go's HTTP server would accept its target.
    pub well_formed: bool,
    pub caller: &'a Caller,
    /// A peer has rerouted it once.
    pub rerouted: bool,
    /// The etcd revision after which a watch continues.
    pub resume: Option<i64>,
    /// The version of the apiserver that it asks for.
    pub version: Result<Option<KubernetesVersion>, MalformedVersion>,
    /// It has the header `X-Kubernetes-If-Ready`.
    pub if_ready: bool,
    /// The first `Accept` header of a request for discovery, the only one that kube-apiserver reads.
    pub accept: Option<HeaderValue>,
    /// Random; one for each connection of a client.
    pub seed: u64,
}

impl RouteRequest<'_> {
    /// Whether a peer may have sent it to find out whether a proxy is here: it takes this server for an apiserver.
    pub fn may_seek_a_proxy(&self) -> bool {
        *self.caller == Caller::Peer && !self.rerouted
    }
}

/// What to do with a request.
pub struct Plan {
    /// `X-Kubernetes-Ready` on the answer, for a client that asked.
    pub ready: Option<bool>,
    /// The row of the routing table that decided; `None` if it was not asked.
    pub row: Option<Row>,
    pub action: Action,
}

/// Answer or forward.
pub enum Action {
    /// The proxy answers.
    Answer(Refusal),
    /// An apiserver answers.
    Forward(Box<Route>),
}

impl Action {
    pub fn forward(route: Route) -> Self {
        Self::Forward(Box::new(route))
    }

    /// The row of the routing table that led to an apiserver.
    pub fn decision(&self) -> Option<&'static str> {
        match self {
            Self::Forward(route) => Some(route.row.name()),
            Self::Answer(_) => None,
        }
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
    pub patience: Option<Patience>,
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

/// The servers that a request may still be sent to.
pub(super) struct Candidates<'a> {
    pub(super) shared: &'a Shared,
    pub(super) snapshot: &'a Snapshot,
    pub(super) tried: &'a [SocketAddr],
    /// See [`RouteRequest::seed`].
    pub(super) seed: u64,
    pub(super) row: Row,
    /// The request is a watch.
    pub(super) watch: bool,
}

impl<'a> Candidates<'a> {
    /// To the local apiserver, unless it was tried.
    pub(super) fn local(&self) -> Option<Route> {
        let address = self.shared.config.api_server.address;
        let details = || self.shared.local.user_details();
        (!self.tried.contains(&address)).then(|| self.route(ServerKind::Local, address, details()))
    }

    /// To one of the servers at `indices` that was not tried. `version`: the version to fit; `since`: the etcd revision
    /// that its history must reach back to.
    pub(super) fn peer(
        &self,
        indices: &[usize],
        version: Option<KubernetesVersion>,
        since: Option<i64>,
    ) -> Option<Route> {
        let server = self.server(indices, version, since)?;
        Some(self.to(server))
    }

    /// The server that [`Self::peer`] would choose.
    pub(super) fn server(
        &self,
        indices: &[usize],
        version: Option<KubernetesVersion>,
        since: Option<i64>,
    ) -> Option<&'a Server> {
        let servers = indices
            .iter()
            .filter_map(|index| self.snapshot.servers.get(*index));
        let untried = servers.filter(|server| {
            let left_out =
                self.tried.contains(&server.endpoint) || (self.watch && server.history_void);
            !left_out && since.is_none_or(|since| server.reaches(since))
        });
        choose(untried, version, self.seed, &self.shared.servers.health)
    }

    /// To this server.
    pub(super) fn to(&self, server: &Server) -> Route {
        self.route(server.kind, server.endpoint, details(server))
    }

    fn route(
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
            row: self.row,
            patience: None,
        }
    }
}

/// Which details of certificate users a server's apiserver knows.
fn details(server: &Server) -> CredentialFeatures {
    let version = server.binary_version.as_deref();
    version.map(credential::details).unwrap_or_default()
}

/// Chooses one of several servers by rendezvous hashing: the servers that fit the version best come first, those
/// that are unhealthy or not ready last. All requests of a connection get the same server while the servers stay the same.
/// When a server goes away, its connections spread over all that are left.
fn choose<'s>(
    servers: impl Iterator<Item = &'s Server>,
    version: Option<KubernetesVersion>,
    seed: u64,
    health: &Health,
) -> Option<&'s Server> {
    servers.max_by_key(|server| {
        let score = score(seed, server.endpoint);
        let fit = version.map(|wanted| Reverse(Fit::of(server.version, wanted)));
        let healthy = server.ready && !health.is_suspect(server.endpoint);
        (fit, healthy, score)
    })
}

/// Spreads addresses evenly for each seed, which nobody outside knows.
fn score(seed: u64, address: SocketAddr) -> u64 {
    let [high, low] = match address.ip() {
        IpAddr::V4(ip) => [0, u64::from(u32::from(ip))],
        IpAddr::V6(ip) => {
            let bits = u128::from(ip);
            [(bits >> 64) as u64, bits as u64]
        }
    };
    let parts = [high, low, u64::from(address.port())];
    parts.into_iter().fold(seed, |sum, part| mix(sum ^ part))
}

/// The finalizer of SplitMix64: each bit of the result depends on each bit of `value`.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests;
