//! A server that starts: nobody is sent to it before its peers know of it.

use std::time::Duration;

use etcd_client::{AlarmAction, AlarmOptions, AlarmType};
use serde_json::json;

use testkit::cluster::{Ground, LONG, Single, assert_refused};
use testkit::double::v1_20;
use testkit::proxy::{Proxy, Until};
use testkit::wait::{eventually, holds};

const NOBODYS: &str = "/apis/no.such.group/v1/things";
/// `peer.leaseTTL` of these proxies.
const LEASE_TTL: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_proxy_without_an_id_is_known_before_its_apiserver_is_ready() {
    let ground = Ground::new().await;
    let a = ground.double(v1_20()).await;
    let b = ground.double(v1_20()).await;
    b.set_ready(false);
    let other = Proxy::start(ground.proxy("a", a.addr()).until(Until::Ready)).await;
    let asked = other.client(&ground.pki).cert("admin");
    assert_eq!(asked.get(NOBODYS).await.code(), 404);
    let proxy = Proxy::start(ground.proxy("", b.addr())).await;
    eventually("somebody comes", LONG, async || {
        asked.get(NOBODYS).await.code() == 503
    })
    .await;
    let facts = other.statusz().await["facts"].clone();
    assert_eq!(facts["unnamed"], json!([proxy.addr().to_string()]));
    assert_eq!(facts["claims"], json!([]), "it is nobody's second proxy");
    holds("for as long as it is not known", LEASE_TTL, async || {
        asked.get(NOBODYS).await.code() == 503
    })
    .await;
    b.set_ready(true);
    eventually("it is ready", LONG, async || proxy.is_ready().await).await;
    eventually("what it serves is known", LONG, async || {
        asked.get(NOBODYS).await.code() == 404
    })
    .await;
}

#[tokio::test]
async fn a_proxy_that_cannot_write_is_not_ready_and_says_why() {
    let ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let mut etcd = ground.etcd.client().await;
    let options = || Some(AlarmOptions::new());
    let alarm = |action| (action, AlarmType::Nospace);
    let (action, kind) = alarm(AlarmAction::Activate);
    etcd.alarm(action, kind, options()).await.unwrap();
    let proxy = Proxy::start(ground.proxy("a", double.addr())).await;
    let failure = "[-]published failed: peers cannot know yet what this server serves";
    eventually("the reason is told", LONG, async || {
        let text = proxy.admin_get("/readyz").await.text();
        let lines: Vec<_> = text.lines().filter(|it| it.starts_with("[-]")).collect();
        let told = matches!(&lines[..], [one] if one.starts_with(failure) && one.contains("space"));
        told.then_some(()).ok_or(text)
    })
    .await;
    let client = proxy.client(&ground.pki);
    assert_refused(&client.get("/readyz").await, "[-]published failed");
    let (action, kind) = alarm(AlarmAction::Deactivate);
    etcd.alarm(action, kind, options()).await.unwrap();
    eventually("it is ready", LONG, async || proxy.is_ready().await).await;
    assert_eq!(client.get("/readyz").await.code(), 200);
}

#[tokio::test]
async fn an_etcd_that_fails_later_takes_nobodys_readiness_away() {
    let mut single = Single::new().await;
    let client = single.client();
    single.ground.etcd.kill();
    holds("it stays ready", LEASE_TTL * 2, async || {
        let answer = client.get("/readyz").await;
        match single.proxy.is_ready().await && answer.code() == 200 {
            true => Ok(()),
            false => Err(answer.text()),
        }
    })
    .await;
}
