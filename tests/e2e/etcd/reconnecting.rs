//! A proxy that loses its connection to etcd, or to some of its members; and two clusters in one etcd.

use std::time::Duration;

use serde_json::Value;

use crate::etcd::outages::{LISTS, asking};
use testkit::cluster::{Cluster, Ground, HPAS, LONG, binary};
use testkit::double::{Double, DoubleOptions, ServedResource, v1_20};
use testkit::etcd::Etcd;
use testkit::pki::Pki;
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::registry::Registry;
use testkit::wait::{eventually, holds};

pub fn ids(status: &Value) -> Vec<String> {
    let peers = status["peers"].as_array().unwrap();
    let id = |peer: &Value| peer["id"].as_str().unwrap().to_owned();
    peers.iter().map(id).collect()
}

/// Whether a status page lists `resource` of any version of `group`.
pub fn has(status: &Value, group: &str, resource: &str) -> bool {
    let resources = status["resources"].as_array().unwrap();
    resources
        .iter()
        .any(|listed| listed["group"] == group && listed["resource"] == resource)
}

#[tokio::test]
async fn any_one_of_three_members_may_freeze_or_die() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(&dir.path().join("pki"));
    let mut others = Etcd::start_cluster(dir.path(), &pki, 3).await;
    let endpoints: Vec<_> = others.iter().map(Etcd::endpoint).collect();
    let endpoints = format!("{endpoints:?}");
    let etcd = others.remove(0);
    let ground = Ground { dir, pki, etcd };
    // As in production: a lease outlasts a request to a frozen member, and another try at the next one.
    let mut cluster = Cluster::on(ground, v1_20(), |_, options| {
        options
            .set("etcd.endpoints", &endpoints)
            .set("peer.leaseTTL", "15s")
    })
    .await;
    let admin = cluster.client().cert("admin");
    let before = cluster.proxy_a.metric(LISTS, &[]).await;
    let rerouted = asking(&admin, HPAS);
    let local = asking(&admin.fresh(), "/api/v1/pods");
    let mut members: Vec<&mut Etcd> = std::iter::once(&mut cluster.ground.etcd)
        .chain(&mut others)
        .collect();
    let mut number = 0;
    let mut arrives = async |through: &Etcd| {
        number += 1;
        let id = format!("w-{number}");
        Registry::new(through.client().await, "/registry")
            .put_record(&id, 20000 + number, "w.example/v1", &["things"])
            .await;
        for proxy in [&cluster.proxy_a, &cluster.proxy_b] {
            eventually("a change arrives", LONG, async || {
                ids(&proxy.statusz().await).contains(&id)
            })
            .await;
        }
    };
    for frozen in 0..3 {
        let (killed, healthy) = ((frozen + 1) % 3, (frozen + 2) % 3);
        members[frozen].stop();
        arrives(members[healthy]).await;
        members[frozen].cont();
        members[frozen].wait_until_it_answers().await;
        members[killed].kill();
        arrives(members[healthy]).await;
        members[killed].start_again().await;
    }
    arrives(members[0]).await;
    assert!(rerouted.stop().await > 100);
    assert!(local.stop().await > 100);
    assert_eq!(cluster.proxy_a.metric(LISTS, &[]).await, before);
}

#[tokio::test]
async fn no_live_key_expires_while_a_member_is_frozen() {
    const TTL: Duration = Duration::from_secs(3);
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(&dir.path().join("pki"));
    let mut members = Etcd::start_cluster(dir.path(), &pki, 3).await;
    let endpoints: Vec<_> = members.iter().map(Etcd::endpoint).collect();
    let endpoints = format!("{endpoints:?}");
    let double = Double::start(DoubleOptions::new(pki.dir(), v1_20())).await;
    let options = ProxyOptions::new(binary(), dir.path(), &pki, double.addr(), "").server_id("a");
    let options = options
        .set("etcd.endpoints", &endpoints)
        .set("peer.leaseTTL", "3s");
    let _proxy = Proxy::start(options.until(Until::Ready)).await;
    let keys = [
        "/kube-interop-proxy/registry/live/a",
        "/registry/peerserverleases/a",
    ];
    // A key that expired and was written again has another.
    let created = async |through: &Etcd| {
        eventually("the keys are read", LONG, async || {
            let mut client = through.client().await;
            let mut found = Vec::new();
            for key in keys {
                let answer = client
                    .get(key, None)
                    .await
                    .map_err(|error| error.to_string())?;
                let kv = answer.kvs().first().ok_or(key)?;
                found.push((kv.create_revision(), kv.mod_revision()));
            }
            Ok::<_, String>(found)
        })
        .await
    };
    let before = created(&members[0]).await;
    for frozen in 0..3 {
        members[frozen].stop();
        tokio::time::sleep(TTL * 2).await;
        let now = created(&members[(frozen + 1) % 3]).await;
        for ((create, written), (create_before, written_before)) in now.iter().zip(&before) {
            assert_eq!(create, create_before, "it had expired: {now:?} {before:?}");
            assert!(written > written_before, "{now:?} {before:?}");
        }
        members[frozen].cont();
        members[frozen].wait_until_it_answers().await;
    }
}

/// Two apiservers with proxies of the IDs `a` and `b`, in the etcd prefix `prefix`.
struct Pair {
    a: Double,
    _b: Double,
    proxy_a: Proxy,
    proxy_b: Proxy,
}

impl Pair {
    /// `group`: served by the second alone.
    async fn new(ground: &Ground, prefix: &str, group: &str) -> Self {
        let a = ground.double(v1_20()).await;
        let things = ServedResource::new(group, "v1", "things", "Thing");
        let parts = ServedResource::new(group, "v1", "parts", "Part");
        let b = ground.double(v1_20().with(things).with(parts)).await;
        let start = |id, addr| {
            let options = ground.proxy(id, addr).set("etcd.prefix", prefix);
            Proxy::start(options.until(Until::Ready))
        };
        let (proxy_a, proxy_b) = tokio::join!(start("a", a.addr()), start("b", b.addr()));
        Self {
            a,
            _b: b,
            proxy_a,
            proxy_b,
        }
    }

    /// Each proxy knows the other and nobody else; the group `own` is known without its custom `parts`, `foreign` not.
    async fn is_alone(&self, own: &str, foreign: &str) -> Result<(), String> {
        let pages = [
            (&self.proxy_a, &self.proxy_b),
            (&self.proxy_b, &self.proxy_a),
        ];
        for (proxy, peer) in pages {
            let mut status = proxy.statusz().await;
            // What the cluster's own etcd defines, of whatever name.
            status["custom"].take();
            let peers = status["peers"].as_array().unwrap();
            let alone = peers.len() == 1
                && peers[0]["endpoint"] == peer.addr().to_string()
                && peers[0]["target"] == true
                && has(&status, own, "things")
                && !has(&status, own, "parts")
                && !status.to_string().contains(foreign);
            if !alone {
                return Err(format!("{status:#}"));
            }
        }
        Ok(())
    }
}

#[tokio::test]
async fn two_clusters_in_one_etcd_know_nothing_of_each_other() {
    let ground = Ground::new().await;
    let (one, two) = tokio::join!(
        Pair::new(&ground, "/registry", "one.example"),
        Pair::new(&ground, "/registry2", "two.example"),
    );
    let etcd = ground.etcd.client().await;
    let registries = ["/registry", "/registry2"].map(|prefix| Registry::new(etcd.clone(), prefix));
    registries[0].put_definition("parts.one.example").await;
    registries[1].put_definition("parts.two.example").await;
    // Of the other cluster: if it counted, there would be no things.
    registries[0].put_definition("things.two.example").await;
    registries[1].put_definition("things.one.example").await;
    let apart = async || {
        one.is_alone("one.example", "two.example").await?;
        two.is_alone("two.example", "one.example").await
    };
    eventually("each knows its own", LONG, apart).await;
    // Four pages of each.
    let later = async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        apart().await
    };
    holds("and nothing else", Duration::from_secs(5), later).await;

    for (pair, own, foreign) in [(&one, "one", "two"), (&two, "two", "one")] {
        let admin = pair.proxy_a.client(&ground.pki).cert("admin");
        let path = |cluster: &str| format!("/apis/{cluster}.example/v1/things");
        assert_eq!(admin.get(&path(own)).await.code(), 200);
        assert_eq!(admin.get(&path(foreign)).await.code(), 404);
        assert_eq!(pair.a.count(&path(own)), 0, "its peer was asked");
    }
}
