//! Takes the place of a proxy that is stopping at the same addresses.
//!
//! Both could accept connections: the kernel spreads them. So this one listens only when it serves everything, or when
//! the other has stopped listening.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::relay::shared::Shared;

/// Between two looks at whether this proxy is ready.
const INTERVAL: Duration = Duration::from_millis(50);

/// Between two connections to see whether the other still listens.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// `serving`: where both serve; `free`: becomes true when the other proxy's admin port is this one's.
pub(super) async fn run(
    shared: Arc<Shared>,
    serving: SocketAddr,
    mut free: watch::Receiver<bool>,
    start_listening: watch::Sender<bool>,
) {
    let ready = async {
        while !shared.is_ready() {
            tokio::time::sleep(INTERVAL).await;
        }
    };
    tokio::select! {
        () = ready => {}
        () = nobody_listens(serving) => {}
        // The guard in the result must not be held. An error means that the process is ending.
        () = async { _ = free.wait_for(|free| *free).await.is_ok() } => {}
    }
    start_listening.send_replace(true);
}

/// Resolves when connections are refused. The other's last requests may go on.
async fn nobody_listens(serving: SocketAddr) {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let connecting = TcpStream::connect(serving);
        match timeout(LOOK_INTERVAL, connecting).await {
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => return,
            // No answer: it is about to close its port, and drops newcomers.
            _ => {}
        }
    }
}
