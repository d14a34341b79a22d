//! Bare apiservers: those that live without a proxy. Pure; [`super::unproxied`] asks them.
//!
//! Every kube-apiserver of every version keeps a key below `masterleases/` that is named by its advertised address; API
//! users cannot write there. Its port is taken for that of our own advertised address: the apiservers of a cluster share
//! one, and what else names it, the Endpoints of the `kubernetes` Service, API users can write. An address that no proxy,
//! no native peer and not this server explains is a candidate: it is asked for its discovery, and until it has answered
//! nobody knows what it serves, however long that takes: its key proves that it lives. It is no bare server if a proxy
//! answers.
//!
//! What a bare server served is remembered for `rerouting.absentServerGrace` after it was last there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use super::codec::{self, Undecodable};
use super::keys::Topic;
use super::prefix::Decoded;
use super::source::EtcdItem;
use super::state::ClusterState;
use super::undecodable::Undecodables;
use super::unproxied::{BareAnswer, NativePeer, NotRead};
use crate::routing::table::{Server, ServerKind};

/// Most addresses that are asked, in their order. What the others serve counts as unknown.
pub const MAX_ASKED: usize = 64;

/// What is known of an address that was asked.
#[derive(Debug)]
pub(super) struct AskedAddress {
    /// Why it could not be read last; `None`: it was read.
    pub(super) failure: Option<NotRead>,
    /// A proxy answered there, and no apiserver has taken its place.
    led_to_proxy: bool,
    /// The revision that created the key for which it was asked last: with another one another process may be there.
    created: i64,
    /// The discovery that was read last.
    pub(super) read: Option<NativePeer>,
    /// Until when it is remembered.
    pub(super) until: Instant,
}

impl AskedAddress {
    /// Whether the process that was asked last was read.
    fn was_read(&self) -> bool {
        let read = self.read.as_ref();
        read.is_some_and(|read| read.created == self.created)
    }
}

/// What was read and is not known to be absent, in the order of addresses.
pub(super) type Asked = BTreeMap<SocketAddr, AskedAddress>;

impl ClusterState {
    /// An address answered that was asked for the key of this creation. Returns whether readers see a change.
    pub fn bare_answered(
        &mut self,
        (from, created): (SocketAddr, i64),
        answer: BareAnswer,
        now: Instant,
    ) -> bool {
        let failure = answer.as_ref().err().copied();
        let before = self.asked.remove(&from);
        let is_same = |it: &AskedAddress| it.failure == failure && it.created == created;
        let same = before.as_ref().is_some_and(is_same);
        let was_led = before.as_ref().is_some_and(|before| before.led_to_proxy);
        let is_proxy = failure == Some(NotRead::Proxy);
        let before = before.filter(|_| !is_proxy);
        let is_gone = failure == Some(NotRead::Nobody);
        let until = before.as_ref().filter(|it| it.read.is_some() && is_gone);
        let until = until.map_or(now + self.grace, |it| it.until);
        let before = before.and_then(|before| before.read);
        let asked = AskedAddress {
            failure,
            led_to_proxy: is_proxy || failure.is_some() && was_led,
            created,
            read: match answer {
                Ok(read) => Some(self.read_after(read, before.as_ref())),
                Err(_) => before,
            },
            until,
        };
        self.asked.insert(from, asked);
        failure.is_none() || !same
    }

    /// Whether an apiserver that advertises this address lives.
    fn lives(&self, ip: IpAddr) -> bool {
        self.created(ip).is_some()
    }

    /// The revision that created the key of the living apiserver that advertises this address.
    pub(super) fn created(&self, ip: IpAddr) -> Option<i64> {
        let its = self.masters.iter().filter(|(_, at)| at.value == ip);
        its.map(|(_, at)| at.created).max()
    }

    /// Whether the discovery of the living apiserver that advertises this address was read.
    pub(super) fn reads(&self, ip: IpAddr) -> bool {
        let asked = self.asked_now(SocketAddr::new(ip, self.own_endpoint.port()));
        asked.is_some_and(|asked| asked.failure.is_none())
    }

    /// Whether the apiserver that lives there now was asked, and not only one before it.
    fn is_current(&self, ip: IpAddr, asked: &AskedAddress) -> bool {
        self.created(ip) == Some(asked.created)
    }

    /// What the apiserver said that lives there now.
    pub(super) fn asked_now(&self, address: SocketAddr) -> Option<&AskedAddress> {
        let asked = self.asked.get(&address);
        asked.filter(|asked| self.is_current(address.ip(), asked))
    }

    /// Whether that was asked, or one that has most likely written its key anew after etcd had paused.
    fn is_believed(&self, ip: IpAddr, asked: &AskedAddress) -> bool {
        let mut its = self.masters.iter().filter(|(_, at)| at.value == ip);
        self.is_current(ip, asked) || its.any(|(_, at)| at.former == Some(asked.created))
    }

    /// The address of each living apiserver. What advertises our own IP address is our own apiserver.
    pub(super) fn advertised(&self) -> BTreeSet<SocketAddr> {
        let own = self.own_endpoint;
        let masters = self.masters.iter().map(|(_, at)| at.value);
        masters
            .filter(|ip| *ip != own.ip() && !self.ignored_addresses.contains(ip))
            .map(|ip| SocketAddr::new(ip, own.port()))
            .collect()
    }

    /// Addresses of living apiservers that nothing explains but a key below `masterleases/`, in their order.
    pub(super) fn unexplained(&self) -> Vec<SocketAddr> {
        if !self.synced() {
            // Live keys may be missing still.
            return Vec::new();
        }
        let addresses = self.advertised().into_iter();
        addresses
            .filter(|address| !self.is_explained(*address))
            .collect()
    }

    /// Notes which apiserver lives beside the proxy that has just written its live key.
    pub(super) fn note_proxied(&mut self, id: &str) {
        let ip = self.live.get(id).map(|at| at.value.endpoint.ip());
        if let Some((ip, created)) = ip.and_then(|ip| Some((ip, self.created(ip)?))) {
            self.proxied.insert(ip, created);
        }
    }

    /// A key that was created anew because etcd had paused is still that of the same apiserver.
    pub(super) fn follow_proxied(&mut self) {
        for (_, at) in self.masters.iter() {
            if let Some(created) = self.proxied.get_mut(&at.value)
                && at.former == Some(*created)
            {
                *created = at.created;
            }
        }
    }

    /// Whether another apiserver than the one that was beside a proxy advertises this address now.
    fn is_another(&self, ip: IpAddr) -> bool {
        let beside = self.proxied.get(&ip);
        beside.is_some_and(|created| self.created(ip) != Some(*created))
    }

    /// Whether nothing is known of what a living apiserver serves: it was never read, and no record tells of it. Where
    /// nobody answers, it may be another address of a server that is known by its proxy.
    pub(super) fn has_unknown_bare_server(&self) -> bool {
        let has_record = |ip: IpAddr| {
            let mut records = self.servers.iter();
            records.any(|(_, at)| at.value.record.endpoint.ip() == ip) && !self.is_another(ip)
        };
        // A proxy that has a record and no live key does not tell what its apiserver serves now.
        let is_silent = |address| self.servers.has_address(address);
        let mut unanswered = 0;
        for address in self.unexplained() {
            match self.asked_now(address) {
                None => return true,
                Some(asked) if asked.was_read() => {}
                Some(asked) if asked.led_to_proxy && !is_silent(address) => {}
                Some(_) if has_record(address.ip()) => {}
                Some(asked) if asked.failure == Some(NotRead::Nobody) => unanswered += 1,
                Some(_) => return true,
            }
        }
        // The apiservers of live proxies whose addresses none advertises may advertise others.
        let initialized = self.live.iter().filter(|(_, at)| at.value.initialized);
        let ips = initialized.map(|(_, at)| at.value.endpoint.ip());
        let not_advertised: BTreeSet<_> = ips.filter(|ip| !self.lives(*ip)).collect();
        unanswered > not_advertised.len()
    }

    /// The bare servers that live, and those that lived within the grace.
    pub(super) fn bare_servers(&self) -> Vec<Server> {
        let unexplained = self.unexplained();
        let servers = self.asked.iter().filter_map(|(address, asked)| {
            let is_bare = matches!(asked.failure, None | Some(NotRead::Unreadable));
            let live = is_bare && unexplained.contains(address);
            let read = asked.read.as_ref();
            // It is another server's address, or nobody was ever there, as far as is known.
            if self.is_explained(*address) || !live && read.is_none() {
                return None;
            }
            let reads = live && asked.failure.is_none();
            let known = reads && self.is_current(address.ip(), asked);
            let target = reads && self.is_believed(address.ip(), asked);
            let id = address.to_string();
            Some(Server {
                live,
                initialized: target,
                target,
                ready: target,
                known,
                ..NativePeer::server(read, &id, ServerKind::Bare, *address)
            })
        });
        servers.collect()
    }

    /// Records of servers whose proxy is down while their apiserver lives and cannot be read, with their revisions. They
    /// must not end, or what only these apiservers serve would count as served by nobody.
    pub fn unreachable_records(&self, own: Option<&str>) -> BTreeMap<String, i64> {
        let records = self.servers.iter();
        records
            .filter(|(id, record)| {
                let endpoint = record.value.record.endpoint;
                Some(id.as_str()) != own
                    && self.live.get(id).is_none()
                    // The server is there again, at this or another port, or it is this one.
                    && !self.has_proxy(endpoint.ip())
                    && !self.is_explained(endpoint)
                    && self.servers.is_newest(record)
                    && self.lives(endpoint.ip())
                    && !self.reads(endpoint.ip())
            })
            .map(|(id, record)| (id.clone(), record.revision))
            .collect()
    }

    /// Whether a live proxy, or this one, has this IP address.
    fn has_proxy(&self, ip: IpAddr) -> bool {
        let mut live = self.live.iter().map(|(_, at)| at.value.endpoint);
        ip == self.own_endpoint.ip() || live.any(|endpoint| endpoint.ip() == ip)
    }

    /// What living servers serve is remembered for the whole grace from now on; not what a process before served where nobody
    /// is any more. Returns their addresses.
    pub(super) fn remember_living(&mut self, now: Instant) -> BTreeSet<SocketAddr> {
        let living = self.advertised();
        let asked = self.asked.iter_mut().filter(|(at, _)| living.contains(at));
        for (_, asked) in asked {
            if asked.failure != Some(NotRead::Nobody) || asked.read.is_none() || asked.was_read() {
                asked.until = now + self.grace;
            }
        }
        living
    }

    /// Removes what is not needed any more: of addresses that are explained otherwise at once, of those that are absent
    /// after the grace. Returns whether readers see a change.
    pub fn expire_bare(&mut self, now: Instant) -> bool {
        let suspended = self.masters.expire(now);
        let living = self.remember_living(now);
        let asked = std::mem::take(&mut self.asked);
        let before = asked.len();
        let stays = |(address, asked): &(SocketAddr, AskedAddress)| {
            // Where nobody answers any more while its proxy does, at another port, nothing is to be remembered.
            let is_gone = asked.failure == Some(NotRead::Nobody) && self.has_proxy(address.ip());
            (living.contains(address) || asked.read.is_some())
                && asked.until > now
                && !self.ignored_addresses.contains(&address.ip())
                && !self.is_explained(*address)
                && !is_gone
        };
        self.asked = asked.into_iter().filter(stays).collect();
        suspended || self.asked.len() != before
    }
}

/// The address that a key below `masterleases/` names. The value is only looked at; kube-apiserver may encrypt it.
/// `loopback`: an apiserver may be on this machine.
pub(super) fn advertised_address(
    item: &EtcdItem,
    loopback: bool,
    undecodables: &mut Undecodables,
) -> Decoded<IpAddr> {
    let address = usable_address(&item.key, loopback);
    let look = |value: &[u8]| match codec::is_endpoints(value) {
        _ if address.is_none() => Err(Undecodable::Field("the address in its key")),
        Err(Undecodable::Encrypted) => Ok(()),
        looked_at => looked_at,
    };
    undecodables.read(Topic::MasterLeases, item, look);
    address.map(Some)
}

/// The address that a key below `masterleases/` names, if an apiserver can have it. `loopback`: also on this machine.
pub fn usable_address(key: &str, loopback: bool) -> Option<IpAddr> {
    let ip = key.parse::<IpAddr>().ok()?.to_canonical();
    let special = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let usable = !ip.is_unspecified() && !ip.is_multicast() && !special;
    (usable && (loopback || !ip.is_loopback())).then_some(ip)
}
