//! Waiting for a stop.

use tokio::sync::watch;

/// Resolves when the value is true, or when its sender is gone.
pub(super) async fn becomes_true(watched: &mut watch::Receiver<bool>) {
    // The guard in the result must not be held.
    let _ = watched.wait_for(|value| *value).await.is_ok();
}
