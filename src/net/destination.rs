//! Where a connection goes.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// A server's address and the name that its certificate must have.
#[derive(Debug, Clone)]
pub struct Destination {
    pub address: SocketAddr,
    pub name: Arc<str>,
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as {}", self.address, self.name)
    }
}
