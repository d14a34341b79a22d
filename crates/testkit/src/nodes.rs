//! Three nodes with a real kube-apiserver v1.20.2 each, with proxies or without, and their rolling restart as kubelet
//! does it: the containers of a pod are told to stop at the same moment. The apiservers write down which requests they
//! get, restarts or not.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::balancer::Balancer;
use crate::client::Client;
use crate::cluster::{Ground, LONG};
use crate::kube::{KubeApiServer, KubeOptions};
use crate::process::Signal;
use crate::proxy::{Proxy, ProxyOptions, Until, until_histories_are_known};
use crate::wait::eventually;

const HOSTS: [&str; 3] = ["cp-a", "cp-b", "cp-c"];
const IDS: [&str; 3] = ["a", "b", "c"];
/// As deploy/README.md asks for it: at least the proxy's delay and drain, and what a busy machine needs.
const APISERVER_DELAY: &str = "--shutdown-delay-duration=10s";
const DELAY: &str = "1s";
/// On a busy machine etcd takes seconds to tell how far it is.
const DRAIN: &str = "8s";
/// Without proxies nothing ends the watches of an apiserver that stops. This much later it is killed.
const GRACE: Duration = Duration::from_secs(2);
/// For an apiserver whose delay is over, and that has no watches any more.
const STOPPED: Duration = Duration::from_secs(20);
const PATIENCE: Duration = Duration::from_secs(90);

/// Watches that left an apiserver before their time.
pub const HANDED_OVER: &str = "kube_interop_proxy_watch_hand_overs_total";

pub struct Nodes {
    pub servers: Vec<KubeApiServer>,
    /// One for each server, or none.
    pub proxies: Vec<Proxy>,
    pub ground: Ground,
}

/// A request that an apiserver wrote down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEvent {
    /// Which apiserver.
    pub node: usize,
    pub verb: String,
    pub user_agent: String,
    /// Of the answer.
    pub code: u64,
}

impl Nodes {
    /// Three apiservers on one etcd. `resources`: those whose lists and watches are written down.
    pub async fn start(resources: &[(&str, &str)]) -> Self {
        let ground = Ground::bootstrapped().await;
        std::fs::write(
            ground.dir.path().join("audit.yaml"),
            audit_policy(resources),
        )
        .expect("the audit policy");
        let server = |host| KubeApiServer::start(options(&ground, host), &ground.pki);
        // The first writes what all need.
        let a = server(HOSTS[0]).await;
        let (b, c) = tokio::join!(server(HOSTS[1]), server(HOSTS[2]));
        Self {
            servers: vec![a, b, c],
            proxies: Vec::new(),
            ground,
        }
    }

    /// A proxy beside each apiserver, with last bookmarks, which asks it as often as it does by default. Returns when they
    /// know all histories.
    pub async fn add_proxies(&mut self, change: impl Fn(ProxyOptions) -> ProxyOptions) {
        let proxy = |node: usize| {
            let options = self.ground.proxy(IDS[node], self.servers[node].addr());
            let options = options
                .set("apiServer.probeInterval", "500ms")
                .set("apiServer.discoveryInterval", "10s")
                .set("watch.bookmarkOnShutdown", "true")
                .set("watch.handOver", "true")
                .set("shutdown.delay", DELAY)
                .set("shutdown.drain", DRAIN);
            Proxy::start(change(options).until(Until::Ready))
        };
        let (a, b, c) = tokio::join!(proxy(0), proxy(1), proxy(2));
        self.proxies = vec![a, b, c];
        self.until_histories_are_known().await;
    }

    async fn until_histories_are_known(&self) {
        until_histories_are_known(&self.proxies.iter().collect::<Vec<_>>()).await;
    }

    /// Of the proxies, or of the apiservers if there are none. Returns when all get connections.
    pub async fn balancer(&self) -> Balancer {
        let addresses: Vec<_> = match self.proxies.is_empty() {
            true => self.servers.iter().map(KubeApiServer::addr).collect(),
            false => self.proxies.iter().map(Proxy::addr).collect(),
        };
        let admin = |addr| Client::new(addr, &self.ground.pki).cert("admin");
        let behind = addresses.into_iter().map(|addr| (addr, admin(addr)));
        let balancer = Balancer::start(behind.collect()).await;
        until_all_get_connections(&balancer).await;
        balancer
    }

    /// The first `count` nodes, one after the other. `step` is awaited before each stop, and while a node is down.
    pub async fn roll(&mut self, count: usize, balancer: &Balancer, mut step: impl AsyncFnMut()) {
        for node in 0..count {
            step().await;
            self.stop(node).await;
            step().await;
            self.start_again(node).await;
            until_all_get_connections(balancer).await;
        }
    }

    /// The apiservers alone, one after the other; their proxies stay.
    pub async fn roll_apiservers(&mut self, signal: Signal, mut step: impl AsyncFnMut()) {
        // An apiserver that is told to stop waits for no watch, but for one that no other can go on with.
        let patience = match self.are_of_one_version() {
            true => STOPPED,
            false => PATIENCE,
        };
        for node in 0..self.servers.len() {
            step().await;
            let server = &mut self.servers[node];
            server.process().signal(signal);
            server.ended(patience).await;
            step().await;
            let server = &mut self.servers[node];
            server.start_again();
            server.wait_ready().await;
            self.until_histories_are_known().await;
        }
    }

    /// SIGTERM to both at the same moment; returns when they have ended.
    async fn stop(&mut self, node: usize) {
        let server = self.servers[node].process();
        let Some(proxy) = self.proxies.get_mut(node) else {
            server.terminate(GRACE).await;
            return;
        };
        server.signal(Signal::Term);
        assert!(proxy.terminate().await.success(), "{}", proxy.log_tail());
        server.terminate(STOPPED).await;
    }

    async fn start_again(&mut self, node: usize) {
        let server = &mut self.servers[node];
        server.start_again();
        match self.proxies.get_mut(node) {
            None => server.wait_ready().await,
            Some(proxy) => _ = tokio::join!(server.wait_ready(), proxy.start_again()),
        }
    }

    /// Else a watch may end: no older apiserver goes on with it.
    pub fn are_of_one_version(&self) -> bool {
        let mut servers = self.servers.iter();
        servers.all(|server| server.abilities() == self.servers[0].abilities())
    }

    /// How many watches have left an apiserver that stopped, by what became of them, since the proxies began.
    pub async fn handed_over(&self, result: &str) -> f64 {
        let mut count = 0.0;
        for proxy in &self.proxies {
            count += proxy.metric(HANDED_OVER, &[("result", result)]).await;
        }
        count
    }

    /// What all apiservers have written down, each in its order.
    pub fn audit(&self) -> Vec<AuditEvent> {
        let of_node = |(node, host)| {
            let text = std::fs::read_to_string(audit_log(&self.ground, host)).unwrap_or_default();
            let events = text.lines().map(|line| AuditEvent::read(node, line));
            events.collect::<Vec<_>>()
        };
        HOSTS.into_iter().enumerate().flat_map(of_node).collect()
    }

    /// Open watches of these resources at each apiserver.
    pub async fn watches(&self, resources: &[&str]) -> Vec<usize> {
        let mut watches = Vec::new();
        for server in &self.servers {
            watches.push(server.watches(resources).await);
        }
        watches
    }

    /// Watches without an apiserver at each proxy.
    pub async fn held(&self) -> Vec<f64> {
        let mut held = Vec::new();
        for proxy in &self.proxies {
            held.push(proxy.metric("kube_interop_proxy_watches_held", &[]).await);
        }
        held
    }
}

impl AuditEvent {
    fn read(node: usize, line: &str) -> Self {
        let event: Value = serde_json::from_str(line).expect("a line of an audit log");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            node,
            verb: text(&event["verb"]),
            user_agent: text(&event["userAgent"]),
            code: event["responseStatus"]["code"].as_u64().unwrap_or_default(),
        }
    }
}

async fn until_all_get_connections(balancer: &Balancer) {
    eventually("all get connections", LONG, async || {
        balancer.ready() == HOSTS.len()
    })
    .await;
}

fn audit_log(ground: &Ground, host: &str) -> PathBuf {
    ground.dir.path().join(format!("audit-{host}.log"))
}

fn options(ground: &Ground, host: &str) -> KubeOptions {
    let policy = ground.dir.path().join("audit.yaml");
    let log = audit_log(ground, host);
    ground
        .kube(host)
        .arg(&format!("--audit-policy-file={}", policy.display()))
        .arg(&format!("--audit-log-path={}", log.display()))
        .arg(APISERVER_DELAY)
}

/// A line for each list at its end, and for each watch at its beginning.
fn audit_policy(resources: &[(&str, &str)]) -> String {
    let named = resources
        .iter()
        .map(|(group, resource)| format!("{{group: \"{group}\", resources: [\"{resource}\"]}}"));
    let named = named.collect::<Vec<_>>().join(", ");
    format!(
        "apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: Metadata
  verbs: [list]
  omitStages: [RequestReceived, ResponseStarted]
  resources: [{named}]
- level: Metadata
  verbs: [watch]
  omitStages: [ResponseStarted, ResponseComplete]
  resources: [{named}]
- level: None
"
    )
}
