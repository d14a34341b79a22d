//! Waiting until nothing is lacking.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::terminal::complain;

/// Asks again and again, with this pause. What is lacking goes to standard error whenever it changes; the error is what
/// was lacking still at the end.
pub(super) async fn until_nothing_lacks(
    limit: Duration,
    pause: Duration,
    mut lacking: impl AsyncFnMut() -> Vec<String>,
) -> Result<(), String> {
    let deadline = Instant::now() + limit;
    let mut said = Vec::new();
    loop {
        let lacking = lacking().await;
        let left = deadline.saturating_duration_since(Instant::now());
        if lacking.is_empty() {
            return Ok(());
        }
        if lacking != said {
            for line in &lacking {
                complain(format_args!("waiting: {line}"));
            }
            said = lacking;
        }
        if left.is_zero() {
            return Err(said.join("; "));
        }
        sleep(left.min(pause)).await;
    }
}
