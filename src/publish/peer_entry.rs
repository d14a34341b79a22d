//! This server's entry below `peerserverleases`, for apiservers that reroute by themselves.
//!
//! They look entries up by the names of identity Leases, so it has the apiserver's ID and not the proxy's. An entry that is
//! not the one we wrote is the apiserver's own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::etcd_key::{EtcdKey, EtcdSession};
use crate::cluster::codec::{PeerEndpoint, encode_endpoints};
use crate::cluster::source::SourceError;

pub struct PeerEntry {
    /// Of all such keys.
    pub prefix: String,
    /// Where peers reach us.
    pub address: SocketAddr,
    pub ttl: Duration,
    /// The apiserver's ID and its key.
    pub kept: Option<(Arc<str>, EtcdKey)>,
}

impl PeerEntry {
    /// Writes the entry of `id`; `None`: there is to be none. Removes that of a former ID afterwards.
    pub(super) async fn keep(
        &mut self,
        session: &mut EtcdSession,
        id: Option<Arc<str>>,
    ) -> Result<(), SourceError> {
        let former = self.kept.take_if(|(kept, _)| Some(&*kept) != id.as_ref());
        if let Some(id) = id {
            let endpoint = PeerEndpoint {
                server: id.to_string(),
                address: self.address,
            };
            let value = encode_endpoints(&endpoint, 1);
            let new = || EtcdKey::new(format!("{}{id}", self.prefix));
            let (_, key) = self.kept.get_or_insert_with(|| (id.clone(), new()));
            let written = key.put(session, value.clone(), self.ttl).await?;
            if !written && key.revision() == 0 {
                // It had expired.
                key.put(session, value, self.ttl).await?;
            }
        }
        let Some((id, mut key)) = former else {
            return Ok(());
        };
        let deleted = key.delete(session).await;
        if deleted.is_err() && self.kept.is_none() {
            // For another try; beside a new one it expires by itself.
            self.kept = Some((id, key));
        }
        deleted.map(|_| ())
    }
}
