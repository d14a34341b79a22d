//! Real apiservers of very different versions on one etcd: kube-apiserver v1.20.2, and today's machinery
//! (k8s.io/apiserver 0.36), a proxy before each. Both serve ConfigMaps; all else only the old one does.

mod ends;
mod formats;
mod resources;
mod strangers;
mod tokens;
mod upgrades;
mod versions;

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use crate::routing::real_apiservers::LONGER;
use testkit::audit::AuditLog;
use testkit::client::Client;
use testkit::cluster::{Ground, lists, patient};
use testkit::kube::KubeApiServer;
use testkit::modern::ModernApiServer;
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::wait::eventually;

const VERSION: &str = "X-Kubernetes-Compatibility-Version";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// The version of k8s.io/apiserver 0.36.
const NEW: &str = "1.36";
const OLD: &str = "1.20";

struct Mixed {
    old: KubeApiServer,
    new: ModernApiServer,
    at_old: Proxy,
    at_new: Proxy,
    audits: [(&'static str, AuditLog); 2],
    ground: Ground,
}

impl Mixed {
    async fn new() -> Self {
        Self::with(&[], |options| options).await
    }

    /// `new`: further flags of the new apiserver; `change`: of both proxies' options.
    async fn with(new: &[&str], change: impl Fn(ProxyOptions) -> ProxyOptions) -> Self {
        let ground = Ground::bootstrapped().await;
        let old = old(&ground).await;
        let new: Vec<String> = new.iter().map(|&flag| flag.to_owned()).collect();
        Self::beside(ground, old, new, change).await
    }

    async fn beside(
        ground: Ground,
        (old, audit): (KubeApiServer, AuditLog),
        mut flags: Vec<String>,
        change: impl Fn(ProxyOptions) -> ProxyOptions,
    ) -> Self {
        let audits = [
            ("old", audit),
            ("new", AuditLog::new(ground.dir.path(), "new")),
        ];
        flags.extend(audits[1].1.flags());
        let new = modern(&ground, &flags).await;
        let proxy = |id, addr| {
            let options = change(patient(ground.proxy(id, addr)));
            Proxy::start(options.until(Until::Ready))
        };
        let (at_old, at_new) = tokio::join!(proxy("old", old.addr()), proxy("new", new.addr()));
        until_known(&at_old, "new", NEW).await;
        until_known(&at_new, "old", OLD).await;
        eventually(
            "what only the old one serves is known",
            LONGER,
            async || lists(&at_new.statusz().await, "old", "autoscaling"),
        )
        .await;
        Self {
            old,
            new,
            at_old,
            at_new,
            audits,
            ground,
        }
    }

    /// The administrator at the proxy of the old apiserver, and at that of the new one.
    fn admins(&self) -> [Client; 2] {
        let at = |proxy: &Proxy| proxy.client(&self.ground.pki).cert("admin").timeout(LONGER);
        [at(&self.at_old), at(&self.at_new)]
    }

    /// The old apiserver's proxy, whose requests for ConfigMaps go to the new apiserver.
    fn rerouted(&self) -> Client {
        let client = self.at_old.client(&self.ground.pki).timeout(LONGER);
        client.header(VERSION, NEW)
    }

    /// The apiservers that a list of ConfigMaps by `client` reaches, and as which user.
    async fn reached(&self, client: &Client) -> Vec<(&'static str, Value)> {
        reached(self.audits.iter().map(|(name, log)| (*name, log)), client).await
    }
}

#[tokio::test]
async fn each_apiserver_serves_what_it_can_and_strangers_harm_nobody() {
    let mixed = Mixed::new().await;
    strangers::strangers_harm_nobody_else(&mixed).await;
    resources::what_only_the_old_apiserver_serves_is_served_by_it(&mixed).await;
    // Last: with a third apiserver, whose record stays.
    versions::each_version_is_found_also_one_that_is_emulated(&mixed).await;
}

/// See [`Mixed::reached`].
async fn reached<'a>(
    audits: impl Iterator<Item = (&'static str, &'a AuditLog)>,
    client: &Client,
) -> Vec<(&'static str, Value)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mark = format!("mark-{}-", NEXT.fetch_add(1, Ordering::Relaxed));
    let answer = client
        .get(&format!("{CONFIG_MAPS}?labelSelector={mark}x%3Dx"))
        .await;
    assert_eq!(answer.code(), 200, "{}", answer.text());
    audits
        .flat_map(|(name, log)| {
            let received = log.received(&mark).into_iter();
            received.map(move |mut event| (name, event["user"].take()))
        })
        .collect()
}

/// An old apiserver, with an audit log.
async fn old(ground: &Ground) -> (KubeApiServer, AuditLog) {
    let audit = AuditLog::new(ground.dir.path(), "old");
    let options = audit
        .flags()
        .iter()
        .fold(ground.kube("cp-old"), |options, flag| options.arg(flag));
    let server = KubeApiServer::start(options.cached(), &ground.pki).await;
    (server, audit)
}

async fn modern(ground: &Ground, flags: &[String]) -> ModernApiServer {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    ModernApiServer::start(ground.dir.path(), &ground.pki, &ground.etcd, &flags).await
}

/// Waits until requests could go to `peer`, by its version.
async fn until_known(proxy: &Proxy, peer: &str, version: &str) {
    eventually(&format!("{peer} is known"), LONGER, async || {
        let status = proxy.statusz().await;
        let mut peers = status["peers"].as_array().into_iter().flatten();
        let known = peers.any(|found| {
            found["id"] == peer
                && found["target"] == true
                && found["known"] == true
                && found["compatibilityVersion"] == version
        });
        known.then_some(()).ok_or(status["peers"].clone())
    })
    .await;
}

fn config_map(name: &str, value: &str) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value}})
        .to_string()
}

async fn create(client: &Client, name: &str) {
    let made = client
        .request("POST", CONFIG_MAPS, config_map(name, "x"))
        .await;
    assert_eq!(made.code(), 201, "{name}: {}", made.text());
}
