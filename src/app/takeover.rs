//! Takes the place of a proxy that is stopping at the same addresses.
//!
//! Both could accept connections: the kernel spreads them. So this one listens only when it serves everything, or when
//! the other has ended.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::relay::shared::Shared;

/// Between two looks at whether this proxy is ready.
const INTERVAL: Duration = Duration::from_millis(50);

/// `free`: becomes true when the other proxy's admin port is this one's.
pub(super) async fn run(
    shared: Arc<Shared>,
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
        // The guard in the result must not be held. An error means that the process is ending.
        () = async { _ = free.wait_for(|free| *free).await.is_ok() } => {}
    }
    start_listening.send_replace(true);
}
