//! Starts the operator's port, and the one for monitoring from other hosts.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;

use super::accept::{AdminPort, serve_http};
use super::pages::Pages;
use super::predecessor::AdminListener;
use super::secure::{Gate, SecurePort};
use crate::client::ClientMaker;
use crate::tls::serving::ServingTls;

const PORT: AdminPort = AdminPort {
    name: "admin port",
    // Half of the file descriptors that requests leave free (`net::files`).
    most: 32,
    grace: Duration::ZERO,
    may_use: |_| true,
};

/// Spawns the servers, that of the secure port if there is one. `tls`: of the TLS port; `maker`: of clients for the local
/// apiserver. Returns what becomes true when the operator's port is there.
pub fn start(
    (listener, secure): (AdminListener, Option<AdminListener>),
    pages: Pages,
    tls: Arc<ArcSwap<ServingTls>>,
    maker: Arc<ClientMaker>,
    control: &mut JoinSet<()>,
) -> watch::Receiver<bool> {
    let pages = Arc::new(pages);
    let (bound, is_bound) = watch::channel(false);
    control.spawn(serve(listener, bound, pages.clone()));
    if let Some(listener) = secure {
        let secure = SecurePort {
            gate: Gate::new(pages.shared.clone(), maker),
            pages,
            tls,
            handshake_lock: Mutex::default(),
        };
        control.spawn(secure.run(listener));
    }
    is_bound
}

/// Serves `pages` until dropped. `bound` becomes true when the port is there.
async fn serve(listener: AdminListener, bound: watch::Sender<bool>, pages: Arc<Pages>) {
    let listener = listener.bound().await;
    bound.send_replace(true);
    let serve = |tcp, _| {
        let pages = pages.clone();
        async move { serve_http(tcp, |request| pages.answer(request)).await }
    };
    PORT.accept(listener, serve).await;
}
