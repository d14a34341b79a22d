//! Where a connection goes.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use pingora_core::protocols::l4::socket::SocketAddr as PingoraAddr;
use pingora_core::upstreams::peer::Peer;

/// A server's address and the name that its certificate must have.
#[derive(Debug, Clone)]
pub struct Destination {
    address: SocketAddr,
    /// The same address for pingora.
    peer: PingoraAddr,
    hash: u64,
    name: Arc<str>,
}

impl Destination {
    pub fn new(address: SocketAddr, name: Arc<str>) -> Self {
        Self {
            address,
            peer: PingoraAddr::Inet(address),
            hash: hash(address),
            name,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The name that the server's certificate must have.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as {}", self.address, self.name)
    }
}

impl Peer for Destination {
    fn address(&self) -> &PingoraAddr {
        &self.peer
    }
    fn tls(&self) -> bool {
        true
    }
    fn sni(&self) -> &str {
        &self.name
    }
    fn reuse_hash(&self) -> u64 {
        self.hash
    }
}

fn hash(address: SocketAddr) -> u64 {
    use std::hash::{BuildHasher, BuildHasherDefault};
    BuildHasherDefault::<std::hash::DefaultHasher>::default().hash_one(address)
}
