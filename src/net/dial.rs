//! Connections of TCP and TLS: opens those to servers, and sets the options of all.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pingora_core::{Error, ErrorType, OrErr};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::files;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// What is sent, a ping at least, has to be acknowledged in this time: a system does that for a process that is busy or
/// frozen too.
const ACKNOWLEDGED: Duration = Duration::from_secs(15);
/// A connection is idle for so long before the other end is asked whether it is there.
const IDLE: Duration = Duration::from_secs(15);
/// Between these questions, to servers.
const INTERVAL: Duration = Duration::from_secs(5);
const QUESTIONS: u32 = 3;
/// Bytes of one read from a server: a TLS record.
const READ_SIZE: usize = 16 << 10;

/// Connects to `address`, whose certificate must have `name`.
pub async fn dial(
    address: SocketAddr,
    name: &str,
    tls: &Arc<ClientConfig>,
) -> pingora_core::Result<TlsStream<BufReader<TcpStream>>> {
    let tcp = timely(CONNECT_TIMEOUT, TcpStream::connect(address)).await?;
    let tcp = tcp.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            Error::because(ErrorType::ConnectRefused, "connecting", error)
        }
        _ => Error::because(ErrorType::ConnectError, "connecting", error),
    })?;
    if !files::is_for_requests(&tcp) {
        return Error::e_explain(ErrorType::ConnectError, "no open files are left for it");
    }
    set_options(&tcp, INTERVAL, Some(ACKNOWLEDGED))
        .or_err(ErrorType::ConnectError, "setting options")?;
    let name = ServerName::try_from(name.to_owned());
    let name = name.or_err(ErrorType::InternalError, "naming the server")?;
    // rustls alone would read 4 KiB at a time.
    let tcp = BufReader::with_capacity(READ_SIZE, tcp);
    let handshake = TlsConnector::from(tls.clone()).connect(name, tcp);
    timely(HANDSHAKE_TIMEOUT, handshake)
        .await?
        .or_err(ErrorType::TLSHandshakeFailure, "beginning TLS")
}

async fn timely<T>(limit: Duration, work: impl Future<Output = T>) -> pingora_core::Result<T> {
    tokio::time::timeout(limit, work)
        .await
        .or_err(ErrorType::ConnectTimedout, "connecting")
}

/// Sends small writes at once, and detects half-open connections: watches may be silent for a long time. `acknowledged`:
/// the time in which the other end has to acknowledge what is sent.
pub fn set_options(
    tcp: &TcpStream,
    interval: Duration,
    acknowledged: Option<Duration>,
) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(IDLE).with_interval(interval);
    let socket = SockRef::from(tcp);
    socket.set_tcp_keepalive(&keepalive.with_retries(QUESTIONS))?;
    socket.set_tcp_user_timeout(acknowledged)
}
