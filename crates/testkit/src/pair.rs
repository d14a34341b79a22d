//! Two real kube-apiservers, A and B, on one etcd, with a proxy before each.

use std::time::Duration;

use crate::client::Client;
use crate::cluster::{Ground, lists};
use crate::kube::{KubeApiServer, KubeOptions};
use crate::proxy::{Proxy, ProxyOptions, Until, until_histories_are_known};
use crate::wait::eventually;

/// For several starts on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

pub struct Pair {
    pub a: KubeApiServer,
    pub b: KubeApiServer,
    pub proxy_a: Proxy,
    pub proxy_b: Proxy,
    pub ground: Ground,
}

/// How they are started.
pub struct PairOptions {
    a: Vec<Change<KubeOptions>>,
    b: Vec<Change<KubeOptions>>,
    proxies: Vec<Change<ProxyOptions>>,
}

pub(crate) type Change<Options> = Box<dyn Fn(Options) -> Options + Send>;

impl Pair {
    pub fn options() -> PairOptions {
        PairOptions {
            a: Vec::new(),
            b: Vec::new(),
            proxies: Vec::new(),
        }
    }

    /// The cluster's administrator, at A's proxy.
    pub fn admin(&self) -> Client {
        let client = self.proxy_a.client(&self.ground.pki);
        client.cert("admin").timeout(PATIENCE)
    }

    pub async fn until_histories_are_known(&self) {
        until_histories_are_known(&[&self.proxy_a, &self.proxy_b]).await;
    }
}

impl PairOptions {
    pub fn a(mut self, change: impl Fn(KubeOptions) -> KubeOptions + Send + 'static) -> Self {
        self.a.push(Box::new(change));
        self
    }

    /// Both apiservers.
    pub fn both(self, change: impl Fn(KubeOptions) -> KubeOptions + Copy + Send + 'static) -> Self {
        let mut both = self.a(change);
        both.b.push(Box::new(change));
        both
    }

    pub fn without_group_at_a(self, group: &'static str) -> Self {
        self.a(move |options| options.without_group(group))
    }

    /// Both proxies.
    pub fn proxies(
        mut self,
        change: impl Fn(ProxyOptions) -> ProxyOptions + Send + 'static,
    ) -> Self {
        self.proxies.push(Box::new(change));
        self
    }

    /// Returns when each proxy knows what the other one's apiserver serves.
    pub async fn start(self) -> Pair {
        self.start_on(Ground::bootstrapped().await).await
    }

    pub async fn start_on(self, ground: Ground) -> Pair {
        let server = async |name, changes: &[Change<KubeOptions>]| {
            let options = changed(ground.kube(name), changes);
            KubeApiServer::start(options, &ground.pki).await
        };
        // B first: then A deletes the APIService objects of what it does not know, and B's own group list forgets it.
        let b = server("cp-b", &self.b).await;
        let a = server("cp-a", &self.a).await;
        let proxy = |id, server: &KubeApiServer| {
            let options = changed(ground.proxy(id, server.addr()), &self.proxies);
            Proxy::start(options.until(Until::Ready))
        };
        let (proxy_a, proxy_b) = tokio::join!(proxy("a", &a), proxy("b", &b));
        for (proxy, other) in [(&proxy_a, "b"), (&proxy_b, "a")] {
            eventually("the proxies know each other", PATIENCE, async || {
                lists(&proxy.statusz().await, other, "apps")
            })
            .await;
        }
        Pair {
            a,
            b,
            proxy_a,
            proxy_b,
            ground,
        }
    }
}

pub(crate) fn changed<Options>(options: Options, changes: &[Change<Options>]) -> Options {
    let changes = changes.iter();
    changes.fold(options, |options, change| change(options))
}
