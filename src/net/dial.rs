//! Opens a connection to a server: TCP, then TLS with the current credentials.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pingora_core::protocols::Stream;
use pingora_core::protocols::l4::ext::TcpKeepalive;
use pingora_core::protocols::l4::stream::Stream as TcpStream;
use pingora_core::protocols::tls::client::handshake;
use pingora_core::{Error, ErrorType, OrErr};
use rustls::ClientConfig;
use tokio_rustls::TlsConnector;

use super::files;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// Detects half-open connections. Watches may be silent for a long time. What is sent, a ping at least, has to be
/// acknowledged in the user timeout: a system does that for a process that is busy or frozen too.
const KEEPALIVE: TcpKeepalive = TcpKeepalive {
    idle: Duration::from_secs(15),
    interval: Duration::from_secs(5),
    count: 3,
    user_timeout: Duration::from_secs(15),
};

/// Connects to `address`, whose certificate must have `name`.
pub async fn dial(
    address: SocketAddr,
    name: &str,
    tls: &Arc<ClientConfig>,
) -> pingora_core::Result<Stream> {
    let tcp = timely(CONNECT_TIMEOUT, tokio::net::TcpStream::connect(address)).await?;
    let tcp = tcp.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            Error::because(ErrorType::ConnectRefused, "connecting", error)
        }
        _ => Error::because(ErrorType::ConnectError, "connecting", error),
    })?;
    if !files::is_for_requests(&tcp) {
        return Error::e_explain(ErrorType::ConnectError, "no open files are left for it");
    }
    let mut tcp = TcpStream::from(tcp);
    tcp.set_nodelay()?;
    tcp.set_keepalive(&KEEPALIVE)
        .or_err(ErrorType::ConnectError, "setting keepalive")?;
    let connector = TlsConnector::from(tls.clone());
    let tls = timely(HANDSHAKE_TIMEOUT, handshake(&connector, name, tcp)).await??;
    Ok(Box::new(tls))
}

async fn timely<T>(limit: Duration, work: impl Future<Output = T>) -> pingora_core::Result<T> {
    tokio::time::timeout(limit, work)
        .await
        .or_err(ErrorType::ConnectTimedout, "connecting")
}
