//! What a request is: who asks, what for, and where it came from. [`crate::relay::service`] makes it and lends it to the
//! plan, to the loop over servers, and to each exchange.

use std::sync::Arc;

use http::{HeaderValue, Method};

use crate::config::settings::Settings;
use crate::kube::version::{KubernetesVersion, MalformedVersion};
use crate::relay::client::Downstream;
use crate::relay::observe::RequestMeter;
use crate::relay::shared::Shared;
use crate::relay::upstream::{RequestKind, Tokens, Upstreams};
use crate::request::caller::Caller;
use crate::request::info::RequestInfo;

/// A request that was read.
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
    pub info: RequestInfo<'a>,
    pub kind: RequestKind,
    /// A peer has rerouted it once.
    pub rerouted: bool,
    /// The etcd revision after which a watch continues.
    pub resume: Option<i64>,
    /// The version of the apiserver that it asks for.
    pub version: Result<Option<KubernetesVersion>, MalformedVersion>,
    /// It has the header `X-Kubernetes-If-Ready`, and that is looked at.
    pub if_ready: bool,
    /// The first `Accept` header, the only one that kube-apiserver reads.
    pub accept: Option<HeaderValue>,
    /// Counts it when its answer begins.
    pub meter: RequestMeter<'a>,
}

impl RequestContext<'_> {
    /// Whether a peer may have sent it to find out whether a proxy is here: it takes this server for an apiserver.
    pub fn may_seek_a_proxy(&self) -> bool {
        self.caller == Caller::Peer && !self.rerouted
    }

    /// Whether it may be executed twice. `exec` over WebSocket is a GET too, but no read.
    pub fn is_safe(&self) -> bool {
        let reads = matches!(self.method, Method::GET | Method::HEAD | Method::OPTIONS);
        reads && self.kind != RequestKind::Upgrade
    }

    /// Whether it is about a resource of a CRD or an aggregated API.
    pub fn is_custom(&self) -> bool {
        let snapshot = || self.shared.published.snapshot.load();
        let gvr = self.info.gvr();
        gvr.is_some_and(|gvr| snapshot().is_custom(gvr))
    }
}
