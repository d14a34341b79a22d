//! Certificate files that change while the proxy runs.

use std::time::Duration;

use crate::cluster::{Ground, LONG, Single};
use crate::double::v1_20;
use crate::support::pki::LeafOptions;
use crate::support::proxy::{Proxy, Until};
use crate::support::steady::Steady;
use crate::support::wait::{eventually, holds};

const PODS: &str = "/api/v1/pods";
const BROKEN: &str = "kube_interop_proxy_certificates_broken";

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
    // Held open by a watch: nothing of it is cut.
    let mut watch = admin.fresh().open(&format!("{PODS}?watch=1")).await;
    assert_eq!(watch.status, 200);
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
    assert!(watch.next_chunk(Duration::from_millis(100)).await.is_err());

    // It is the new certificate that the apiserver sees: one that it does not believe makes nobody anybody.
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
    for (file, what) in [
        ("front-proxy-client.crt", "upstream"),
        ("apiserver.key", "serving"),
    ] {
        let path = single.ground.pki.path(file);
        let good = std::fs::read(&path).unwrap();
        let broken = async || single.proxy.metric(BROKEN, &[("files", what)]).await;
        assert_eq!(broken().await, 0.0);
        for bad in [Some("nonsense"), None] {
            match bad {
                Some(text) => std::fs::write(&path, text).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            eventually("that is noticed", LONG, async || broken().await == 1.0).await;
            holds("everything is served", Duration::from_secs(1), async || {
                admin.fresh().get(PODS).await.code() == 200
            })
            .await;
        }
        std::fs::write(&path, good).unwrap();
        eventually("it is good again", LONG, async || broken().await == 0.0).await;
        assert_eq!(admin.fresh().get(PODS).await.code(), 200);
    }
}

#[tokio::test]
async fn who_asks_is_judged_by_the_cas_of_the_moment_on_open_connections_too() {
    let mut ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let users = ground.pki.path("users-ca.crt");
    std::fs::copy(ground.pki.path("ca.crt"), &users).unwrap();
    let options = ground
        .proxy("a", double.addr())
        .set("serving.clientCAFile", &users.display().to_string());
    let proxy = Proxy::start(options.until(Until::Ready)).await;
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
