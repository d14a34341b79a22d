//! Gives each server of each test a unique loopback address.
//!
//! All of 127.0.0.0/8 is this machine. A test that holds the lock port of an address may use all its other ports. They
//! are certainly free, unlike a port that was bound to 0 and released.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ephemeral ports, and used by no program of the tests.
const LOCK_PORT: u16 = 6442;

static NEXT: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
pub struct Loopback {
    ip: Ipv4Addr,
    /// Kept open, never accepted from.
    _lock: TcpListener,
}

impl Loopback {
    /// Takes an address that no other test holds, in this process or another.
    pub fn new() -> Self {
        for _ in 0..1000 {
            let ip = candidate(std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            match TcpListener::bind((ip, LOCK_PORT)) {
                Ok(lock) => return Self { ip, _lock: lock },
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => panic!("cannot listen on {ip}:{LOCK_PORT}: {error}"),
            }
        }
        panic!("a thousand loopback addresses are taken on port {LOCK_PORT}");
    }

    pub fn ip(&self) -> IpAddr {
        IpAddr::V4(self.ip)
    }

    pub fn socket(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.ip(), port)
    }
}

impl Default for Loopback {
    fn default() -> Self {
        Self::new()
    }
}

/// 127.1-254.1-254.1-254, spread so that processes with neighbouring ids start far apart.
fn candidate(pid: u32, number: u32) -> Ipv4Addr {
    let slot = pid.wrapping_mul(2_654_435_761).wrapping_add(number) % (254 * 254 * 254);
    let octet = |value: u32| u8::try_from(value % 254 + 1).unwrap_or(1);
    Ipv4Addr::new(
        127,
        octet(slot / (254 * 254)),
        octet(slot / 254),
        octet(slot),
    )
}
