//! Bare apiservers among the servers of the cluster: which addresses are asked, and what of them is in the snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use crate::cluster::bare::{AskedAddress, MAX_ASKED, NotRead};
use crate::cluster::state::{ClusterState, canonical};
use crate::routing::table::{Server, ServerKind};

impl ClusterState {
    /// Addresses of living apiservers that nothing explains but a key below `masterleases/`, in their order.
    pub(in crate::cluster) fn unexplained(&self) -> Vec<SocketAddr> {
        if !self.synced() {
            // Live keys may be missing still.
            return Vec::new();
        }
        let addresses = self.bare.addresses().into_iter();
        addresses
            .filter(|address| !self.is_taken(*address))
            .collect()
    }

    /// There are no bare servers.
    pub fn ignore_bare_servers(&mut self) {
        self.bare.ignore();
    }

    /// `rerouting.ignoredAddresses`
    pub fn ignore_addresses(&mut self, addresses: Arc<BTreeSet<IpAddr>>) {
        self.bare.ignore_addresses(addresses);
    }

    /// Those of them that are to be asked, and whether a proxy has advertised itself there.
    pub fn bare_candidates(&self) -> BTreeMap<SocketAddr, bool> {
        let asked = self.unexplained().into_iter().take(MAX_ASKED);
        let records = self.servers.current.values();
        let records: BTreeSet<_> = records
            .map(|at| canonical(at.value.record.endpoint))
            .collect();
        asked
            .map(|address| (address, records.contains(&address)))
            .collect()
    }

    /// Whether nothing is known of what a living apiserver serves: it was never read, and no record tells of it. Where
    /// nobody answers, it may be another address of a server that is known by its proxy.
    pub(super) fn has_unknown_bare_server(&self) -> bool {
        let mut unanswered = 0;
        for address in self.unexplained() {
            match self.bare.asked_of(address) {
                None => return true,
                Some(asked) if asked.led_to_proxy || asked.read.is_some() => {}
                Some(_) if self.has_record(address) => {}
                Some(asked) if asked.failure == Some(NotRead::Nobody) => unanswered += 1,
                Some(_) => return true,
            }
        }
        unanswered > self.proxies_not_advertised()
    }

    /// How many live proxies have addresses that no apiserver advertises: theirs may advertise others.
    fn proxies_not_advertised(&self) -> usize {
        let initialized = self.live.iter().filter(|(_, at)| at.value.initialized);
        let ips = initialized.map(|(_, at)| canonical(at.value.endpoint).ip());
        let ips: BTreeSet<_> = ips.filter(|ip| !self.bare.lives(*ip)).collect();
        ips.len()
    }

    /// Whether a server with this IP address has a record.
    fn has_record(&self, address: SocketAddr) -> bool {
        let mut records = self.servers.current.values();
        records.any(|at| canonical(at.value.record.endpoint).ip() == address.ip())
    }

    /// The bare servers that live, and those that lived within the grace.
    pub(in crate::cluster) fn bare_servers(&self) -> Vec<Server> {
        let unexplained: BTreeSet<_> = self.unexplained().into_iter().collect();
        let asked = self.bare.asked();
        asked
            .filter(|(address, _)| !self.is_taken(**address))
            .filter_map(|(address, asked)| {
                bare_server(*address, asked, unexplained.contains(address))
            })
            .collect()
    }

    /// Records of servers whose proxy is gone while their apiserver lives and cannot be read, with their revisions. They
    /// must not end, or what only these apiservers serve would count as served by nobody.
    pub fn unreachable_records(&self, own: Option<&str>) -> BTreeMap<String, i64> {
        let records = self.servers.current.iter();
        records
            .filter(|(id, record)| {
                let endpoint = canonical(record.value.record.endpoint);
                Some(id.as_str()) != own
                    && self.live.get(id).is_none()
                    // The server is there again, at this or another port, or it is this one.
                    && !self.has_proxy(endpoint.ip())
                    && !self.is_taken(endpoint)
                    && !self.is_replaced(endpoint, record.revision)
                    && self.bare.lives(endpoint.ip())
                    && !self.bare.reads(endpoint.ip())
            })
            .map(|(id, record)| (id.clone(), record.revision))
            .collect()
    }

    /// Whether a live proxy, or this one, has this IP address.
    fn has_proxy(&self, ip: IpAddr) -> bool {
        let mut live = self.live.iter().map(|(_, at)| canonical(at.value.endpoint));
        ip == self.own_endpoint.ip() || live.any(|endpoint| endpoint.ip() == ip)
    }

    /// Removes what is not needed any more. Returns whether readers see a change.
    pub fn expire_bare(&mut self, now: Instant) -> bool {
        let asked: Vec<_> = self.bare.asked().map(|(address, _)| *address).collect();
        // Where nobody answers any more while its proxy does, at another port, nothing is to be remembered.
        let is_gone = |address: &SocketAddr| {
            let asked = self.bare.asked_of(*address);
            asked.is_some_and(|asked| asked.failure == Some(NotRead::Nobody))
                && self.has_proxy(address.ip())
        };
        let taken = asked
            .into_iter()
            .filter(|address| self.is_taken(*address) || is_gone(address));
        let taken: BTreeSet<_> = taken.collect();
        self.bare.expire(now, |address| taken.contains(&address))
    }
}

/// `lives`: its key below `masterleases/` is there.
fn bare_server(address: SocketAddr, asked: &AskedAddress, lives: bool) -> Option<Server> {
    let live = lives && asked.is_bare();
    let read = asked.read.as_ref();
    // Nobody was ever there, as far as is known.
    if !live && read.is_none() {
        return None;
    }
    let known = live && asked.failure.is_none();
    Some(Server {
        id: address.to_string().into(),
        endpoint: address,
        kind: ServerKind::Bare,
        live,
        initialized: known,
        target: known,
        ready: known,
        binary_version: read.map(|read| read.binary_version.clone()),
        version: read.and_then(|read| read.version),
        history_start: None,
        history_void: false,
        known,
        served: read.map(|read| read.served.clone()),
    })
}
