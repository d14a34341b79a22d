//! Accepts connections of both admin ports.
//!
//! Anyone who can reach a port may connect and stay idle; that must not use up the file descriptors that clients and etcd
//! need. New connections always get a place, so that probes get responses: above the limit the oldest connection is closed.

use std::collections::VecDeque;
use std::fmt::Display;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::log_throttle::LogRateLimit;

const PAUSE: Duration = Duration::from_millis(50);

/// A port and what its connections may use.
pub(super) struct AdminPort {
    /// For the log.
    pub(super) name: &'static str,
    /// Most connections at once.
    pub(super) most: usize,
    /// For how long a connection keeps its place at least.
    pub(super) grace: Duration,
    /// Which connections are served, those that get too high a file number not.
    pub(super) may_use: fn(&TcpStream) -> bool,
}

impl AdminPort {
    /// Serves each connection with `serve`, until dropped.
    pub(super) async fn accept<S: Future<Output = ()> + Send + 'static>(
        &self,
        listener: TcpListener,
        serve: impl Fn(TcpStream, SocketAddr) -> S,
    ) {
        let name = self.name;
        let listener = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "{name} cannot be used"),
        };
        let room = Arc::new(Semaphore::new(self.most));
        let mut open = VecDeque::new();
        let log_rate = LogRateLimit::new();
        let refused = |problem: &dyn Display| {
            if let Some(left_out) = log_rate.admit() {
                tracing::warn!(%problem, left_out, "cannot accept on the {name}");
            }
        };
        loop {
            match listener.accept().await {
                Ok((tcp, from)) if (self.may_use)(&tcp) => {
                    // Only now that somebody wants it.
                    let permit = self.place(&room, &mut open).await;
                    let serving = serve(tcp, from);
                    let serving = tokio::spawn(async move {
                        serving.await;
                        drop(permit);
                    });
                    open.push_back((Instant::now(), serving.abort_handle()));
                }
                Ok(_) => refused(&"too many files are open"),
                Err(error) => {
                    refused(&error);
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Waits for a place for another connection. The oldest of `open` come first. An error cannot happen: nobody closes
    /// `room`.
    async fn place(
        &self,
        room: &Arc<Semaphore>,
        open: &mut VecDeque<(Instant, AbortHandle)>,
    ) -> Result<OwnedSemaphorePermit, AcquireError> {
        open.retain(|(_, connection)| !connection.is_finished());
        let place = room.clone().acquire_owned();
        let Some((since, oldest)) = open.front() else {
            return place.await;
        };
        tokio::pin!(place);
        tokio::select! {
            biased;
            place = &mut place => return place,
            () = sleep_until(*since + self.grace) => oldest.abort(),
        }
        open.pop_front();
        place.await
    }
}
