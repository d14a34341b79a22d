//! Asks the local apiserver's `/readyz`, again and again, and sees restarts by refused connections.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{MissedTickBehavior, interval};

use super::state::LocalState;
use crate::client::{Client, ClientError};

/// Probes until dropped.
pub async fn run(mut client: Client, state: Arc<LocalState>, every: Duration) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let epoch = state.epoch();
        match client.get("/readyz", &[]).await {
            Ok(answer) => state.answered(answer.status == StatusCode::OK, epoch),
            Err(ClientError::Refused) => state.refused(),
            Err(error) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "/readyz was not answered"
                );
                state.silent();
            }
        }
    }
}
