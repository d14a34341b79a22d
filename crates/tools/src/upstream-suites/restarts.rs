//! Restarts one server after the other while tests run: apiserver and proxy together, one after the other, or one alone.

use std::time::Duration;

use tokio::sync::oneshot;

use testkit::process::Signal;
use testkit::wait::within;

use super::cluster::Cluster;

const PAUSE: Duration = Duration::from_secs(30);
/// For an apiserver to end after SIGTERM; open watches hold it for longer.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug)]
enum How {
    /// As kubelet ends the containers of a pod.
    Together,
    ProxyThenApiserver,
    Apiserver,
    Proxy,
}

const WAYS: [How; 4] = [
    How::Together,
    How::Apiserver,
    How::ProxyThenApiserver,
    How::Proxy,
];

impl Cluster {
    /// Restarts servers for as long as this takes; all run again when it returns.
    pub async fn restarting_while<T>(&mut self, work: impl Future<Output = T>) -> T {
        let (stop, stopped) = oneshot::channel();
        let work = async {
            let result = work.await;
            // An error would mean that nothing is restarted any more.
            let _ = stop.send(());
            result
        };
        let (result, restarts) = tokio::join!(work, self.restart_until(stopped));
        println!("{restarts} restarts");
        result
    }

    async fn restart_until(&mut self, mut stopped: oneshot::Receiver<()>) -> usize {
        // Each server in each way.
        let ways = WAYS.iter().flat_map(|how| [(0, *how), (1, *how)]);
        for (count, (node, how)) in ways.cycle().enumerate() {
            tokio::select! {
                _ = &mut stopped => return count,
                () = tokio::time::sleep(PAUSE) => {}
            }
            self.restart(node, how).await;
        }
        0
    }

    async fn restart(&mut self, node: usize, how: How) {
        let (server, proxy) = (&mut self.servers[node], &mut self.proxies[node]);
        let (ends_server, ends_proxy) = match how {
            How::Together | How::ProxyThenApiserver => (true, true),
            How::Apiserver => (true, false),
            How::Proxy => (false, true),
        };
        if matches!(how, How::Together | How::Apiserver) {
            server.process().signal(Signal::Term);
        }
        if ends_proxy {
            let status = proxy.terminate().await;
            assert!(status.success(), "{status}: {}", proxy.log_tail());
        }
        if matches!(how, How::ProxyThenApiserver) {
            server.process().signal(Signal::Term);
        }
        if ends_server {
            // If it has not ended by then, it is killed.
            let _ = within(PATIENCE, async || server.process().exited()).await;
            server.start_again();
        }
        match ends_proxy {
            true => _ = tokio::join!(server.wait_ready(), proxy.start_again()),
            false => {
                server.wait_ready().await;
                proxy.wait_ready().await;
            }
        }
    }
}
