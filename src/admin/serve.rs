//! Serves the admin port.

use std::sync::Arc;
use std::time::Duration;

use pingora_core::apps::ServerApp;
use pingora_core::protocols::l4::stream::Stream;
use tokio::sync::watch;

use super::accept::AdminPort;
use super::pages::Pages;
use super::predecessor::AdminListener;

const PORT: AdminPort = AdminPort {
    name: "admin port",
    // Half of the file descriptors that requests leave free (`net::files`).
    most: 32,
    grace: Duration::ZERO,
    may_use: |_| true,
};

/// Serves `pages` until dropped. `bound` becomes true when the port is there.
pub async fn run(listener: AdminListener, bound: watch::Sender<bool>, pages: Arc<Pages>) {
    let listener = listener.bound().await;
    bound.send_replace(true);
    // Connections end with the process.
    let (_never, shutdown) = watch::channel(false);
    let serve = |tcp, _| {
        let (pages, shutdown) = (pages.clone(), shutdown.clone());
        let stream = Box::new(Stream::from(tcp));
        async move { drop(pages.process_new(stream, &shutdown).await) }
    };
    PORT.accept(listener, serve).await;
}
