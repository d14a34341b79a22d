//! Another proxy at the same addresses that is stopping: this one is to take its place.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(1);
/// Between two tries to bind.
const PAUSE: Duration = Duration::from_millis(50);
/// Enough for the list of checks.
const MAX_BYTES: u64 = 64 << 10;
const REQUEST: &[u8] =
    b"GET /readyz?verbose HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
/// What [`super::pages`] says of a proxy that is stopping.
const STOPPING: &str = "[-]serving failed: stopping";

/// The listener of an admin port.
pub struct AdminListener {
    pub address: SocketAddr,
    /// `None`: a proxy that is stopping still has the address.
    socket: Option<TcpListener>,
}

impl AdminListener {
    /// Binds the port, if it is not taken by a predecessor.
    pub fn bind(address: SocketAddr, has_predecessor: bool) -> io::Result<Self> {
        let socket = match bind(address) {
            Err(_) if has_predecessor => None,
            bound => Some(bound?),
        };
        let real = socket.as_ref().map(TcpListener::local_addr);
        let address = real.unwrap_or(Ok(address))?;
        Ok(Self { address, socket })
    }

    /// The listener, as soon as the address is free.
    pub async fn bound(mut self) -> TcpListener {
        loop {
            if let Some(listener) = self.socket.take().or_else(|| bind(self.address).ok()) {
                return listener;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whether a proxy with its admin port at `address` is stopping. Blocks for a second at most, unless somebody else is
/// there.
pub fn is_stopping(address: SocketAddr) -> bool {
    let answer = readiness(address).unwrap_or_default();
    String::from_utf8_lossy(&answer).contains(STOPPING)
}

fn readiness(address: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(REQUEST)?;
    let mut answer = Vec::new();
    // What was read before an error counts.
    let _ = stream.take(MAX_BYTES).read_to_end(&mut answer);
    Ok(answer)
}
