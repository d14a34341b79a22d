//! Asks the local apiserver's `/readyz`, again and again, and sees restarts by refused connections.
//!
//! Its lease may say that it is another process now. API users can write leases, so that only forces a look over a new
//! connection: an apiserver that is not ready then is taken for a new process.

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
        let suspected = tokio::select! {
            biased;
            () = state.suspicion() => true,
            _ = ticks.tick() => false,
        };
        if suspected {
            client.reset();
        }
        let epoch = state.epoch();
        match client.get("/readyz", &[]).await {
            Ok(answer) if suspected && answer.status != StatusCode::OK => {
                tracing::info!("the local apiserver's lease has a new holder, and it is not ready");
                state.refused();
            }
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
