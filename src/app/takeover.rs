//! When this proxy listens: not before one that is stopping at the same addresses, and not in its apiserver's way.
//!
//! Two proxies could accept connections: the kernel spreads them. So this one listens only when it serves everything, or
//! when the other has stopped listening. One that is started before its apiserver goes to loopback waits for it.
//!
//! Who does not know the proxy may make the apiserver listen at the node's address again, as `kubeadm upgrade` does. It
//! cannot, and other servers serve. Without any it gets the address: rather no proxy than no apiserver. While there is
//! a file [`LEAVING`] beside the configuration, as `uninstall` puts it there, the proxy is not ready, and the apiserver gets the
//! address as soon as the one on loopback has left.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::config::Config;
use crate::install::state::LEAVING;
use crate::local::process;
use crate::relay::shared::Shared;
use crate::server::listener::{self, Presence};

/// Between two looks at whether this proxy is ready.
const INTERVAL: Duration = Duration::from_millis(50);

/// Between two looks at who listens.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Longer than a restart of the apiserver takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits while an apiserver that belongs on loopback has the address: kubelet would let one that ends at once wait longer.
pub async fn room(config: &Config) {
    let (address, begin) = (config.serving.bind_address, Instant::now());
    // Other proxies share it.
    let is_taken = || {
        let bound = listener::bind(address, Presence::Required, 1);
        bound.is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
    };
    if is_beside(config.api_server.address, address) && is_taken() {
        tracing::warn!(%address, "somebody else listens there: waiting a minute for kube-apiserver to go to loopback");
        while begin.elapsed() < PATIENCE && is_taken() {
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

/// Whether an apiserver there, which would listen everywhere if it were not for this proxy, has its port.
fn is_beside(apiserver: SocketAddr, serving: SocketAddr) -> bool {
    apiserver.ip().is_loopback() && apiserver.port() == serving.port()
}

/// `serving`: where both serve; `free`: becomes true when the other proxy's admin port is this one's.
pub(super) async fn run(
    shared: &Shared,
    serving: SocketAddr,
    mut free: watch::Receiver<bool>,
    listens: &watch::Sender<bool>,
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
    listens.send_replace(true);
}

/// Stops listening for an apiserver that needs the port, and listens again when it is on loopback. Runs until dropped.
/// `config`: the configuration's file.
pub(super) async fn give_way(
    shared: &Shared,
    serving: SocketAddr,
    config: Option<&Path>,
    listens: watch::Sender<bool>,
) {
    let address = shared.config.api_server.address;
    if !is_beside(address, serving) {
        // Nobody else may end it.
        return std::future::pending().await;
    }
    let leaving = config.map(|config| config.with_file_name(LEAVING));
    let (mut seen, mut is_unwanted) = (Instant::now(), false);
    loop {
        // kubelet may have the next apiserver started half a second after it has told the one before to end.
        let interval = if is_unwanted { INTERVAL } else { LOOK_INTERVAL };
        tokio::time::sleep(interval).await;
        if let Some(file) = &leaving {
            is_unwanted = tokio::fs::try_exists(file).await.unwrap_or(false);
        }
        if shared.shutdown.is_unwanted.swap(is_unwanted, Relaxed) != is_unwanted {
            tracing::warn!(is_unwanted, "uninstall has begun, or was taken back");
        }
        if !is_unwanted && shared.shutdown.is_leaving() {
            continue;
        }
        let listened = *listens.borrow();
        let others = !is_unwanted
            && (shared.local.is_ready() || !shared.published.snapshot.load().targets.is_empty());
        let may_stay = listened && others || {
            let looking = move || process::listeners(address.port());
            let there = tokio::task::spawn_blocking(looking).await;
            let there = there.unwrap_or_default().into_iter();
            // While this proxy listens, it is one of them.
            let there: Vec<_> = there
                .filter(|ip| !listened || *ip != serving.ip())
                .collect();
            may_listen(&there, address.ip(), serving.ip(), others)
        };
        if may_stay {
            seen = Instant::now();
        }
        let listening = may_stay || listened && !is_unwanted && seen.elapsed() < PATIENCE;
        if listening != listened {
            let what = match listening {
                true => "this proxy listens again",
                false => "the address is given up to kube-apiserver",
            };
            tracing::warn!(%serving, what);
            listens.send_replace(listening);
        }
    }
}

/// `there`: where others listen at the port. `others`: an apiserver answers, here or elsewhere.
fn may_listen(there: &[IpAddr], loopback: IpAddr, own: IpAddr, others: bool) -> bool {
    let mut takers = there.iter().filter(|ip| ip.is_unspecified() || **ip == own);
    takers.next().is_none() && (others || there.contains(&loopback))
}

/// Resolves when connections are refused. The other's last requests may go on.
async fn nobody_listens(serving: SocketAddr) {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        match timeout(LOOK_INTERVAL, TcpStream::connect(serving)).await {
            Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => return,
            // No answer: it is about to close its port, and drops newcomers.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_in_nobodys_way_while_the_apiserver_is_on_loopback_or_others_serve() {
        let [loopback, node, everywhere] =
            ["127.0.0.1", "10.0.0.11", "::"].map(|ip| ip.parse().unwrap());
        for (there, others, expected) in [
            (vec![loopback], false, true),
            // Nothing is there, or nothing can be read.
            (vec![], false, false),
            (vec![], true, true),
            (vec![everywhere], false, false),
            (vec![everywhere], true, false),
            (vec![node], true, false),
            (vec![node, loopback], true, false),
        ] {
            let may = may_listen(&there, loopback, node, others);
            assert_eq!(may, expected, "{there:?} {others}");
        }
    }
}
