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
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::native_peer::NativePeer;
use super::prefix::{PrefixState, Versioned};
use super::source::EtcdItem;
use super::suspended::{Gap, LeasedKeys};
use super::watch::Event;

/// Most addresses that are asked, in their order. What the others serve counts as unknown.
pub const MAX_ASKED: usize = 64;

/// Lifetime of a key below `masterleases/`, which its apiserver writes every 10 s.
pub const MASTER_LEASE_TTL: Duration = Duration::from_secs(15);

/// What an address answered: the discovery of a ready apiserver, or why there is none.
pub type BareAnswer = Result<NativePeer, NotRead>;

/// Why an address gave no discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotRead {
    /// An apiserver's certificate, and no discovery: it is starting, or does not accept us.
    Unreadable,
    /// Nobody with an apiserver's certificate so far: it may be restarting.
    Silent,
    /// Nobody with an apiserver's certificate for longer than the key of a dead one lives.
    Nobody,
    /// A proxy, this one included.
    Proxy,
}

/// What is known of an address that was asked.
#[derive(Debug)]
pub struct AskedAddress {
    /// Why it could not be read last; `None`: it was read.
    pub failure: Option<NotRead>,
    /// A proxy answered there, and no apiserver has taken its place.
    pub led_to_proxy: bool,
    /// The discovery that was read last.
    pub read: Option<NativePeer>,
    /// Until when it is remembered.
    until: Instant,
}

impl AskedAddress {
    /// Whether a server without a proxy lives there.
    pub fn is_bare(&self) -> bool {
        matches!(self.failure, None | Some(NotRead::Unreadable))
    }

    /// What is there, for the report.
    pub fn name(&self) -> &'static str {
        match self.failure {
            None => "bare",
            Some(NotRead::Unreadable) => "bare, its discovery cannot be read",
            Some(NotRead::Silent) => "does not answer",
            Some(NotRead::Nobody) => "no apiserver answers",
            Some(NotRead::Proxy) => "leads to a proxy",
        }
    }
}

/// The addresses of living apiservers, and what those answered that were asked.
#[derive(Debug)]
pub struct BareServers {
    own: SocketAddr,
    grace: Duration,
    leases: LeasedKeys<IpAddr>,
    /// `rerouting.bareServers` is `Ignore`.
    ignored: bool,
    /// `rerouting.ignoredAddresses`
    ignored_addresses: Arc<BTreeSet<IpAddr>>,
    asked: BTreeMap<SocketAddr, AskedAddress>,
}

impl BareServers {
    /// `own`: our address; `ttl`: of live keys; `grace`: how long an absent server is remembered.
    pub fn new(own: SocketAddr, ttl: Duration, grace: Duration) -> Self {
        Self {
            own,
            grace,
            leases: LeasedKeys::new(ttl.max(MASTER_LEASE_TTL)),
            ignored: false,
            ignored_addresses: Arc::default(),
            asked: BTreeMap::new(),
        }
    }

    /// Nothing is followed: there are no bare servers.
    pub fn ignore(&mut self) {
        self.ignored = true;
    }

    /// These addresses lead to no server of their own.
    pub fn ignore_addresses(&mut self, addresses: Arc<BTreeSet<IpAddr>>) {
        self.ignored_addresses = addresses;
    }

    /// The keys were listed, or are ignored.
    pub fn is_complete(&self) -> bool {
        self.ignored || self.leases.listed.complete
    }

    /// An event of `masterleases/`. `decode`: the address that a key names.
    pub fn take_lease(
        &mut self,
        event: Event,
        now: Instant,
        gap: &Gap,
        decode: impl FnMut(&EtcdItem) -> Option<IpAddr>,
    ) -> bool {
        // This may be the end of some.
        self.remember_living(now);
        if event == Event::Forbidden {
            self.leases.listed = PrefixState::default();
        }
        self.leases.take(event, now, gap, decode)
    }

    /// All living addresses, with their keys.
    pub fn leases(&self) -> impl Iterator<Item = (&String, &Versioned<IpAddr>)> {
        self.leases.iter()
    }

    /// Whether an apiserver that advertises this address lives.
    pub fn lives(&self, ip: IpAddr) -> bool {
        self.leases().any(|(_, at)| at.value == ip)
    }

    /// The address of each living apiserver in their order. What advertises our own IP address is our own apiserver.
    pub fn addresses(&self) -> BTreeSet<SocketAddr> {
        let leases = self.leases();
        leases
            .map(|(_, at)| SocketAddr::new(at.value, self.own.port()))
            .filter(|address| {
                address.ip() != self.own.ip() && !self.ignored_addresses.contains(&address.ip())
            })
            .collect()
    }

    /// What an address answered. Returns whether readers see a change.
    pub fn answered(&mut self, address: SocketAddr, answer: BareAnswer, now: Instant) -> bool {
        let failure = answer.as_ref().err().copied();
        let until = now + self.grace;
        let before = self.asked.remove(&address);
        let same = before.as_ref().is_some_and(|it| it.failure == failure);
        let led_to_proxy = match failure {
            Some(NotRead::Proxy) => true,
            Some(_) => before.as_ref().is_some_and(|before| before.led_to_proxy),
            None => false,
        };
        let before = before.filter(|_| failure != Some(NotRead::Proxy));
        let before = before.and_then(|before| before.read);
        let read = match answer {
            Ok(read) => Some(read.after(before.as_ref())),
            Err(_) => before,
        };
        let asked = AskedAddress {
            failure,
            led_to_proxy,
            read,
            until,
        };
        self.asked.insert(address, asked);
        failure.is_none() || !same
    }

    pub fn asked(&self) -> impl Iterator<Item = (&SocketAddr, &AskedAddress)> {
        self.asked.iter()
    }

    pub fn asked_of(&self, address: SocketAddr) -> Option<&AskedAddress> {
        self.asked.get(&address)
    }

    /// Whether the discovery of the living apiserver that advertises this address was read.
    pub fn reads(&self, ip: IpAddr) -> bool {
        let mut asked = self.asked.iter();
        self.lives(ip)
            && asked.any(|(address, asked)| address.ip() == ip && asked.failure.is_none())
    }

    /// A connection to `address` was refused. Returns whether readers see a change.
    pub fn refused(&mut self, address: SocketAddr) -> bool {
        let port = self.own.port();
        self.leases
            .refused(address, |ip| SocketAddr::new(*ip, port))
    }

    /// What living servers serve is remembered for the whole grace from now on. Returns their addresses.
    fn remember_living(&mut self, now: Instant) -> BTreeSet<SocketAddr> {
        let living = self.addresses();
        for (_, asked) in self.asked.iter_mut().filter(|(at, _)| living.contains(at)) {
            asked.until = now + self.grace;
        }
        living
    }

    /// When the next entry expires.
    pub fn next_expiry(&self) -> Option<Instant> {
        let asked = self.asked.values().filter(|asked| asked.read.is_some());
        asked
            .map(|asked| asked.until)
            .chain(self.leases.next())
            .min()
    }

    /// Removes what is not needed any more: of addresses that are explained otherwise (`taken`) at once, of those that
    /// are gone after the grace. Returns whether readers see a change.
    pub fn expire(&mut self, now: Instant, taken: impl Fn(SocketAddr) -> bool) -> bool {
        let suspended = self.leases.expire(now);
        let current = self.remember_living(now);
        let before = self.asked.len();
        self.asked.retain(|address, asked| {
            let remembered = current.contains(address) || asked.read.is_some();
            let ignored = self.ignored_addresses.contains(&address.ip());
            remembered && asked.until > now && !ignored && !taken(*address)
        });
        suspended || self.asked.len() != before
    }
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
