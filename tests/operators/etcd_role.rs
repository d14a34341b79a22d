//! `deploy/etcd-role.sh`: with its role two proxies find each other, and all other access is denied.

use std::path::Path;
use std::process::Command;

use crate::command::run;
use testkit::cluster::{Cluster, Ground, HPAS, LONG};
use testkit::double::v1_20;
use testkit::missing;
use testkit::pki::LeafOptions;
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

const HEADER_NAMES: &str = "/registry/configmaps/kube-system/extension-apiserver-authentication";
const USER: &str = "kube-interop-proxy";

/// A program that talks to etcd as the one in this certificate; whether it succeeded, and what it said.
fn run_as(
    ground: &Ground,
    certificate: &str,
    program: &Path,
    arguments: &[&str],
) -> (bool, String) {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("ETCDCTL_API", "3")
        .env("ETCDCTL_ENDPOINTS", ground.etcd.endpoint())
        .env("ETCDCTL_CACERT", ground.pki.file("etcd-ca.crt"))
        .env(
            "ETCDCTL_CERT",
            ground.pki.file(&format!("{certificate}.crt")),
        )
        .env(
            "ETCDCTL_KEY",
            ground.pki.file(&format!("{certificate}.key")),
        );
    let Ok(output) = command.output() else {
        missing("etcdctl", "run tests/install.sh --tests");
    };
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.success(), said)
}

fn etcdctl(ground: &Ground, certificate: &str, arguments: &[&str]) -> (bool, String) {
    run_as(ground, certificate, Path::new("etcdctl"), arguments)
}

/// etcd asks everybody who they are, and knows two: root, and the proxies as the script leaves them.
async fn guarded() -> Ground {
    let ground = Ground::new().await;
    for user in ["root", USER] {
        let leaf = LeafOptions::client(user);
        ground.pki.leaf(&format!("etcd-{user}"), "etcd-ca", &leaf);
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/etcd-role.sh");
    // What it did before is no obstacle.
    for _ in 0..2 {
        let (good, said) = run_as(&ground, "etcd-root", &script, &[]);
        assert!(good, "{said}");
    }
    for arguments in [
        &["role", "add", "root"][..],
        &["user", "add", "root", "--no-password"],
        &["user", "grant-role", "root", "root"],
        &["auth", "enable"],
    ] {
        let (good, said) = etcdctl(&ground, "etcd-root", arguments);
        assert!(good, "{arguments:?}: {said}");
    }
    ground
}

/// The role that earlier versions needed: apiservers without a proxy are not seen, and everything else is as before.
async fn a_role_from_before_is_enough(ground: &Ground, cluster: &Cluster) {
    let lacks = [
        &["--prefix=true", USER, "/registry/masterleases/"][..],
        &[USER, HEADER_NAMES],
    ];
    for arguments in lacks {
        let revoke = [&["role", "revoke-permission"], arguments].concat();
        let (good, said) = etcdctl(ground, "etcd-root", &revoke);
        assert!(good, "{said}");
    }
    let file = |end: &str| ground.pki.file(&format!("etcd-{USER}.{end}"));
    let options = ground
        .proxy("before", cluster.a.addr())
        .set("etcd.certFile", &file("crt"))
        .set("etcd.keyFile", &file("key"));
    let proxy = Proxy::start(options.until(Until::Ready)).await;
    let admin = proxy.client(&ground.pki).cert("admin");
    eventually("it knows the others", LONG, async || {
        admin.get(HPAS).await.code() == 200
    })
    .await;
    let nowhere = admin.get("/apis/no.such.group/v1/things").await;
    assert_eq!(nowhere.code(), 404, "nothing is unknown");
    let status = proxy.statusz().await;
    let not_followed = &status["facts"]["notFollowed"];
    assert_eq!(
        not_followed.to_string(),
        r#"["masterleases","extension-apiserver-authentication"]"#
    );
    let age = proxy.metric("kube_interop_proxy_etcd_state_age_seconds", &[]);
    assert!(age.await < 6.0, "what is not followed is not old");
    let log = std::fs::read_to_string(proxy.config_file().with_extension("log")).unwrap();
    assert_eq!(log.matches("ermission denied").count(), 1, "{log}");
    let ended = run(&[
        "check",
        "--live",
        "--config",
        &proxy.config_file().display().to_string(),
    ])
    .await;
    let said = format!("may not read below /registry/masterleases/, {HEADER_NAMES}: apiservers");
    assert!(ended.stdout.contains(&said), "{}", ended.stdout);
    assert!(
        !ended.stdout.contains("KIP-041 etcd permissions"),
        "{}",
        ended.stdout
    );
}

#[tokio::test]
async fn the_role_is_enough_to_find_each_other_and_for_nothing_else() {
    let ground = guarded().await;
    let file = |end: &str| ground.pki.file(&format!("etcd-{USER}.{end}"));
    let (cert, key) = (file("crt"), file("key"));
    let mut cluster = Cluster::on(ground, v1_20(), |_, options| {
        options
            .set("etcd.certFile", &cert)
            .set("etcd.keyFile", &key)
            .set("watch.bookmarkOnShutdown", "false")
    })
    .await;
    let answer = cluster.client().cert("admin").get(HPAS).await;
    assert_eq!(answer.code(), 200, "{}", answer.text());
    let ground = &cluster.ground;
    let keys = |prefix: &str| {
        let list = ["get", "--prefix", "--keys-only", prefix];
        let (good, said) = etcdctl(ground, "etcd-root", &list);
        assert!(good, "{said}");
        said.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let own = |name: &str| format!("/kube-interop-proxy/registry/{name}");
    assert_eq!(
        keys("/kube-interop-proxy/"),
        ["live/a", "live/b", "servers/a", "servers/b"].map(own)
    );
    let native = ["a", "b"].map(|id| format!("/registry/peerserverleases/{id}"));
    eventually("the entries are there", LONG, async || {
        keys("/registry/peerserverleases/") == native
    })
    .await;
    for arguments in [
        &["get", "/registry/secrets/default/token"][..],
        &["get", "--prefix", "/registry/secrets/"],
        &["get", "--prefix", "/registry/leases/default/"],
        &["get", "/registry/services/endpoints/default/kubernetes"],
        &["put", HEADER_NAMES, "x"],
        &["put", "/registry/masterleases/10.0.0.1", "x"],
        &["get", "--prefix", "/registry/"],
        &["get", "--prefix", ""],
        &["put", "/registry/leases/kube-system/a", "x"],
        &["put", "/registry/storageversions/a", "x"],
        &["del", "/registry/pods/default/a"],
        &["put", "/kube-interop-proxy/registry2/live/a", "x"],
        &["user", "add", "other", "--no-password"],
        &["auth", "disable"],
    ] {
        let (good, said) = etcdctl(ground, &format!("etcd-{USER}"), arguments);
        assert!(
            !good && said.contains("permission denied"),
            "{arguments:?}: {said}"
        );
    }
    let log = std::fs::read_to_string(cluster.proxy_a.process().log()).unwrap();
    assert!(!log.contains("ermission denied"), "{log}");
    // What it may not read it says.
    let other = ground.proxy("c", cluster.a.addr());
    let mut other = Proxy::start(
        other
            .set("etcd.certFile", &cert)
            .set("etcd.keyFile", &key)
            .set("identity.leaseNamespaces", "[kube-system, elsewhere]"),
    )
    .await;
    let log = other.process().log().to_owned();
    eventually("the refusal is in the log", LONG, async || {
        let log = std::fs::read_to_string(&log).unwrap();
        log.contains("permission denied").then_some(()).ok_or(log)
    })
    .await;
    assert!(!other.is_ready().await);
    assert!(other.terminate().await.success());
    a_role_from_before_is_enough(ground, &cluster).await;
    assert!(cluster.proxy_b.terminate().await.success());
    eventually("its live key is gone", LONG, async || {
        keys(&own("live/")) == [own("live/a")]
    })
    .await;
}
