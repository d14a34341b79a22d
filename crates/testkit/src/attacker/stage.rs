//! The targets of the attacker: a real kube-apiserver v1.20.2 with an audit log, etcd, and the proxy.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::{ELSEWHERE, SECRETS};
use crate::client::Client;
use crate::etcd::Etcd;
use crate::kube::{KubeApiServer, KubeOptions};
use crate::pki::{LeafOptions, Pki};
use crate::proxy::{Proxy, ProxyOptions, Until};
use crate::registry::Registry;
use crate::wait::eventually;

const POLICY: &str = "{\"apiVersion\": \"audit.k8s.io/v1\", \"kind\": \"Policy\", \"rules\": [{\"level\": \"Metadata\"}]}";
const LONG: Duration = Duration::from_secs(60);

pub struct Stage {
    proxy: Proxy,
    _apiserver: KubeApiServer,
    _etcd: Etcd,
    pki: Pki,
    dir: TempDir,
}

impl Stage {
    pub async fn build(binary: &Path) -> Self {
        crate::install_crypto_provider();
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::new(&dir.path().join("pki"));
        let peer = || LeafOptions::client("front-proxy-client").org("system:masters");
        pki.leaf("rogue-peer", "rogue-ca", &peer());
        pki.leaf("expired-peer", "front-proxy-ca", &peer().expired());
        pki.leaf(
            "users-peer",
            "ca",
            &LeafOptions::client("front-proxy-client"),
        );
        let etcd = Etcd::start(dir.path(), &pki).await;
        let policy = dir.path().join("policy.yaml");
        std::fs::write(&policy, POLICY).unwrap();
        let options = KubeOptions::new(dir.path(), &pki, &etcd, "cp-a")
            .arg(&format!("--audit-policy-file={}", policy.display()))
            .arg(&format!(
                "--audit-log-path={}",
                audit_log(dir.path()).display()
            ));
        let options = options.without_group("autoscaling").betas(false);
        let apiserver = KubeApiServer::start(options, &pki).await;
        let proxy = ProxyOptions::new(binary, dir.path(), &pki, apiserver.addr(), &etcd.endpoint());
        let proxy = Proxy::start(proxy.server_id("a").until(Until::Ready)).await;
        // A known server that does not run.
        let registry = Registry::new(etcd.client().await, "/registry");
        registry
            .put_record("ghost", 1, "autoscaling/v1", &["horizontalpodautoscalers"])
            .await;
        let admin = proxy.client(&pki).cert("admin");
        eventually("what only it serves is not to be had", LONG, async || {
            admin.get(ELSEWHERE).await.code() == 503
        })
        .await;
        Self {
            proxy,
            _apiserver: apiserver,
            _etcd: etcd,
            pki,
            dir,
        }
    }

    pub fn client(&self) -> Client {
        self.proxy.client(&self.pki)
    }

    /// All of the audit log, once a last request is in it.
    pub async fn audited(&self) -> Vec<Value> {
        let admin = self.client().cert("admin");
        assert_eq!(
            admin
                .get(&format!("{SECRETS}?mark=last&limit=1"))
                .await
                .code(),
            200
        );
        eventually("the audit log is written", LONG, async || {
            let events = self.events();
            let last = events
                .iter()
                .any(|event| event["requestURI"].to_string().contains("mark=last&"));
            last.then_some(events)
        })
        .await
    }

    fn events(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(audit_log(self.dir.path())).unwrap_or_default();
        let events = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events
            .filter(|event| event["stage"] == "ResponseComplete")
            .collect()
    }
}

fn audit_log(dir: &Path) -> PathBuf {
    dir.join("audit.log")
}
