//! What the discovery of a server without a proxy said. Read by [`super::unproxied`], kept in [`super::state`]. Pure.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::kube::gvr::ServedSet;
use crate::kube::version::KubernetesVersion;

/// The discovery of a kube-apiserver without a proxy.
#[derive(Debug, Clone)]
pub struct NativePeer {
    pub address: SocketAddr,
    /// What it serves itself.
    pub served: Arc<ServedSet>,
    /// `gitVersion`.
    pub binary_version: String,
    /// Emulated version, where known.
    pub version: Option<KubernetesVersion>,
    /// When the last read began.
    pub read: Instant,
    /// When the first of those reads began that have all found just this.
    pub since: Instant,
}

impl NativePeer {
    /// Read after `before`.
    pub(super) fn after(mut self, before: Option<&Self>) -> Self {
        let same = before.filter(|before| before.served == self.served);
        self.since = same.map_or(self.since, |same| same.since);
        self
    }
}
