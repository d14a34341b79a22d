//! Serves the admin port.
//!
//! Any local process may connect and stay idle; it must not use up the file descriptors that clients and etcd need. New
//! connections are always accepted, so that probes get responses; above the limit the oldest connection is closed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pingora_core::apps::ServerApp;
use pingora_core::protocols::l4::stream::Stream as TcpStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::pages::Pages;
use super::predecessor::AdminListener;
use crate::log_throttle::LogRateLimit;

/// Most connections at once: half of the file descriptors that requests leave free (`relay::files`).
const MAX_CONNECTIONS: usize = 32;

/// Serves `pages` until dropped. `bound` becomes true when the port is there.
pub async fn run(listener: AdminListener, bound: watch::Sender<bool>, pages: Arc<Pages>) {
    let listener = listener.bound().await;
    bound.send_replace(true);
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "admin port cannot be used");
            return;
        }
    };
    let (_never, shutdown) = watch::channel(false);
    let mut open = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((tcp, _)) => {
                let (pages, shutdown) = (pages.clone(), shutdown.clone());
                make_room(&mut open);
                let serving = tokio::spawn(async move {
                    pages
                        .process_new(Box::new(TcpStream::from(tcp)), &shutdown)
                        .await
                });
                open.push_back(serving.abort_handle());
            }
            Err(error) => {
                static LOG_RATE: LogRateLimit = LogRateLimit::new();
                if let Some(left_out) = LOG_RATE.admit() {
                    tracing::warn!(%error, left_out, "cannot accept on the admin port");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Closes the oldest connection if there is no room for another. The oldest come first.
fn make_room(open: &mut VecDeque<AbortHandle>) {
    open.retain(|connection| !connection.is_finished());
    if open.len() >= MAX_CONNECTIONS
        && let Some(oldest) = open.pop_front()
    {
        oldest.abort();
    }
}
