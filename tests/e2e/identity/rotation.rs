//! Certificate files that change while the proxy runs.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::timeout;

use testkit::cluster::{Ground, LONG, Single, binary};
use testkit::double::{Double, v1_20};
use testkit::pki::{LeafOptions, SERVER_NAME};
use testkit::proxy::{Proxy, Until};
use testkit::steady::Steady;
use testkit::upgraded::Upgraded;
use testkit::wait::eventually;

pub const PODS: &str = "/api/v1/pods";
const EXEC: &str = "/api/v1/namespaces/default/pods/x/exec";
pub const BROKEN: &str = "kube_interop_proxy_certificates_broken";
pub const LOADED: &str = "kube_interop_proxy_certificates_loaded_total";
const EXPIRATION: &str = "kube_interop_proxy_certificate_expiration_timestamp_seconds";
const LISTS: &str = "kube_interop_proxy_etcd_lists_total";
const LONG_RUNNING: &str = "kube_interop_proxy_long_running_requests";

#[tokio::test]
async fn new_upstream_certificates_are_used_and_no_request_fails_meanwhile() {
    let single = Single::new().await;
    let admin = single.client().cert("admin");
    let connection = admin.clone();
    let steady = Steady::start("reads", Duration::from_millis(5), 100_000, move || {
        let client = connection.clone();
        async move {
            let answer = client.get(PODS).await;
            match answer.code() {
                200 => Ok(()),
                _ => Err(answer.text()),
            }
        }
    });
    // Presented the certificate, and not: nothing of either is cut.
    let path = format!("{PODS}?watch=1");
    let mut watch = admin.fresh().open(&path).await;
    let mut bearer = single.client().token("tok-admin").open(&path).await;
    assert_eq!((watch.status.as_u16(), bearer.status.as_u16()), (200, 200));
    for _ in 0..2 {
        let before = single.double.accepted_connections();
        let pair = LeafOptions::client("front-proxy-client");
        single
            .ground
            .pki
            .leaf("front-proxy-client", "front-proxy-ca", &pair);
        eventually("new connections are made", LONG, async || {
            single.double.accepted_connections() > before
        })
        .await;
    }
    assert!(steady.stop().await > 0);
    assert_eq!(watch.next_line(LONG).await.expect("a clean end"), None);
    assert!(bearer.is_quiet(Duration::from_millis(600)).await);

    // It is the new certificate that the apiserver sees: one that it rejects makes nobody anybody.
    let stranger = LeafOptions::client("stranger");
    single
        .ground
        .pki
        .leaf("front-proxy-client", "front-proxy-ca", &stranger);
    eventually("the apiserver sees the new certificate", LONG, async || {
        admin.get(PODS).await.code() == 401
    })
    .await;
}

#[tokio::test]
async fn broken_files_leave_in_use_what_was_there() {
    let single = Single::new().await;
    let admin = single.client().cert("admin");
    let lists = single.proxy.metric(LISTS, &[]).await;
    for (file, what) in [
        ("front-proxy-client.crt", "upstream"),
        ("apiserver.key", "serving"),
        ("etcd-client.key", "etcd"),
    ] {
        let path = single.ground.pki.path(file);
        let good = std::fs::read(&path).unwrap();
        assert_eq!(
            single.proxy.metric(BROKEN, &[("files", what)]).await,
            0.0,
            "{what}"
        );
        let strange = match file.ends_with(".key") {
            true => single.ground.pki.path("sa.key"),
            false => single.ground.pki.path("admin.crt"),
        };
        let strange = std::fs::read_to_string(strange).unwrap();
        // Damaged, of another pair, not there.
        for bad in ["nonsense", strange.as_str(), ""] {
            match bad {
                "" => std::fs::remove_file(&path).unwrap(),
                text => std::fs::write(&path, text).unwrap(),
            }
            let broken = async || single.proxy.metric(BROKEN, &[("files", what)]).await;
            eventually("that is noticed", LONG, async || broken().await == 1.0).await;
            let status = single.proxy.statusz().await;
            assert_eq!(status["certificates"]["broken"], serde_json::json!([what]));
            assert_eq!(admin.fresh().get(PODS).await.code(), 200);
            std::fs::write(&path, &good).unwrap();
            let broken = async || single.proxy.metric(BROKEN, &[("files", what)]).await;
            eventually("it is good again", LONG, async || broken().await == 0.0).await;
        }
        assert_eq!(admin.fresh().get(PODS).await.code(), 200);
    }
    assert_eq!(single.proxy.metric(LISTS, &[]).await, lists);
}

/// A change in etcd that is made now is seen.
async fn follows_etcd(proxy: &Proxy, ground: &Ground) {
    let mut etcd = ground.etcd.client().await;
    let written = etcd.put("/registry/leases/kube-system/x", "{}", None).await;
    let revision = written.unwrap().header().unwrap().revision() as f64;
    eventually("etcd is followed", LONG, async || {
        let known = proxy.metric("kube_interop_proxy_etcd_revision", &[]);
        known.await >= revision
    })
    .await;
}

#[tokio::test]
async fn etcd_is_found_again_with_the_files_before_while_the_new_ones_are_broken() {
    let mut ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let key = ground.pki.path("own-etcd-client.key");
    std::fs::copy(ground.pki.path("etcd-client.key"), &key).unwrap();
    let options = ground
        .proxy("a", double.addr())
        .set("etcd.keyFile", &key.display().to_string());
    let proxy = Proxy::start(options.until(Until::Ready)).await;
    let lists = proxy.metric(LISTS, &[]).await;
    std::fs::remove_file(&key).unwrap();
    eventually("that is noticed", LONG, async || {
        proxy.metric(BROKEN, &[("files", "etcd")]).await == 1.0
    })
    .await;
    ground.etcd.restart().await;
    follows_etcd(&proxy, &ground).await;
    assert_eq!(proxy.metric(LISTS, &[]).await, lists);
}

#[tokio::test]
async fn etcds_certificates_are_read_again_and_nothing_is_listed_again() {
    let mut single = Single::new().await;
    let lists = single.proxy.metric(LISTS, &[]).await;
    // The client certificate before is one of a CA that etcd will know no more.
    single.ground.pki.add_ca("etcd-ca", "another CA");
    let pki = &single.ground.pki;
    let address = single.ground.etcd.addr().ip();
    let member = LeafOptions::server("etcd-server", &["localhost"]).san(address);
    pki.leaf(&format!("etcd-{address}"), "etcd-ca", &member);
    pki.leaf(
        "etcd-client",
        "etcd-ca",
        &LeafOptions::client("etcd-client"),
    );
    eventually("that is noticed", LONG, async || {
        single.proxy.metric(LOADED, &[("files", "etcd")]).await >= 1.0
    })
    .await;
    single.ground.etcd.restart().await;
    follows_etcd(&single.proxy, &single.ground).await;
    assert_eq!(single.proxy.metric(LISTS, &[]).await, lists);
    assert!(single.proxy.is_ready().await);
}

/// A proxy with a file of its own for the CAs of users, which is returned.
pub async fn with_own_users(ground: &Ground, double: &Double) -> (Proxy, PathBuf) {
    let users = ground.pki.path("users-ca.crt");
    std::fs::copy(ground.pki.path("ca.crt"), &users).unwrap();
    let options = ground
        .proxy("a", double.addr())
        .set("serving.clientCAFile", &users.display().to_string())
        .set("shutdown.drain", "2s");
    (Proxy::start(options.until(Until::Ready)).await, users)
}

#[tokio::test]
async fn who_asks_is_judged_by_the_cas_of_the_moment_on_open_connections_too() {
    let mut ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let (proxy, users) = with_own_users(&ground, &double).await;
    let good = std::fs::read(&users).unwrap();
    let admin = proxy.client(&ground.pki).cert("admin");
    assert_eq!(admin.get(PODS).await.code(), 200);
    ground.pki.add_ca("other-ca", "another CA");
    std::fs::copy(ground.pki.path("other-ca.crt"), &users).unwrap();
    eventually("the CA is withdrawn", LONG, async || {
        admin.get(PODS).await.code() == 401
    })
    .await;
    std::fs::write(&users, good).unwrap();
    eventually("the CA is back", LONG, async || {
        admin.get(PODS).await.code() == 200
    })
    .await;
}

#[tokio::test]
async fn long_running_requests_end_with_the_ca_that_let_them_in() {
    let mut ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let (proxy, users) = with_own_users(&ground, &double).await;
    let client = proxy.client(&ground.pki);
    let (admin, path) = (client.cert("admin"), format!("{PODS}?watch=1"));
    let mut watches = [
        admin.http1().open(&path).await,
        admin.http2().open(&path).await,
    ];
    let exec = format!(
        "POST {EXEC} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n"
    );
    let exec = Upgraded::open(&admin, &exec, b"").await.unwrap();
    // Tokens are the apiserver's to judge, whatever certificate comes with them.
    let mut others = [
        client.token("tok-admin").open(&path).await,
        client.cert("rogue").token("tok-admin").open(&path).await,
    ];
    let good = std::fs::read(&users).unwrap();
    ground.pki.add_ca("other-ca", "another CA");
    let other = std::fs::read(ground.pki.path("other-ca.crt")).unwrap();

    std::fs::write(&users, [good, other.clone()].concat()).unwrap();
    let loaded = async || proxy.metric(LOADED, &[("files", "serving")]).await;
    eventually("another CA is added", LONG, async || loaded().await >= 1.0).await;
    for watch in watches.iter_mut().chain(&mut others) {
        assert_eq!(watch.status, 200);
        assert!(watch.is_quiet(Duration::from_millis(600)).await);
    }
    std::fs::write(&users, other).unwrap();
    for watch in &mut watches {
        let end = watch.next_line(LONG).await.expect("a clean end");
        assert_eq!(end, None);
    }
    let ended = timeout(LONG, exec.count()).await;
    ended.expect("exec ends").expect("a clean end");
    for watch in &mut others {
        assert!(watch.is_quiet(Duration::from_millis(600)).await);
    }
    // At the apiserver, too.
    eventually("nothing else is open", LONG, async || {
        proxy.metric(LONG_RUNNING, &[]).await == 2.0 && double.open_upgrades() == 0
    })
    .await;
}

#[tokio::test]
async fn long_running_requests_end_after_their_clients_certificate() {
    let ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let (proxy, _) = with_own_users(&ground, &double).await;
    let brief = LeafOptions::client("kubernetes-admin").org("system:masters");
    let brief = brief.for_another(Duration::from_secs(5));
    ground.pki.leaf("brief", "ca", &brief);
    let client = proxy.client(&ground.pki);
    let path = format!("{PODS}?watch=1");
    let mut ends = client.cert("brief").open(&path).await;
    let mut stays = client.cert("admin").open(&path).await;
    assert_eq!((ends.status.as_u16(), stays.status.as_u16()), (200, 200));
    assert_eq!(ends.next_line(LONG).await.expect("a clean end"), None);
    assert_eq!(client.cert("brief").get(PODS).await.code(), 401);
    assert!(stays.is_quiet(Duration::from_millis(600)).await);
}

#[tokio::test]
async fn an_expired_certificate_is_said_and_keeps_nobody_from_starting() {
    let ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let names = [SERVER_NAME, "localhost", "127.0.0.1"];
    let expired = LeafOptions::server("kube-apiserver", &names).expired();
    ground.pki.leaf("old-apiserver", "ca", &expired);
    let file = |end| ground.pki.file(&format!("old-apiserver.{end}"));
    let options = ground
        .proxy("a", double.addr())
        .set("serving.certFile", &file("crt"))
        .set("serving.keyFile", &file("key"));
    let proxy = Proxy::start(options.until(Until::Ready)).await;
    assert!(proxy.log_tail().contains("a certificate has expired"));
    let end = async || {
        let labels = [("file", "serving.certFile")];
        proxy.metric(EXPIRATION, &labels).await
    };
    assert_eq!(end().await, expired.not_after.unix_timestamp() as f64);
    let status = proxy.statusz().await;
    let expire = status["certificates"]["expire"].as_object().unwrap();
    let files: Vec<_> = expire.keys().map(String::as_str).collect();
    let all = [
        "apiServer.caFile",
        "apiServer.proxyClientCertFile",
        "etcd.caFile",
        "etcd.certFile",
        "peer.caFile",
        "serving.certFile",
        "serving.clientCAFile",
        "serving.requestHeaderClientCAFile",
    ];
    assert_eq!(files, all);
    let check = std::process::Command::new(binary())
        .args(["check", "--config"])
        .arg(proxy.config_file())
        .output()
        .unwrap();
    assert_eq!(check.status.code(), Some(1));
    let said = String::from_utf8(check.stdout).unwrap();
    assert!(said.contains(": serving.certFile"), "{said}");
    assert!(said.contains("expired on"), "{said}");

    let good = LeafOptions::server("kube-apiserver", &names);
    ground.pki.leaf("old-apiserver", "ca", &good);
    eventually("the new one is in use", LONG, async || {
        end().await == good.not_after.unix_timestamp() as f64
    })
    .await;
    let admin = proxy.client(&ground.pki).cert("admin");
    assert_eq!(admin.get(PODS).await.code(), 200);
}
