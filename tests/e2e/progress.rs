//! An etcd whose requested progress overtakes changes: 3.4 and 3.5 did (etcd#15220). What it says is not believed, and
//! whatever it told before a connection broke, nothing is lost.

use serde_json::json;
use tempfile::TempDir;

use crate::cluster::{LONG, binary};
use crate::double::{Double, DoubleOptions, v1_20};
use crate::support::fake_etcd::FakeEtcd;
use crate::support::pki::Pki;
use crate::support::proxy::{Proxy, ProxyOptions, Until};
use crate::support::wait::eventually;

const SERVERS: &str = "/kube-interop-proxy/registry/servers/";
/// The newest revision when the proxy lists.
const LISTED: i64 = 100;

/// A proxy that follows a fake etcd.
struct Following {
    etcd: FakeEtcd,
    proxy: Proxy,
    _double: Double,
    _dir: TempDir,
}

impl Following {
    /// `version`: what etcd says of itself.
    async fn start(version: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::new(&dir.path().join("pki"));
        let etcd = FakeEtcd::start(version, LISTED).await;
        let double = Double::start(DoubleOptions::new(pki.dir(), v1_20())).await;
        let endpoint = etcd.endpoint();
        let options = ProxyOptions::new(binary(), dir.path(), &pki, double.addr(), &endpoint)
            .server_id("a")
            .until(Until::Ready);
        // The fake has no TLS.
        let files = ["caFile", "certFile", "keyFile"].map(|file| format!("etcd.{file}"));
        let options = files
            .iter()
            .fold(options, |options, file| options.set(file, "null"));
        let proxy = Proxy::start(options).await;
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
    fn put_record(&self, id: &str, port: u16) -> i64 {
        let record = json!({"endpoint": format!("127.0.0.1:{port}"), "resources": {}});
        self.etcd
            .put(&format!("{SERVERS}{id}"), &record.to_string())
    }

    /// Writes of no interest, until the newest revision is `revision`.
    fn advance_to(&self, revision: i64) {
        while self.etcd.revision() < revision {
            self.etcd.put("/registry/pods/default/other", "");
        }
    }

    async fn until_watched_from(&self, revisions: &[i64]) {
        eventually("records are watched", LONG, async || {
            let asked = self.etcd.asked(SERVERS);
            (asked.watched_from == revisions)
                .then_some(())
                .ok_or_else(|| format!("{asked:?}, expected {revisions:?}"))
        })
        .await;
    }

    /// Waits until progress was asked for twice: the first answer has been taken in.
    async fn until_progress_was_taken_in(&self) {
        let before = self.etcd.asked(SERVERS).progress;
        eventually("progress is asked for", LONG, async || {
            self.etcd.asked(SERVERS).progress >= before + 2
        })
        .await;
    }

    async fn until_known(&self, ids: &[&str]) {
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

#[tokio::test]
async fn a_change_that_arrives_after_later_requested_progress_is_not_lost() {
    let following = Following::start("3.4.23").await;
    following.etcd.withhold();
    following.advance_to(LISTED + 2);
    let late = following.put_record("late", 20001);
    following.advance_to(LISTED + 10);
    following.until_progress_was_taken_in().await;
    following.until_known(&[]).await;
    following.etcd.deliver();
    following.until_known(&["late"]).await;

    // Another one, that the break comes before.
    following.etcd.withhold();
    following.put_record("later", 20002);
    following.advance_to(LISTED + 20);
    following.until_progress_was_taken_in().await;
    following.etcd.cut();
    following.until_watched_from(&[LISTED + 1, late + 1]).await;
    following.etcd.deliver();
    following.until_known(&["late", "later"]).await;
}

#[tokio::test]
async fn a_change_that_a_break_kept_away_after_later_requested_progress_is_not_lost() {
    let following = Following::start("3.5.12").await;
    following.etcd.withhold();
    following.advance_to(LISTED + 2);
    following.put_record("late", 20001);
    following.advance_to(LISTED + 10);
    following.until_progress_was_taken_in().await;
    following.etcd.cut();
    following
        .until_watched_from(&[LISTED + 1, LISTED + 1])
        .await;
    following.etcd.deliver();
    following.until_known(&["late"]).await;
}

#[tokio::test]
async fn an_etcd_that_says_no_version_is_not_asked_and_not_believed() {
    let following = Following::start("").await;
    following.etcd.withhold();
    following.put_record("late", 20001);
    following.advance_to(LISTED + 10);
    following.etcd.announce();
    let gets = following.etcd.asked(SERVERS).gets;
    // Instead of asking for progress; and once more, what was announced has been taken in.
    eventually("the connection is asked", LONG, async || {
        following.etcd.asked(SERVERS).gets >= gets + 2
    })
    .await;
    following.etcd.cut();
    following
        .until_watched_from(&[LISTED + 1, LISTED + 1])
        .await;
    following.etcd.deliver();
    following.until_known(&["late"]).await;
    assert_eq!(following.etcd.asked(SERVERS).progress, 0);
}

#[tokio::test]
async fn requested_progress_of_an_etcd_that_orders_it_counts() {
    let following = Following::start("3.5.13").await;
    following.advance_to(LISTED + 10);
    following.until_progress_was_taken_in().await;
    following.etcd.cut();
    following
        .until_watched_from(&[LISTED + 1, LISTED + 11])
        .await;
    let known = following.put_record("new", 20001);
    following.until_known(&["new"]).await;
    assert_eq!(known, LISTED + 11);
}
