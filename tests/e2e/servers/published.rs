//! The identity Lease with each `publishLease` setting, and what proxies leave behind, on a real kube-apiserver that
//! ignores such Leases.

use std::time::Duration;

use kube_interop_proxy::cluster::codec::{MANAGED_BY, MANAGER, RENEWAL, renewal};
use kube_interop_proxy::publish::identity::computed;
use serde_json::{Value, json};

use super::LEASES;
use testkit::cluster::{Ground, LONG};
use testkit::cut::Cut;
use testkit::double::v1_20;
use testkit::kube::KubeApiServer;
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::wait::{eventually, holds};

const KEPT: &str = "kube_interop_proxy_identity_lease";
/// `identity.leaseDuration` of these tests' proxies.
const DURATION: Duration = Duration::from_secs(2);

/// On a host of the same name.
fn proxy_options(api: &KubeApiServer, ground: &Ground, id: &str, publish: &str) -> ProxyOptions {
    keeping(ground.proxy(id, api.addr()), publish).host_name(id)
}

/// The name of the Lease that belongs to this proxy's apiserver: from 1.26 on it is made of the host's name.
fn lease_name(api: &KubeApiServer, id: &str) -> String {
    computed(id, &api.abilities().version).unwrap_or(id.to_owned())
}

async fn lease(api: &KubeApiServer, name: &str) -> Option<Value> {
    let answer = api.admin().get(&format!("{LEASES}/{name}")).await;
    (answer.code() == 200).then(|| answer.json())
}

async fn until_there(api: &KubeApiServer, name: &str) -> Value {
    eventually("the Lease is there", LONG, async || lease(api, name).await).await
}

async fn until_gone(api: &KubeApiServer, name: &str) {
    eventually("the Lease is gone", LONG, async || {
        lease(api, name).await.is_none()
    })
    .await;
}

async fn create(api: &KubeApiServer, lease: &Value) {
    let created = api.admin().request("POST", LEASES, lease.to_string());
    let created = created.await;
    assert_eq!(created.code(), 201, "{}", created.text());
}

/// Changes it, however often somebody else does at the same time.
async fn change(api: &KubeApiServer, name: &str, change: impl Fn(&mut Value)) -> Value {
    eventually("it is changed", LONG, async || {
        let mut lease = lease(api, name).await.ok_or("it is gone")?;
        change(&mut lease);
        let path = format!("{LEASES}/{name}");
        let changed = api.admin().request("PUT", &path, lease.to_string());
        match changed.await {
            answer if answer.code() == 200 => Ok(answer.json()),
            answer => Err(answer.text()),
        }
    })
    .await
}

fn keeping(options: ProxyOptions, publish: &str) -> ProxyOptions {
    options
        .until(Until::Ready)
        .set("identity.publishLease", publish)
        .set("identity.renewInterval", "200ms")
        .set(
            "identity.leaseDuration",
            &format!("{}s", DURATION.as_secs()),
        )
}

/// A Lease as its apiserver keeps it.
fn of_apiserver(name: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "labels": {"apiserver.kubernetes.io/identity": "kube-apiserver"}},
        "spec": {"holderIdentity": format!("{name}_1"), "leaseDurationSeconds": 3600,
            "renewTime": "2026-01-01T00:00:00.000000Z"}})
}

/// A Lease that a proxy keeps, renewed at `second`.
fn of_proxy(mut lease: Value, second: u64) -> Value {
    let time = format!(
        "2026-01-01T00:{:02}:{:02}.000000Z",
        second / 60,
        second % 60
    );
    lease["metadata"]["labels"][MANAGED_BY] = json!(MANAGER);
    lease["metadata"]["annotations"][RENEWAL] = json!(renewal("other_1", &time));
    lease["spec"]["holderIdentity"] = json!("other_1");
    lease["spec"]["leaseDurationSeconds"] = json!(DURATION.as_secs());
    lease["spec"]["renewTime"] = json!(time);
    lease
}

/// Who keeps the Lease, by the status page and by the metric; what neither of them knows if they differ just now.
async fn kept_by(proxy: &Proxy) -> Value {
    let told = proxy.statusz().await["server"]["identityLeaseKeptBy"].clone();
    for owner in ["proxy", "other"] {
        let metric = proxy.metric(KEPT, &[("kept_by", owner)]).await;
        if (metric == 1.0) != (told == owner) {
            return json!("not settled");
        }
    }
    told
}

#[tokio::test]
async fn an_operator_who_wants_no_lease_gets_none_and_none_collected() {
    let ground = Ground::new().await;
    let (never, always) = (ground.double(v1_20()).await, ground.double(v1_20()).await);
    let lease = of_proxy(of_apiserver("dead"), 1);
    let mut stored = lease.clone();
    stored["metadata"]["uid"] = json!("u");
    let mut etcd = ground.etcd.client().await;
    let key = "/registry/leases/kube-system/dead";
    etcd.put(key, stored.to_string(), None).await.unwrap();
    let (mut a, _b) = tokio::join!(
        Proxy::start(keeping(ground.proxy("a", never.addr()), "Never")),
        Proxy::start(keeping(ground.proxy("b", always.addr()), "Always")),
    );
    let of_coordination = "/apis/coordination.k8s.io/v1/namespaces";
    eventually("one of them collects", LONG, async || {
        let requests = always.requests();
        requests
            .iter()
            .any(|request| request.method == "DELETE" && request.path.ends_with("/dead"))
    })
    .await;
    assert_eq!(never.count(of_coordination), 0);
    assert_eq!(kept_by(&a).await, Value::Null);
    a.terminate().await;
    assert_eq!(never.count(of_coordination), 0);
}

pub async fn whose_a_lease_is_decides_who_keeps_it_and_who_removes_it(
    api: &KubeApiServer,
    ground: &Ground,
) {
    a_lease_is_always_kept_but_where_the_apiserver_keeps_one_of_that_name(api, ground).await;
    a_lease_that_the_apiserver_takes_over_outlives_the_proxy(api, ground).await;
    the_lease_of_a_killed_proxy_is_collected_by_another(api, ground).await;
}

async fn a_lease_is_always_kept_but_where_the_apiserver_keeps_one_of_that_name(
    api: &KubeApiServer,
    ground: &Ground,
) {
    let [a_lease, own_lease] = ["a", "own"].map(|id| lease_name(api, id));
    let own = of_apiserver(&own_lease);
    create(api, &own).await;
    let mut a = Proxy::start(proxy_options(api, ground, "a", "Always")).await;
    let mut b = Proxy::start(proxy_options(api, ground, "own", "Always")).await;
    until_there(api, &a_lease).await;
    eventually("A keeps its own", LONG, async || {
        kept_by(&a).await == "proxy"
    })
    .await;
    eventually("B leaves the apiserver's alone", LONG, async || {
        kept_by(&b).await == "other"
    })
    .await;
    let before = lease(api, &own_lease).await;
    holds("for good", DURATION, async || {
        lease(api, &own_lease).await == before
    })
    .await;
    let log = std::fs::read_to_string(b.process().log()).unwrap();
    assert_eq!(
        log.matches("another process holds the Lease").count(),
        1,
        "{log}"
    );

    // Its apiserver is another one now, which keeps none.
    let path = format!("{LEASES}/{own_lease}");
    let deleted = api.admin().request("DELETE", &path, String::new());
    assert_eq!(deleted.await.code(), 200);
    eventually("B keeps it", LONG, async || kept_by(&b).await == "proxy").await;
    a.terminate().await;
    b.terminate().await;
    assert_eq!(
        (lease(api, &a_lease).await, lease(api, &own_lease).await),
        (None, None)
    );
}

async fn a_lease_that_the_apiserver_takes_over_outlives_the_proxy(
    api: &KubeApiServer,
    ground: &Ground,
) {
    let name = lease_name(api, "a");
    for publish in ["Auto", "Always"] {
        let mut a = Proxy::start(proxy_options(api, ground, "a", publish)).await;
        let mut b = Proxy::start(proxy_options(api, ground, "b", publish)).await;
        let first = until_there(api, &name).await;
        eventually("it is A's", LONG, async || kept_by(&a).await == "proxy").await;
        // As client-go does it: labels, annotations and holder are kept.
        let taken = change(api, &name, |lease| {
            lease["spec"]["renewTime"] = json!("2026-01-01T00:00:00.000000Z");
        });
        let taken = taken.await;
        assert_eq!(taken["metadata"]["labels"][MANAGED_BY], MANAGER);
        assert_eq!(
            taken["spec"]["holderIdentity"],
            first["spec"]["holderIdentity"]
        );
        eventually("A sees it", LONG, async || {
            let owner = kept_by(&a).await;
            owner == "other" || owner.is_null()
        })
        .await;
        holds("nobody touches it", DURATION * 2, async || {
            lease(api, &name).await.as_ref() == Some(&taken)
        })
        .await;
        a.terminate().await;
        assert_eq!(lease(api, &name).await, Some(taken));
        b.terminate().await;
        let path = format!("{LEASES}/{name}");
        let deleted = api.admin().request("DELETE", &path, String::new());
        assert_eq!(deleted.await.code(), 200);
    }
}

async fn the_lease_of_a_killed_proxy_is_collected_by_another(api: &KubeApiServer, ground: &Ground) {
    let [a_lease, b_lease] = ["killed", "living"].map(|id| lease_name(api, id));
    let mut dead = Proxy::start(proxy_options(api, ground, "killed", "Auto")).await;
    let _alive = Proxy::start(proxy_options(api, ground, "living", "Auto")).await;
    let (a, _) = (
        until_there(api, &a_lease).await,
        until_there(api, &b_lease).await,
    );
    let b = lease(api, &b_lease).await.unwrap();
    let other = of_proxy(of_apiserver("other"), 0);
    create(api, &other).await;
    create(api, &of_apiserver("of-apiserver")).await;
    dead.kill();
    let mut second = 0;
    eventually("it is gone", LONG, async || {
        second += 1;
        // Whose proxy lives.
        let renew = |lease: &mut Value| *lease = of_proxy(lease.take(), second);
        change(api, "other", renew).await;
        lease(api, &a_lease).await.is_none()
    })
    .await;
    assert_eq!(a["spec"]["leaseDurationSeconds"], DURATION.as_secs());
    assert!(lease(api, "other").await.is_some(), "renewed all the time");
    let uid = |lease: &Value| lease["metadata"]["uid"].clone();
    assert_eq!(
        lease(api, &b_lease).await.map(|now| uid(&now)),
        Some(uid(&b))
    );
    until_gone(api, "other").await;
    assert!(lease(api, "of-apiserver").await.is_some());
}

/// Before all other steps: the apiserver has refused nothing yet. `cut`: before etcd.
pub async fn a_lease_that_was_renewed_out_of_sight_is_not_collected(
    api: &KubeApiServer,
    ground: &Ground,
    cut: &Cut,
) {
    create(api, &of_proxy(of_apiserver("other"), 0)).await;
    let through = format!("[\"https://{}\"]", cut.addr());
    let options = proxy_options(api, ground, "b", "Auto").set("etcd.endpoints", &through);
    let proxy = Proxy::start(options).await;
    eventually("it is seen", LONG, async || {
        let status = proxy.statusz().await;
        let leases = status["facts"]["leases"].as_array().unwrap();
        leases
            .iter()
            .any(|lease| lease["name"] == "other" && lease["publishedByProxy"] == true)
    })
    .await;

    cut.cut();
    // For the proxy nothing changes any more: it wants to delete what it takes for expired.
    let renewed = change(api, "other", |lease| *lease = of_proxy(lease.take(), 1)).await;
    holds("it stays", DURATION * 3, async || {
        lease(api, "other").await.as_ref() == Some(&renewed)
    })
    .await;
    // It was refused what it tried to delete.
    let metrics = api.admin().get("/metrics").await.text();
    let refused = metrics.lines().filter(|line| {
        let labels = ["verb=\"DELETE\"", "resource=\"leases\"", "code=\"409\""];
        line.starts_with("apiserver_request_total{")
            && labels.iter().all(|label| line.contains(label))
    });
    assert_eq!(refused.count(), 1);
    cut.restore();
    until_gone(api, "other").await;
}
