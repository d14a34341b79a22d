//! A proxy that follows a fake etcd.

use serde_json::json;
use tempfile::TempDir;

use testkit::cluster::{LONG, binary};
use testkit::double::{Double, DoubleOptions, v1_20};
use testkit::fake_etcd::FakeEtcd;
use testkit::pki::Pki;
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::wait::eventually;

pub const SERVERS: &str = "/kube-interop-proxy/registry/servers/";
/// The newest revision when the proxy lists.
pub const LISTED: i64 = 100;

/// A proxy that follows a fake etcd.
pub struct Following {
    pub etcd: FakeEtcd,
    pub proxy: Proxy,
    _double: Double,
    _dir: TempDir,
}

impl Following {
    /// `version`: what etcd says of itself.
    pub async fn start(version: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::new(&dir.path().join("pki"));
        let etcd = FakeEtcd::start(version, LISTED).await;
        let double = Double::start(DoubleOptions::new(pki.dir(), v1_20())).await;
        let endpoint = etcd.endpoint();
        let options = ProxyOptions::new(binary(), dir.path(), &pki, double.addr(), &endpoint)
            .server_id("a")
            // It can write nothing, and is never ready.
            .until(Until::Live);
        // The fake has no TLS.
        let files = ["caFile", "certFile", "keyFile"].map(|file| format!("etcd.{file}"));
        let options = files
            .iter()
            .fold(options, |options, file| options.set(file, "null"));
        let proxy = Proxy::start(options).await;
        let synced = |value| value == 1.0;
        let metric = "kube_interop_proxy_etcd_synced";
        proxy.until_metric(metric, &[], synced).await;
        let following = Self {
            etcd,
            proxy,
            _double: double,
            _dir: dir,
        };
        following.until_watched_from(&[LISTED + 1]).await;
        following
    }

    /// The revision of it.
    pub fn put_record(&self, id: &str, port: u16) -> i64 {
        let record = json!({"endpoint": format!("127.0.0.1:{port}"), "resources": {}});
        self.etcd
            .put(&format!("{SERVERS}{id}"), &record.to_string())
    }

    /// Writes of no interest, until the newest revision is `revision`.
    pub fn advance_to(&self, revision: i64) {
        while self.etcd.revision() < revision {
            self.etcd.put("/registry/pods/default/other", "");
        }
    }

    pub async fn until_watched_from(&self, revisions: &[i64]) {
        eventually("records are watched", LONG, async || {
            let asked = self.etcd.asked(SERVERS);
            (asked.watched_from == revisions)
                .then_some(())
                .ok_or_else(|| format!("{asked:?}, expected {revisions:?}"))
        })
        .await;
    }

    /// Waits until progress was asked for twice: the first answer has been taken in.
    pub async fn until_progress_was_taken_in(&self) {
        let before = self.etcd.asked(SERVERS).progress;
        eventually("progress is asked for", LONG, async || {
            self.etcd.asked(SERVERS).progress >= before + 2
        })
        .await;
    }

    pub async fn until_known(&self, ids: &[&str]) {
        eventually("servers are known", LONG, async || {
            let status = self.proxy.statusz().await;
            let peers = status["peers"].as_array().unwrap();
            let known: Vec<_> = peers
                .iter()
                .filter_map(|peer| peer["id"].as_str())
                .collect();
            (known == ids)
                .then_some(())
                .ok_or_else(|| format!("{known:?}"))
        })
        .await;
    }
}
