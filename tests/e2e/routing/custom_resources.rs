//! Custom resources: every apiserver serves them, but each learns of a new one in its own time. An apiserver that does
//! not know one yet does not count until all others have said the same.

use std::time::Duration;

use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::real_apiservers::LONGER;
use crate::limits::http2::{get, streams};
use crate::limits::unread::asked;
use testkit::client::Client;
use testkit::cluster::{Cluster, LONG, REROUTED, assert_refused, lists};
use testkit::double::{Fault, ServedResource, v1_20};
use testkit::pair::Pair;
use testkit::process::Signal;
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::registry::Registry;
use testkit::wait::eventually;

const WIDGETS: &str = "/apis/example.com/v1/widgets";
const IN_DEFAULT: &str = "/apis/example.com/v1/namespaces/default/widgets";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn widgets() -> ServedResource {
    ServedResource::custom("example.com", "v1", "widgets", "Widget")
}

fn widget(name: &str, filling: usize) -> String {
    let filling = "x".repeat(filling);
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"a": filling}})
        .to_string()
}

/// The definition is in etcd, and no apiserver has seen it yet.
async fn defined() -> Cluster {
    defined_at(Cluster::new().await).await
}

async fn defined_at(cluster: Cluster) -> Cluster {
    let registry = Registry::new(cluster.ground.etcd.client().await, "/registry");
    registry.put_definition("widgets.example.com").await;
    for proxy in [&cluster.proxy_a, &cluster.proxy_b] {
        until_known(proxy, "widgets").await;
    }
    cluster
}

async fn until_known(proxy: &Proxy, plural: &str) {
    eventually("the proxy knows the definition", LONG, async || {
        let custom = proxy.statusz().await["custom"].to_string();
        custom.contains(&format!("\"{plural}\""))
    })
    .await;
}

/// Clients of A's proxy of each kind.
fn clients(cluster: &Cluster) -> [Client; 2] {
    let client = cluster.client();
    [
        client.cert("admin").http2(),
        client.token("tok-admin").http1(),
    ]
}

#[tokio::test]
async fn what_only_a_peer_knows_yet_is_served_by_it() {
    let cluster = defined().await;
    cluster.b.add_resource(widgets());
    for (number, client) in clients(&cluster).into_iter().enumerate() {
        assert_eq!(client.get(WIDGETS).await.code(), 200);
        let name = format!("w{number}");
        let made = client.request("POST", IN_DEFAULT, widget(&name, 0)).await;
        assert_eq!(made.code(), 201, "{}", made.text());
        let object = client.get(&format!("{IN_DEFAULT}/{name}")).await;
        assert_eq!(object.json()["metadata"]["name"], name.as_str());
        let mut watch = client.open(&format!("{WIDGETS}?watch=true")).await;
        let first = watch.next_line(LONG).await.unwrap().unwrap();
        assert!(first.contains("ADDED"), "{first}");
    }
    // Of a large body no more was sent than the first server's window let through, and that much is kept.
    let [client, _] = clients(&cluster);
    let large = client
        .request("POST", IN_DEFAULT, widget("large", 400_000))
        .await;
    assert_eq!(large.code(), 201);

    let before = cluster.b.count(WIDGETS);
    cluster.a.add_resource(widgets());
    assert_eq!(client.get(WIDGETS).await.code(), 200);
    assert_eq!(cluster.b.count(WIDGETS), before, "it is local again");
    // No server is said to have it for itself.
    assert!(!lists(&cluster.proxy_a.statusz().await, "b", "example.com"));
}

#[tokio::test]
async fn what_a_peer_serves_is_counted_by_its_name_in_etcd() {
    let mut cluster = defined().await;
    cluster.b.add_resource(widgets());
    let admin = cluster.client().cert("admin");
    assert_eq!(admin.get(WIDGETS).await.code(), 200);
    cluster.a.stop().await;
    let mut served = 1.0;
    eventually("the peer serves it", LONG, async || {
        let answer = admin.get(WIDGETS).await;
        served += f64::from(u8::from(answer.code() == 200));
        answer.code() == 200
    })
    .await;
    let labels = [
        ("code", "200"),
        ("group", "example.com"),
        ("version", ""),
        ("resource", "widgets"),
    ];
    let all = |count| count == served;
    cluster.proxy_a.until_metric(REROUTED, &labels, all).await;
}

#[tokio::test]
async fn what_nobody_knows_is_denied_in_the_local_apiservers_words() {
    let cluster = defined().await;
    let direct = Client::new(cluster.a.addr(), &cluster.ground.pki).cert("admin");
    for client in clients(&cluster) {
        for path in [WIDGETS, "/apis/example.com/v1/widgets?watch=true"] {
            let (expected, answer) = (direct.get(path).await, client.get(path).await);
            assert_eq!(
                (answer.code(), answer.text()),
                (404, expected.text()),
                "{path}"
            );
            assert_eq!(
                answer.header("content-type"),
                expected.header("content-type")
            );
        }
        let made = client.request("POST", IN_DEFAULT, widget("w", 0)).await;
        assert_eq!(made.code(), 404, "{}", made.text());
        let head = client.request("HEAD", WIDGETS, String::new()).await;
        assert_eq!(head.code(), 404);
    }
    let refused = "kube_interop_proxy_refusals_total";
    let said = cluster.proxy_b.metric(refused, &[("reason", "not_served")]);
    assert_eq!(said.await, 8.0);
    // An object that is missing is nobody else's affair.
    cluster.a.add_resource(widgets());
    cluster.b.take_requests();
    let [client, _] = clients(&cluster);
    assert_eq!(
        client.get(&format!("{IN_DEFAULT}/missing")).await.code(),
        404
    );
    assert_eq!(cluster.b.count("/apis/example.com"), 0);
}

#[tokio::test]
async fn it_is_in_doubt_while_somebody_cannot_be_asked() {
    let cluster = defined().await;
    let [client, _] = clients(&cluster);
    assert_eq!(client.get(WIDGETS).await.code(), 404);
    cluster.b.set_fault("/apis/example.com", Some(Fault::Reset));
    assert_refused(&client.get(WIDGETS).await, "Error while proxying request");
    cluster
        .b
        .set_fault("/apis/example.com", Some(Fault::Status(403, None)));
    assert_eq!(client.get(WIDGETS).await.code(), 403);
    cluster.b.set_fault("/apis/example.com", None);
    assert_eq!(client.get(WIDGETS).await.code(), 404);
}

/// Each request is asked once of each server, and no discovery is read for it.
#[tokio::test]
async fn a_wave_of_requests_is_no_storm() {
    /// Fewer than a proxy asks for at a time.
    const CLIENTS: usize = 50;
    const EACH: usize = 6;
    let cluster = defined().await;
    let third = cluster.ground.double(v1_20()).await;
    let ready = cluster.ground.proxy("c", third.addr()).until(Until::Ready);
    let _proxy_c = Proxy::start(ready).await;
    cluster.until_a_knows("c", "autoscaling").await;
    // Discovery is read again now and then, and after a change of etcd.
    let reads = || cluster.a.count("/apis/apps/v1") + cluster.b.count("/apis/apps/v1");
    let before = reads();
    let [client, _] = clients(&cluster);
    let started = Instant::now();
    let mut wave = JoinSet::new();
    for number in 0..CLIENTS {
        let client = client.clone();
        wave.spawn(async move {
            for again in 0..EACH {
                let answer = client.get(&format!("{WIDGETS}?n={number}-{again}")).await;
                assert_eq!(answer.code(), 404, "{}", answer.text());
            }
        });
    }
    wave.join_all().await;
    for double in [&cluster.a, &cluster.b, &third] {
        assert_eq!(double.count(WIDGETS), CLIENTS * EACH);
    }
    let most = 4 * (started.elapsed().as_secs() as usize / 10 + 2);
    assert!(reads() - before <= most, "{} reads", reads() - before);
}

/// No more requests than this ask other servers at a time.
#[tokio::test]
async fn who_reads_no_answer_keeps_nobody_from_other_servers() {
    const MOST: usize = 64;
    let cluster = defined().await;
    let [client, other] = clients(&cluster);
    let _reads_nothing = asked(&client, 0, 3 * MOST, WIDGETS).await;
    eventually("their answers wait", LONG, async || {
        cluster.b.count(WIDGETS) >= MOST
    })
    .await;
    for _ in 0..3 {
        let answer = other.get(WIDGETS).await;
        assert_eq!(answer.code(), 404, "{}", answer.text());
    }
}

/// They asked when their connection held little, and get another server's turn when it holds much.
#[tokio::test]
async fn who_holds_unread_answers_keeps_nobody_from_other_servers() {
    const MOST: usize = 64;
    const BIG: &str = "/_double/big?bytes=50000000";
    let cluster = defined().await;
    let [client, other] = clients(&cluster);
    let slow = Fault::Delay(Duration::from_secs(2));
    cluster.a.set_fault("/apis/example.com", Some(slow));
    let mut holder = asked(&client, 0, MOST, WIDGETS).await;
    eventually("the local apiserver is asked", LONG, async || {
        cluster.a.count(WIDGETS) >= MOST
    })
    .await;
    for stream in streams(3 * MOST).skip(MOST) {
        holder.write_all(&get(stream, BIG)).await.unwrap();
    }
    holder.flush().await.unwrap();
    // It gets the local apiserver's answer after them.
    let answer = other.get(WIDGETS).await;
    assert_eq!(answer.code(), 404, "{}", answer.text());
    eventually("the other is asked for all", LONG, async || {
        cluster.b.count(WIDGETS) > MOST
    })
    .await;
}

/// B's proxy is stopped, and C serves what A does not know yet.
#[tokio::test]
async fn nobody_waits_for_the_opinion_of_a_frozen_server() {
    /// Half of those that may ask others at a time.
    const CLIENTS: usize = 32;
    // B's live key outlives the test.
    let long_lived = |options: ProxyOptions| options.set("peer.leaseTTL", "60s");
    let mut cluster = defined_at(Cluster::with(v1_20(), long_lived).await).await;
    let third = cluster.ground.double(v1_20()).await;
    third.add_resource(widgets());
    let ready = cluster.ground.proxy("c", third.addr()).until(Until::Ready);
    let _proxy_c = Proxy::start(ready).await;
    cluster.until_a_knows("c", "autoscaling").await;
    let admin = cluster.client().cert("admin").http2().timeout(LONGER);
    let clients: Vec<_> = (0..CLIENTS).map(|_| admin.fresh()).collect();
    for client in &clients {
        assert_eq!(client.get(WIDGETS).await.code(), 200);
    }
    cluster.proxy_b.process().signal(Signal::Stop);
    let left = async || {
        let frozen = [("reason", "frozen")];
        let name = "kube_interop_proxy_failovers_total";
        cluster.proxy_a.metric(name, &frozen).await
    };
    // 0.8 s until it is asked, and 1 s for its answer; without suspicion it would be 10 s.
    let most = Duration::from_secs(5);
    assert!(longest(&clients, WIDGETS, 200).await < most);
    let at_first = left().await;
    assert!(at_first >= 1.0, "nobody has asked it");
    assert!(longest(&clients, WIDGETS, 200).await < most);
    // Nobody else has it, and B may.
    third.remove_group("example.com");
    let took = times(&clients, WIDGETS, 503).await;
    // Who asked it again would have left it again, or have waited for a second.
    assert_eq!(left().await, at_first);
    let shortest = took.iter().min().unwrap();
    assert!(*shortest < Duration::from_millis(900), "{took:?}");
    assert!(took.iter().all(|took| *took < most), "{took:?}");
    cluster.proxy_b.process().signal(Signal::Cont);
}

async fn longest(clients: &[Client], path: &'static str, expected: u16) -> Duration {
    let took = times(clients, path, expected).await;
    took.into_iter().max().unwrap_or_default()
}

/// Of one read by each client at the same time.
async fn times(clients: &[Client], path: &'static str, expected: u16) -> Vec<Duration> {
    let mut reads = JoinSet::new();
    for client in clients {
        let client = client.clone();
        reads.spawn(async move {
            let begun = Instant::now();
            let answer = client.get(path).await;
            assert_eq!(answer.code(), expected, "{}", answer.text());
            begun.elapsed()
        });
    }
    reads.join_all().await
}

fn definition(number: usize) -> String {
    let (plural, kind) = (format!("things{number}"), format!("Thing{number}"));
    let names = json!({
        "plural": plural, "singular": format!("thing{number}"),
        "kind": kind, "listKind": format!("{kind}List"),
    });
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.wave.example")},
        "spec": {"group": "wave.example", "scope": "Cluster", "names": names, "versions": [version]},
    })
    .to_string()
}

/// B's apiserver is stopped while A's learns of a definition. What was asked of it meanwhile it answers before it has
/// learnt of it, too.
pub async fn new_definitions_are_never_denied_once_one_apiserver_serves_them(pair: &mut Pair) {
    const ROUNDS: usize = 5;
    const IN_FLIGHT: &str = "kube_interop_proxy_requests_in_flight";
    let Pair {
        a,
        b,
        proxy_b,
        ground,
        ..
    } = pair;
    let to = proxy_b.client(&ground.pki).cert("admin").timeout(LONG);
    assert_eq!(to.get("/api/v1/namespaces").await.code(), 200);
    for round in 0..ROUNDS {
        let path = format!("/apis/wave.example/v1/things{round}");
        let none = |in_flight| in_flight == 0.0;
        proxy_b.until_metric(IN_FLIGHT, &[], none).await;
        b.process().signal(Signal::Stop);
        let made = a
            .admin()
            .request("POST", DEFINITIONS, definition(round))
            .await;
        assert_eq!(made.code(), 201, "{}", made.text());
        eventually("the first apiserver serves it", LONGER, async || {
            a.admin().get(&path).await.code() == 200
        })
        .await;
        until_known(proxy_b, &format!("things{round}")).await;
        let asked = tokio::spawn({
            let (to, path) = (to.clone(), path.clone());
            async move { to.get(&path).await }
        });
        let sent = |in_flight| in_flight >= 1.0;
        proxy_b.until_metric(IN_FLIGHT, &[], sent).await;
        b.process().signal(Signal::Cont);
        let answer = asked.await.unwrap();
        assert_eq!(answer.code(), 200, "{path}: {}", answer.text());
        assert_eq!(to.get(&path).await.code(), 200, "{path}");
    }
}
