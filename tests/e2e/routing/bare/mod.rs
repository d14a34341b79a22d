//! Bare apiservers: only what every kube-apiserver writes into etcd tells of them. B has no proxy, and alone serves a
//! group; a false 404 for it would be fatal, whatever happens to B.

pub mod apiservers;
pub mod hostile;

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::routing::true_404::{denied, until_404};
use crate::servers::facts::entry;
use testkit::addr::Loopback;
use testkit::client::Client;
use testkit::cluster::{Ground, HPAS, HPAS_IN_DEFAULT, LONG, Single};
use testkit::double::{DoubleOptions, Fault, ServedResource, v1_20, v1_36};
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::registry::Registry;
use testkit::steady::Steady;
use testkit::upgraded::Upgraded;
use testkit::wait::{eventually, holds};

const PEERS: &str = "kube_interop_proxy_peers";
const SHELLS: &str = "/apis/debug.example/v1/namespaces/default/shells/x/exec";
const NOWHERE: &str = "/apis/no.such.group/v1/things";

async fn registry(ground: &Ground) -> Registry {
    Registry::new(ground.etcd.client().await, "/registry")
}

/// A, which lacks the group and has a proxy, and the administrator there. Apiservers advertise these addresses before.
async fn beside(advertised: &[SocketAddr], ground: Ground) -> (Single, Client) {
    changed(advertised, ground, |options| options).await
}

async fn changed(
    advertised: &[SocketAddr],
    ground: Ground,
    change: impl FnOnce(ProxyOptions) -> ProxyOptions,
) -> (Single, Client) {
    let registry = registry(&ground).await;
    for address in advertised {
        registry.advertise(*address).await;
    }
    let without = v1_20().without_group("autoscaling");
    let without = DoubleOptions::new(ground.pki.dir(), without);
    let a = Single::on(ground, without, change).await;
    let admin = a.client().cert("admin");
    (a, admin)
}

/// Waits for an answer, and accepts nothing before but 503.
async fn until(admin: &Client, path: &str, code: u16) {
    eventually(&format!("{path} is {code}"), LONG, async || {
        let answer = admin.get(path).await;
        let expected = answer.code() == code || answer.code() == 503;
        assert!(expected, "{}: {}", answer.code(), answer.text());
        answer.code() == code
    })
    .await;
}

/// 503 with `Retry-After`, for a while.
async fn stays_absent(admin: &Client, what: &str, time: Duration) {
    holds(what, time, async || {
        let answer = admin.get(HPAS).await;
        let absent = answer.code() == 503 && !answer.header("retry-after").is_empty();
        absent
            .then_some(())
            .ok_or(format!("{} {}", answer.code(), answer.text()))
    })
    .await;
}

/// Asks for the group again and again: no answer may be a 404.
fn never_a_404(admin: &Client) -> Steady {
    let admin = admin.fresh();
    Steady::start(
        "the group of B",
        Duration::from_millis(20),
        100_000,
        move || {
            let admin = admin.clone();
            async move {
                match admin.try_get(HPAS).await {
                    Ok(answer) if matches!(answer.code(), 200 | 503) => Ok(()),
                    Ok(answer) => Err(format!("{} {}", answer.code(), answer.text())),
                    Err(error) => Err(format!("{error:#}")),
                }
            }
        },
    )
}

async fn peers(a: &Single, state: &str) -> f64 {
    a.proxy.metric(PEERS, &[("state", state)]).await
}

/// What the status page says of an advertised address.
async fn said_of(a: &Single, address: SocketAddr) -> Value {
    let status = a.proxy.statusz().await;
    let all = status["facts"]["advertised"].as_array().unwrap();
    let ip = address.ip().to_string();
    let mut all = all.iter().filter(|said| said["address"] == ip.as_str());
    all.next()
        .map_or(Value::Null, |said| said["withoutProxy"].clone())
}

async fn until_said(a: &Single, address: SocketAddr, expected: &str) {
    eventually(&format!("{address}: {expected}"), LONG, async || {
        let said = said_of(a, address).await;
        if said == expected { Ok(()) } else { Err(said) }
    })
    .await;
}

#[tokio::test]
async fn a_bare_apiserver_is_served_from() {
    let ground = Ground::new().await;
    let mut shells = ServedResource::new("debug.example", "v1", "shells", "Shell");
    shells.subresources.push("exec".to_owned());
    let b = ground.double(v1_20().with(shells)).await;
    let (a, admin) = beside(&[b.addr()], ground).await;
    until(&admin, HPAS, 200).await;
    assert_eq!(admin.get(NOWHERE).await.code(), 404, "nobody serves it");
    // It is read as its own loopback client would: nobody else may see `/`.
    let asked = b.take_requests();
    let index = asked.iter().find(|request| request.path == "/").unwrap();
    assert_eq!(index.header("x-remote-user"), "system:apiserver");
    assert_eq!(index.header("x-remote-group"), "system:masters");

    assert_eq!(admin.get(HPAS).await.code(), 200);
    let client = a.client();
    assert_eq!(client.token("tok-admin").get(HPAS).await.code(), 200);
    let bob = client.token("tok-bob").get(HPAS).await;
    assert!(
        bob.code() == 403 && bob.text().contains("bob"),
        "{}",
        bob.text()
    );
    assert_eq!(client.get(HPAS).await.code(), 403, "anonymous is no 401");
    let asked = b.take_requests();
    let users = asked.iter().filter(|request| request.path == HPAS);
    let users: Vec<_> = users.map(|request| request.user.as_str()).collect();
    assert_eq!(
        users,
        ["kubernetes-admin", "token-admin", "bob", "system:anonymous"]
    );
    for request in asked.iter().filter(|request| request.path == HPAS) {
        assert_eq!(request.header("x-kubernetes-apiserver-rerouted"), "true");
        assert_eq!(request.header("x-kubernetes-peer-proxied"), "true");
    }

    let object = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "default"}, "spec": {"maxReplicas": 2}});
    let mut watch = admin.open(&format!("{HPAS}?watch=true")).await;
    let created = admin
        .request("POST", HPAS_IN_DEFAULT, object.to_string())
        .await;
    assert_eq!(created.code(), 201, "{}", created.text());
    let event = watch.next_event(LONG).await.unwrap().unwrap();
    assert_eq!(event["type"], "ADDED", "{event}");
    let exec = format!(
        "POST {SHELLS} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\
         X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
    );
    let mut shell = Upgraded::open(&admin, &exec, b"whoami").await.unwrap();
    shell.expect(b"whoami").await.unwrap();

    let status = a.proxy.statusz().await;
    let peer = &status["peers"][0];
    assert_eq!(peer["id"], b.addr().to_string());
    assert!(
        peer["bare"] == true && peer["native"] == false && peer["target"] == true,
        "{peer}"
    );
    let states = ["bare", "target", "live", "absent"];
    let mut counts = Vec::new();
    for state in states {
        counts.push(peers(&a, state).await);
    }
    assert_eq!(counts, [1.0, 0.0, 0.0, 0.0]);
}

#[tokio::test]
async fn a_bare_apiserver_that_is_gone_is_absent_also_after_its_key() {
    let ground = Ground::new().await;
    let mut b = ground.double(v1_20()).await;
    let address = b.addr();
    let grace = "6s";
    let (a, admin) = changed(&[address], ground, |options| {
        options.set("rerouting.absentServerGrace", grace)
    })
    .await;
    until(&admin, HPAS, 200).await;
    b.stop().await;
    stays_absent(&admin, "B is gone", Duration::from_secs(2)).await;
    until_said(&a, address, "does not answer").await;
    let registry = registry(&a.ground).await;
    registry.delete(&registry.master_lease(address.ip())).await;
    stays_absent(&admin, "and its key", Duration::from_secs(3)).await;
    until(&admin, HPAS, 404).await;
    b.start_again().await;
    b.set_ready(true);
    registry.advertise(address).await;
    eventually("it is back", LONG, async || {
        admin.get(HPAS).await.code() == 200
    })
    .await;
}

#[tokio::test]
async fn an_apiserver_that_is_not_ready_or_rejects_the_credentials_is_unknown_and_no_target() {
    let ground = Ground::new().await;
    let b = ground.double(v1_36()).await;
    b.set_ready(false);
    let (a, admin) = beside(&[b.addr()], ground).await;
    until_said(&a, b.addr(), "bare, its discovery cannot be read").await;
    for path in [HPAS, NOWHERE] {
        assert_eq!(admin.get(path).await.code(), 503, "{path}");
    }
    let documents = [
        "/apis/autoscaling/v2",
        "/apis/nowhere.example.com/v1",
        "/apis/nowhere.example.com",
    ];
    for path in documents {
        let answer = admin.get(path).await;
        assert_eq!(answer.code(), 503, "{path}");
        // client-go would ask ten times before every command.
        assert_eq!(answer.header("retry-after"), "", "{path}");
    }
    assert_eq!(admin.get("/apis/apps/v1").await.code(), 200);
    assert_eq!(b.count(HPAS), 0);
    assert_eq!(peers(&a, "bare").await, 1.0);
    b.set_ready(true);
    until(&admin, HPAS, 200).await;
    for path in [NOWHERE, documents[1], documents[2]] {
        assert_eq!(admin.get(path).await.code(), 404, "{path}");
    }
    until(&admin, documents[0], 200).await;
}

#[tokio::test]
async fn a_proxy_that_takes_a_bare_apiservers_place_and_goes_again_is_no_404() {
    let ground = Ground::new().await;
    let mut b = ground.double(v1_20()).await;
    let address = b.addr();
    let (a, admin) = beside(&[address], ground).await;
    let ground = &a.ground;
    until(&admin, HPAS, 200).await;
    let asking = never_a_404(&admin);
    // The apiserver moves to loopback, as it were.
    b.stop().await;
    let behind = ground.double(v1_20()).await;
    let options = ground.proxy("b", behind.addr()).at(address);
    let mut proxy_b = Proxy::start(options.until(Until::Ready)).await;
    a.proxy
        .until_metric(PEERS, &[("state", "target")], |count| count == 1.0)
        .await;
    assert_eq!(peers(&a, "bare").await, 0.0);
    until(&admin, HPAS, 200).await;
    proxy_b.terminate().await;
    drop(behind);
    b.start_again().await;
    b.set_ready(true);
    until(&admin, HPAS, 200).await;
    a.proxy
        .until_metric(PEERS, &[("state", "bare")], |count| count == 1.0)
        .await;
    asking.stop().await;
}

/// As `kubeadm upgrade` without the patches does it: kube-apiserver takes its proxy's address, and from 1.36 on has an entry
/// under the ID that the proxy had.
#[tokio::test]
async fn what_only_a_newer_apiserver_serves_is_no_404_after_it_has_lost_its_proxy() {
    let ground = Ground::new().await;
    let mut upgraded = ground.double(v1_36()).await;
    let address = upgraded.addr();
    upgraded.stop().await;
    let behind = ground.double(v1_20().without_group("autoscaling")).await;
    let options = ground.proxy("b", behind.addr()).at(address);
    let mut proxy_b = Proxy::start(options.until(Until::Ready)).await;
    let (a, admin) = beside(&[address], ground).await;
    a.proxy
        .until_metric(PEERS, &[("state", "target")], |count| count == 1.0)
        .await;
    assert_eq!(admin.get(HPAS).await.code(), 404);
    proxy_b.terminate().await;
    drop(behind);
    let registry = registry(&a.ground).await;
    registry.delete(&registry.master_lease(address.ip())).await;
    upgraded.start_again().await;
    upgraded.set_ready(true);
    let key = "/registry/peerserverleases/b";
    registry.put_bytes(key, &entry("b", address)).await;
    registry.advertise(address).await;
    eventually("A knows that it is there", LONG, async || {
        said_of(&a, address).await != Value::Null
    })
    .await;
    until(&admin, HPAS, 200).await;
    assert_eq!(peers(&a, "bare").await, 1.0);
}

#[tokio::test]
async fn where_every_apiserver_has_a_proxy_nobody_is_bare() {
    let ground = Ground::new().await;
    let b = ground.double(v1_20()).await;
    let proxy_b = Proxy::start(ground.proxy("b", b.addr()).until(Until::Ready)).await;
    let (a, admin) = beside(&[proxy_b.addr()], ground).await;
    let registry = registry(&a.ground).await;
    registry.advertise(a.proxy.addr()).await;
    until(&admin, HPAS, 200).await;
    assert_eq!(
        (peers(&a, "bare").await, peers(&a, "target").await),
        (0.0, 1.0)
    );
    assert_eq!(admin.get(NOWHERE).await.code(), 404);
    assert_eq!(said_of(&a, proxy_b.addr()).await, Value::Null);
}

#[tokio::test]
async fn the_record_of_a_server_that_lost_its_proxy_does_not_end_while_its_apiserver_lives() {
    let ground = Ground::new().await;
    let b = ground.double(v1_20()).await;
    let grace = |options: ProxyOptions| options.set("rerouting.absentServerGrace", "6s");
    let options = grace(ground.proxy("b", b.addr()));
    let mut proxy_b = Proxy::start(options.until(Until::Ready)).await;
    // Its apiserver listens on loopback, and advertises the proxy's address.
    let (mut a, admin) = changed(&[proxy_b.addr()], ground, grace).await;
    until(&admin, HPAS, 200).await;
    let asking = never_a_404(&admin);
    proxy_b.terminate().await;
    stays_absent(&admin, "after the grace", Duration::from_secs(8)).await;
    asking.stop().await;
    a.proxy.kill();
    a.proxy.start_again().await;
    let admin = admin.fresh();
    // From then on only the record tells of B.
    let nobody = until_said(&a, proxy_b.addr(), "no apiserver answers");
    nobody.await;
    stays_absent(&admin, "after a restart", Duration::from_secs(2)).await;
    let registry = registry(&a.ground).await;
    let key = registry.master_lease(proxy_b.addr().ip());
    registry.delete(&key).await;
    until(&admin, HPAS, 404).await;
}

#[tokio::test]
async fn what_a_bare_apiserver_denies_is_a_404_after_another_look() {
    let ground = Ground::new().await;
    let b = ground.double(v1_20()).await;
    let (_a, admin) = changed(&[b.addr()], ground, |options| {
        options.set("apiServer.discoveryInterval", "1s")
    })
    .await;
    until(&admin, HPAS_IN_DEFAULT, 200).await;
    b.set_fault("/version", Some(Fault::Status(500, None)));
    b.set_fault(HPAS_IN_DEFAULT, denied());
    for _ in 0..10 {
        let answer = admin.get(HPAS_IN_DEFAULT).await;
        assert_eq!(answer.code(), 503, "{}", answer.text());
    }
    b.set_fault("/version", None);
    until_404(&admin).await;
    b.set_fault(HPAS_IN_DEFAULT, None);
    assert_eq!(admin.get(HPAS_IN_DEFAULT).await.code(), 200);
}

/// Until nobody has answered at `address` for longer than the key of a dead one would live, and then for a while.
async fn stays_unknown(a: &Single, admin: &Client, address: SocketAddr) {
    let is_unknown = async || {
        let answer = admin.get(NOWHERE).await;
        assert_eq!(answer.code(), 503, "{}", answer.text());
    };
    eventually("nobody has answered for long", LONG, async || {
        is_unknown().await;
        said_of(a, address).await == "no apiserver answers"
    })
    .await;
    holds(
        "it is still not known",
        Duration::from_secs(3),
        async || {
            is_unknown().await;
            true
        },
    )
    .await;
}

#[tokio::test]
async fn while_an_apiserver_lives_that_cannot_be_reached_nothing_is_a_404_unless_it_is_ignored() {
    let ground = Ground::new().await;
    // Nobody listens there.
    let b = Loopback::new();
    let b = b.socket(6443);
    let (mut a, admin) = beside(&[b], ground).await;
    // Else B's could be the address of A's own apiserver.
    let registry = registry(&a.ground).await;
    registry.advertise(a.proxy.addr()).await;
    eventually("A's address is known", LONG, async || {
        let status = a.proxy.statusz().await;
        let advertised = status["facts"]["advertised"].as_array().unwrap();
        advertised.len() == 2
    })
    .await;
    stays_unknown(&a, &admin, b).await;

    let ignored = format!("[{}]", b.ip());
    a.proxy.reconfigure("rerouting.ignoredAddresses", &ignored);
    until(&admin, NOWHERE, 404).await;
    assert_eq!(said_of(&a, b).await, Value::Null);
    a.proxy.reconfigure("rerouting.ignoredAddresses", "[]");
    eventually("B counts again", LONG, async || {
        admin.get(NOWHERE).await.code() == 503
    })
    .await;
}

#[tokio::test]
async fn addresses_that_no_node_reaches_may_be_those_of_apiservers_whose_proxies_have_others() {
    let ground = Ground::new().await;
    let b = ground.double(v1_20()).await;
    let proxy_b = Proxy::start(ground.proxy("b", b.addr()).until(Until::Ready)).await;
    // Nobody listens there: outside of the nodes, or a load balancer whose hairpin does not work.
    let addresses = [Loopback::new(), Loopback::new(), Loopback::new()];
    let [first, second, third] = addresses.each_ref().map(|address| address.socket(6443));
    let (a, admin) = beside(&[first, second], ground).await;
    for address in [first, second] {
        until_said(&a, address, "no apiserver answers").await;
    }
    until(&admin, NOWHERE, 404).await;
    assert_eq!(admin.get(HPAS).await.code(), 200);
    // The third is nobody's of the two.
    registry(&a.ground).await.advertise(third).await;
    eventually("the third one counts", LONG, async || {
        admin.get(NOWHERE).await.code() == 503
    })
    .await;
    stays_unknown(&a, &admin, third).await;
    drop(proxy_b);
}
