//! The IDs that other servers have: no Lease makes one of them ours, because API users can write Leases. Pure.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::record::{LiveKey, Record};
use super::state::{ClusterState, canonical};

/// IDs at other addresses than ours.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OthersIds {
    /// Of records and live keys, and the IDs that these live keys name for their apiservers.
    pub proxied: BTreeSet<String>,
    /// Of apiservers with the native feature that live or are remembered. Our own apiserver's may be one of them.
    pub native: BTreeSet<String>,
}

impl OthersIds {
    /// Those of all servers that are not at an address of ours.
    pub fn of<'a>(
        records: impl Iterator<Item = (&'a String, &'a Record)>,
        lives: impl Iterator<Item = (&'a String, &'a LiveKey)>,
        natives: impl Iterator<Item = (&'a String, SocketAddr)>,
        ours: &[SocketAddr],
    ) -> Self {
        let elsewhere = |address: SocketAddr| !ours.contains(&canonical(address));
        let records = records.filter(|(_, record)| elsewhere(record.endpoint));
        let lives = lives.filter(|(_, live)| elsewhere(live.endpoint));
        let lives = lives.flat_map(|(id, live)| [Some(id), live.api_server_id.as_ref()]);
        let proxied = records.map(|(id, _)| id).chain(lives.flatten());
        let natives = natives.filter(|(_, address)| elsewhere(*address));
        Self {
            proxied: proxied.cloned().collect(),
            native: natives.map(|(id, _)| id.clone()).collect(),
        }
    }
}

impl ClusterState {
    /// `None` until etcd was read.
    pub fn others_ids(&self) -> Option<OthersIds> {
        let records = self.servers.iter();
        let entries = self.endpoints.iter().map(|(id, at)| (id, at.value.address));
        let natives = self.natives.iter();
        let natives = natives.map(|(id, (native, _))| (id, native.address));
        self.synced().then(|| {
            OthersIds::of(
                records.map(|(id, at)| (id, &at.value.record)),
                self.live.iter().map(|(id, at)| (id, &at.value)),
                entries.chain(natives),
                &[self.own_endpoint],
            )
        })
    }
}
