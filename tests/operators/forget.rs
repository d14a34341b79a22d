//! `forget`: removes a server that will not return, refuses a live one, and changes nothing else.

use std::path::PathBuf;
use std::time::Instant;

use etcd_client::KeyValue;

use crate::command::{AtTerminal, Ended, SOON, run};
use testkit::addr::Loopback;
use testkit::cluster::{Cluster, Ground, HPAS, LONG};
use testkit::etcd::Etcd;
use testkit::proxy::ProxyOptions;
use testkit::wait::eventually;

const OURS: &str = "/kube-interop-proxy/registry";
const RECORD: &str = r#"{"endpoint":"10.0.0.13:6443","binaryVersion":"v1.20.2","compatibilityVersion":"1.20",
    "resources":{"v1":["pods","pods/log"],"autoscaling/v1":["horizontalpodautoscalers"]}}"#;
const LIVE: &str = r#"{"endpoint":"10.0.0.13:6443","initialized":true,"recordRevision":1}"#;

/// An etcd with the record of a dead server `cp-3`, and a configuration file.
struct Stage {
    config: String,
    ground: Ground,
}

impl Stage {
    async fn new() -> Self {
        Self::with(|options| options).await
    }

    async fn with(change: impl Fn(ProxyOptions) -> ProxyOptions) -> Self {
        let ground = Ground::new().await;
        let options = change(ground.proxy("cp-1", "127.0.0.9:6443".parse().unwrap()));
        let config = options.config(&Loopback::new());
        let file = ground.dir.path().join("config.yaml");
        std::fs::write(&file, serde_yaml::to_string(&config).unwrap()).unwrap();
        let stage = Self {
            config: path(file),
            ground,
        };
        stage.put("servers/cp-3", RECORD).await;
        stage
    }

    /// Writes one of the proxies' own keys.
    async fn put(&self, key: &str, value: &str) {
        put(&self.ground.etcd, &format!("{OURS}/{key}"), value).await;
    }

    async fn forget(&self, id: &str, more: &[&str]) -> Ended {
        run(&[&["forget", id, "--config", &self.config], more].concat()).await
    }

    fn at_terminal(&self, id: &str) -> AtTerminal {
        AtTerminal::start(&["forget", id, "--config", &self.config], 80)
    }

    async fn all(&self) -> Vec<(String, i64)> {
        let all = self.ground.etcd.below("/").await;
        let named = |kv: &KeyValue| (kv.key_str().unwrap().to_owned(), kv.mod_revision());
        all.iter().map(named).collect()
    }
}

async fn put(etcd: &Etcd, key: &str, value: &str) {
    etcd.client().await.put(key, value, None).await.unwrap();
}

fn path(path: PathBuf) -> String {
    path.into_os_string().into_string().unwrap()
}

#[tokio::test]
async fn what_only_a_dead_server_lists_is_a_404_once_it_is_forgotten() {
    let mut cluster = Cluster::new().await;
    let config = path(cluster.proxy_a.config_file().to_owned());
    let forget = async |id: &str| run(&["forget", id, "--config", &config, "--yes"]).await;
    let lives = forget("b").await;
    assert_eq!(lives.code, Some(1));
    assert!(
        lives.one_line().contains("b is not forgotten: it is alive"),
        "{}",
        lives.stderr
    );

    cluster.proxy_b.kill();
    cluster.b.stop().await;
    let live = format!("{OURS}/live/b");
    eventually("B's live key is gone", LONG, async || {
        cluster.ground.etcd.below(&live).await.is_empty()
    })
    .await;
    let client = cluster.client().cert("admin");
    let groups = async || client.get("/apis").await.text();
    eventually(
        "B is absent and its group listed all the same",
        LONG,
        async || {
            let status = cluster.proxy_a.statusz().await;
            status["peers"][0]["live"] == false && groups().await.contains("\"autoscaling\"")
        },
    )
    .await;
    assert_eq!(client.get(HPAS).await.code(), 503);

    // Its entry for native apiservers has as long a life, and may have been written a moment later.
    let entry = "/registry/peerserverleases/b";
    eventually("B's entry is gone", LONG, async || {
        cluster.ground.etcd.below(entry).await.is_empty()
    })
    .await;
    let ended = forget("b").await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        ended.stdout.ends_with("b is forgotten.\n"),
        "{}",
        ended.stdout
    );
    eventually("what only B listed is nobody's", LONG, async || {
        client.get(HPAS).await.code() == 404
    })
    .await;
    eventually("discovery lists it no more", LONG, async || {
        !groups().await.contains("\"autoscaling\"")
    })
    .await;
    let status = cluster.proxy_a.statusz().await;
    assert_eq!(status["peers"], serde_json::json!([]));
    assert_eq!(status["discovery"]["added"], serde_json::json!([]));
    let known = cluster.ground.etcd.below(&format!("{OURS}/servers/")).await;
    assert_eq!(known.len(), 1, "A's own record");
    let again = forget("b").await;
    assert_eq!(again.code, Some(1));
    assert!(
        again
            .one_line()
            .contains("b is not known; known are: a (alive)"),
        "{}",
        again.stderr
    );
}

#[tokio::test]
async fn a_forgotten_server_that_comes_back_is_known_again() {
    let mut cluster = Cluster::new().await;
    let config = path(cluster.proxy_a.config_file().to_owned());
    cluster.proxy_b.terminate().await;
    let ended = run(&["forget", "b", "--config", &config, "--yes"]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    cluster.proxy_b.start_again().await;
    cluster.until_a_knows("b", "autoscaling").await;
    let client = cluster.client().cert("admin");
    assert_eq!(client.get(HPAS).await.code(), 200);
}

#[tokio::test]
async fn it_asks_at_a_terminal_and_only_a_yes_is_one() {
    let stage = Stage::new().await;
    let before = stage.all().await;
    for answer in ["n\n", "\n", "yes please\n", "\u{4}"] {
        let mut terminal = stage.at_terminal("cp-3");
        terminal.until_it_asks().await;
        terminal.types(answer);
        let (code, screen) = terminal.end().await;
        assert_eq!(code, Some(1), "{answer:?}: {screen}");
        assert!(
            screen.contains("nothing was changed"),
            "{answer:?}: {screen}"
        );
    }
    assert_eq!(stage.all().await, before);

    let mut terminal = stage.at_terminal("cp-3");
    terminal.until_it_asks().await;
    terminal.types("y\n");
    let (code, screen) = terminal.end().await;
    assert_eq!(code, Some(0), "{screen}");
    for part in [
        "10.0.0.13:6443",
        "v1.20.2 (1.20)",
        "3 resources in 2 group versions",
        "cp-3 is forgotten.",
    ] {
        assert!(screen.contains(part), "{part}: {screen}");
    }
    let left: Vec<_> = before
        .into_iter()
        .filter(|(key, _)| !key.ends_with("/servers/cp-3"))
        .collect();
    assert_eq!(stage.all().await, left);
}

#[tokio::test]
async fn a_server_that_comes_back_while_somebody_thinks_is_not_dropped() {
    let stage = Stage::new().await;
    for (key, value, said) in [
        ("servers/cp-3", RECORD, "written anew meanwhile"),
        (
            "claims/cp-3/10.0.0.9:6443",
            "{}",
            "it came back meanwhile: a proxy at 10.0.0.9:6443 claims",
        ),
        (
            "live/cp-3",
            LIVE,
            "it came back meanwhile: its proxy at 10.0.0.13",
        ),
    ] {
        let mut terminal = stage.at_terminal("cp-3");
        terminal.until_it_asks().await;
        stage.put(key, value).await;
        terminal.types("y\n");
        let (code, screen) = terminal.end().await;
        assert_eq!(code, Some(1), "{screen}");
        assert!(screen.contains(said), "{said}: {screen}");
        let record = stage
            .ground
            .etcd
            .below(&format!("{OURS}/servers/cp-3"))
            .await;
        assert_eq!(record.len(), 1, "{key}");
        if key.starts_with("claims") {
            let mut etcd = stage.ground.etcd.client().await;
            etcd.delete(format!("{OURS}/{key}"), None).await.unwrap();
        }
    }
}

#[tokio::test]
async fn whoever_shows_a_sign_of_life_is_refused() {
    let stage = Stage::new().await;
    put(
        &stage.ground.etcd,
        "/registry/peerserverleases/native",
        "k8s\0",
    )
    .await;
    stage.put("live/other", LIVE).await;
    stage.put("claims/claimed/10.0.0.9:6443", "{}").await;
    for (id, said) in [
        ("native", "peerserverleases"),
        ("other", "10.0.0.13:6443 has a live key"),
        ("claimed", "10.0.0.9:6443"),
    ] {
        let ended = stage.forget(id, &["--yes"]).await;
        assert_eq!(ended.code, Some(1), "{id}");
        assert!(ended.one_line().contains(said), "{id}: {}", ended.stderr);
    }
}

#[tokio::test]
async fn what_kube_apiserver_keeps_stays() {
    let stage = Stage::new().await;
    let lease = r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"cp-3",
        "labels":{"apiserver.kubernetes.io/identity":"kube-apiserver"}},
        "spec":{"renewTime":"2026-01-01T00:00:00.000000Z"}}"#;
    let versions = r#"{"apiVersion":"internal.apiserver.k8s.io/v1alpha1","kind":"StorageVersion",
        "status":{"storageVersions":[{"apiServerID":"cp-3"}]}}"#;
    let etcd = &stage.ground.etcd;
    put(etcd, "/registry/leases/kube-system/cp-3", lease).await;
    put(etcd, "/registry/storageversions/apps.deployments", versions).await;
    put(
        etcd,
        "/registry/storageversions/core.pods",
        "k8s:enc:secret",
    )
    .await;
    let before = stage.all().await;
    let ended = stage.forget("cp-3", &["--yes"]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let left: Vec<_> = before
        .into_iter()
        .filter(|(key, _)| !key.ends_with("/servers/cp-3"))
        .collect();
    assert_eq!(stage.all().await, left);
    let again = stage.forget("cp-3", &["--yes"]).await;
    assert_eq!(again.code, Some(1));
    assert!(
        again.stderr.contains("nor is any other server"),
        "{}",
        again.stderr
    );
}

#[tokio::test]
async fn bad_usage_is_64_and_changes_nothing() {
    let stage = Stage::new().await;
    let before = stage.all().await;
    for id in ["", "a/b", "../live/cp-3", "cp-3\n", "\u{1b}[2J"] {
        let ended = stage.forget(id, &["--yes"]).await;
        assert_eq!(ended.code, Some(64), "{id:?}");
    }
    let ended = stage.forget("cp-3", &[]).await;
    assert_eq!(ended.code, Some(64));
    assert!(ended.one_line().contains("--yes"), "{}", ended.stderr);
    for arguments in [
        &["forget"][..],
        &["forget", "cp-3"],
        &["forget", "--config", &stage.config],
        &[
            "forget",
            "cp-3",
            "--yes",
            "--config",
            "/no/such/config.yaml",
        ],
    ] {
        assert_eq!(run(arguments).await.code, Some(64), "{arguments:?}");
    }
    assert_eq!(stage.all().await, before);
}

#[tokio::test]
async fn an_etcd_that_does_not_answer_is_1_in_time() {
    let mut stage = Stage::new().await;
    let endpoint = stage.ground.etcd.endpoint();
    stage.ground.etcd.stop();
    let started = Instant::now();
    let frozen = stage.forget("cp-3", &["--yes"]).await;
    assert!(started.elapsed() < SOON);
    stage.ground.etcd.kill();
    let dead = stage.forget("cp-3", &["--yes"]).await;
    for (ended, said) in [(frozen, "no answer from etcd in time"), (dead, "refused")] {
        assert_eq!(ended.code, Some(1));
        let line = ended.one_line();
        assert!(
            line.contains(&endpoint) && line.contains(said),
            "{said}: {line}"
        );
    }
}

#[tokio::test]
async fn an_etcd_of_another_authority_is_1_and_says_so() {
    let stage = Stage::with(|options| options.set("etcd.caFile", "pki/ca.crt")).await;
    let ended = stage.forget("cp-3", &["--yes"]).await;
    assert_eq!(ended.code, Some(1));
    let line = ended.one_line();
    assert!(
        line.contains("certificate") && line.contains("UnknownIssuer"),
        "{line}"
    );
}

#[tokio::test]
async fn an_etcd_that_does_not_take_the_certificate_is_1_and_says_so() {
    let other = |options: ProxyOptions| {
        let options = options.set("etcd.certFile", "pki/front-proxy-client.crt");
        options.set("etcd.keyFile", "pki/front-proxy-client.key")
    };
    let ended = Stage::with(other).await.forget("cp-3", &["--yes"]).await;
    assert_eq!(ended.code, Some(1));
    let line = ended.one_line();
    assert!(line.contains("client certificate, etcd.certFile"), "{line}");
}

#[tokio::test]
async fn a_dead_member_of_etcd_is_passed_over() {
    let nobody = Loopback::new();
    let first = format!("https://{}", nobody.socket(2379));
    let stage = Stage::new().await;
    let text = std::fs::read_to_string(&stage.config).unwrap();
    let endpoint = stage.ground.etcd.endpoint();
    assert!(text.contains(&endpoint), "{text}");
    let mut config: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
    config["etcd"]["endpoints"] = serde_yaml::to_value([first, endpoint]).unwrap();
    std::fs::write(&stage.config, serde_yaml::to_string(&config).unwrap()).unwrap();
    let ended = stage.forget("cp-3", &["--yes"]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}
