//! One real kube-apiserver on its own etcd, with a proxy before it.

use crate::client::Client;
use crate::cluster::Ground;
use crate::kube::{KubeApiServer, KubeOptions};
use crate::pair::{Change, changed};
use crate::proxy::{Proxy, ProxyOptions, Until};

pub struct Node {
    pub server: KubeApiServer,
    pub proxy: Proxy,
    pub ground: Ground,
}

/// How they are started.
#[derive(Default)]
pub struct NodeOptions {
    server: Vec<Change<KubeOptions>>,
    proxy: Vec<Change<ProxyOptions>>,
}

impl Node {
    pub fn options() -> NodeOptions {
        NodeOptions::default()
    }

    /// A client of the proxy, without identity.
    pub fn client(&self) -> Client {
        self.proxy.client(&self.ground.pki)
    }
}

impl NodeOptions {
    pub fn server(mut self, change: impl Fn(KubeOptions) -> KubeOptions + Send + 'static) -> Self {
        self.server.push(Box::new(change));
        self
    }

    pub fn proxy(mut self, change: impl Fn(ProxyOptions) -> ProxyOptions + Send + 'static) -> Self {
        self.proxy.push(Box::new(change));
        self
    }

    /// Returns when the proxy is ready.
    pub async fn start(self) -> Node {
        self.start_on(Ground::bootstrapped().await).await
    }

    pub async fn start_on(self, ground: Ground) -> Node {
        let options = changed(ground.kube("cp-a"), &self.server);
        let server = KubeApiServer::start(options, &ground.pki).await;
        let options = changed(ground.proxy("a", server.addr()), &self.proxy);
        let proxy = Proxy::start(options.until(Until::Ready)).await;
        Node {
            server,
            proxy,
            ground,
        }
    }
}
