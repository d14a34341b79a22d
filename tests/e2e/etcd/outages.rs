//! etcd that dies, freezes and comes back, and a peer that dies while etcd is well.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, CompactionOptions, DeleteOptions};
use serde_json::{Value, json};

use testkit::addr::Loopback;
use testkit::client::Client;
use testkit::cluster::{Cluster, Ground, HPAS, LONG, Single, assert_refused, lists};
use testkit::cut::Cut;
use testkit::double::{ServedResource, v1_20};
use testkit::etcd::{Etcd, EtcdOptions};
use testkit::pki::Pki;
use testkit::proxy::{Proxy, Until};
use testkit::registry::Registry;
use testkit::steady::Steady;
use testkit::wait::{eventually, holds};

pub const AGE: &str = "kube_interop_proxy_etcd_state_age_seconds";
pub const LISTS: &str = "kube_interop_proxy_etcd_lists_total";
/// `peer.leaseTTL` of these tests' proxies.
const LEASE_TTL: Duration = Duration::from_secs(3);
/// What only A serves, where a test says so.
const ONLY_A: &str = "/apis/only-a.example/v1/things";
const NOBODYS: &str = "/apis/no.such.group/v1/things";
/// Between requests that must all be answered.
const PAUSE: Duration = Duration::from_millis(50);

/// Whether a request is answered with 200.
pub async fn answered(client: &Client, path: &str) -> Result<(), String> {
    match client.try_get(path).await {
        Ok(answer) if answer.code() == 200 => Ok(()),
        Ok(answer) => Err(format!("{path}: {} {}", answer.code(), answer.text())),
        Err(error) => Err(format!("{path}: {error:#}")),
    }
}

/// Requests for `path` that must all be answered with 200, for a hundred seconds at most.
pub fn asking(client: &Client, path: &'static str) -> Steady {
    asking_every(PAUSE, client, path)
}

/// The same, two thousand at most.
pub fn asking_every(pause: Duration, client: &Client, path: &'static str) -> Steady {
    let client = client.clone();
    Steady::start(path, pause, 2000, move || {
        let client = client.clone();
        async move { answered(&client, path).await }
    })
}

/// An etcd, and a forwarder to it that can be cut.
pub async fn behind_a_cut(options: EtcdOptions) -> (Ground, Cut) {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(&dir.path().join("pki"));
    let middle = Loopback::new();
    let options = EtcdOptions {
        also: vec![middle.ip()],
        ..options
    };
    let etcd = Etcd::start_with(dir.path(), &pki, options).await;
    let cut = Cut::start(middle, etcd.addr()).await;
    (Ground { dir, pki, etcd }, cut)
}

/// A cluster whose proxy `cut_off` reaches etcd through a forwarder that can be cut.
pub async fn through_a_cut(cut_off: &str) -> (Cluster, Cut) {
    let (ground, cut) = behind_a_cut(EtcdOptions::default()).await;
    let through = format!("[\"https://{}\"]", cut.addr());
    let cluster = Cluster::on(ground, v1_20(), |id, options| {
        if id == cut_off {
            options.set("etcd.endpoints", &through)
        } else {
            options
        }
    });
    (cluster.await, cut)
}

/// What a status page says of peers and resources, without the servers `except`.
fn cluster_view(status: &Value, except: &[&str]) -> Value {
    let other = |id: &Value| !except.iter().any(|except| id == except);
    let peers: BTreeMap<_, _> = status["peers"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|peer| other(&peer["id"]))
        .map(|peer| (peer["id"].to_string(), peer.clone()))
        .collect();
    let mut resources = status["resources"].clone();
    for resource in resources.as_array_mut().unwrap() {
        let peers = resource["peers"].as_array_mut().unwrap();
        peers.retain(other);
        peers.sort_by_key(Value::to_string);
    }
    json!({"peers": peers, "resources": resources})
}

/// Thirty servers that come and go, and custom resources that do: the same every time.
struct Changes {
    registry: Registry,
    state: u64,
    /// Revisions of the records.
    records: [i64; 30],
}

impl Changes {
    async fn one_more(&mut self) {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let number = usize::try_from((self.state >> 40) % 30).unwrap();
        let (id, port) = (format!("w-{number:02}"), 20000 + number as u16);
        let (things, extra) = (
            format!("things{number}"),
            format!("extra{}", self.state >> 60),
        );
        let registry = &self.registry;
        match (self.state >> 33) % 8 {
            0..=2 => {
                let resources = [&*things, &*extra];
                self.records[number] = registry
                    .put_record(&id, port, "w.example/v1", &resources)
                    .await;
            }
            3 => registry.delete(&registry.server(&id)).await,
            4 | 5 => {
                let (initialized, meant) = (self.state >> 63 == 0, self.records[number]);
                registry.put_live(&id, port, initialized, meant).await;
            }
            6 => registry.delete(&registry.live(&id)).await,
            _ if self.state >> 63 == 0 => {
                registry
                    .put_definition(&format!("{things}.w.example"))
                    .await;
            }
            _ => {
                let definition = registry.definition(&format!("{things}.w.example"));
                registry.delete(&definition).await;
            }
        }
    }
}

#[tokio::test]
async fn etcd_killed_twenty_times_under_changes_loses_and_repeats_nothing() {
    let mut single = Single::new().await;
    for number in 0..30 {
        let things = format!("things{number}");
        let resource = ServedResource::new("w.example", "v1", &things, "Thing");
        single.double.add_resource(resource);
    }
    let lists = single.proxy.metric(LISTS, &[]).await;
    let mut changes = Changes {
        registry: Registry::new(single.ground.etcd.client().await, "/registry"),
        state: 1,
        records: [0; 30],
    };
    let (count, done) = (Cell::new(0), Cell::new(false));
    let writer = async {
        while !done.get() {
            assert!(count.get() < 10_000, "written without end");
            changes.one_more().await;
            count.set(count.get() + 1);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let killer = async {
        for round in 0..20 {
            let so_far = count.get();
            eventually("more is written", LONG, async || count.get() > so_far + 10).await;
            if round % 4 == 3 {
                let id = format!("mark-{round}");
                let registry = Registry::new(single.ground.etcd.client().await, "/registry");
                registry
                    .put_record(&id, 30000 + round, "w.example/v1", &[])
                    .await;
                eventually("the proxy follows again", LONG, async || {
                    single.proxy.statusz().await["peers"]
                        .to_string()
                        .contains(&id)
                })
                .await;
            }
            single.ground.etcd.kill();
            single.ground.etcd.start_again().await;
        }
        done.set(true);
    };
    tokio::join!(writer, killer);
    assert!(count.get() > 200, "{}", count.get());

    let options = single.ground.proxy("fresh", single.double.addr());
    let fresh = Proxy::start(options.until(Until::Ready)).await;
    eventually("both proxies know the same", LONG, async || {
        let ours = cluster_view(&single.proxy.statusz().await, &["a", "fresh"]);
        let theirs = cluster_view(&fresh.statusz().await, &["a", "fresh"]);
        if ours == theirs {
            Ok(())
        } else {
            Err(format!("{ours:#}\n\na fresh proxy: {theirs:#}"))
        }
    })
    .await;
    let status = fresh.statusz().await;
    assert!(status["peers"].as_array().unwrap().len() > 10, "{status:#}");
    // Custom resources are nobody's own.
    let resources = status["resources"].as_array().unwrap();
    for local in [true, false] {
        let things = |resource: &&Value| {
            resource["local"] == local && resource["resource"].to_string().contains("things")
        };
        assert!(
            resources.iter().any(|resource| things(&resource)),
            "{status:#}"
        );
    }
    assert_eq!(single.proxy.metric(LISTS, &[]).await, lists);
}

/// Freezes etcd for longer than live keys live, and looks from both sides. `pause`: between requests.
async fn is_not_noticed_by_clients(freeze: Duration, pause: Duration) {
    let mut cluster = Cluster::with(v1_20(), |options| options).await;
    let only_a = ServedResource::new("only-a.example", "v1", "things", "Thing");
    cluster.a.add_resource(only_a);
    eventually("B knows what only A serves", LONG, async || {
        lists(&cluster.proxy_b.statusz().await, "a", "only-a.example")
    })
    .await;
    let [a, b] = [&cluster.proxy_a, &cluster.proxy_b]
        .map(|proxy| proxy.client(&cluster.ground.pki).cert("admin"));
    let before = Asked::start(&cluster, pause).await;
    let others = ["/api/v1/pods", ONLY_A].map(|path| asking_every(pause, &b.fresh(), path));
    let lists_of_b = cluster.proxy_b.metric(LISTS, &[]).await;
    assert_eq!(a.get(NOBODYS).await.code(), 404);

    cluster.ground.etcd.stop();
    tokio::time::sleep(freeze).await;
    for (proxy, client) in [(&cluster.proxy_a, &a), (&cluster.proxy_b, &b)] {
        let age = proxy.metric(AGE, &[]).await;
        // Progress was told every second.
        assert!(age > freeze.as_secs_f64() - 2.0, "{age}");
        // Nobody is known to serve it, but who knows.
        assert_refused(&client.get(NOBODYS).await, "not known at the moment");
    }
    cluster.ground.etcd.cont();
    before.ends_well(&cluster).await;
    for stream in others {
        assert!(stream.stop().await > 0);
    }
    for client in [a, b] {
        eventually("what nobody serves is a 404 again", LONG, async || {
            client.get(NOBODYS).await.code() == 404
        })
        .await;
    }
    assert_eq!(cluster.proxy_b.metric(LISTS, &[]).await, lists_of_b);
}

#[tokio::test]
async fn etcd_frozen_for_a_minute_is_not_noticed_by_clients() {
    is_not_noticed_by_clients(Duration::from_secs(60), PAUSE * 4).await;
}

/// The watches are still open when etcd comes back, and are told at once what has run out.
#[tokio::test]
async fn etcd_frozen_for_less_than_watches_take_to_break_off_is_not_noticed_by_clients() {
    is_not_noticed_by_clients(LEASE_TTL * 2 + Duration::from_secs(1), PAUSE).await;
}

#[tokio::test]
async fn a_peer_whose_live_key_etcd_drops_in_its_first_instant_back_is_not_gone() {
    let (mut cluster, cut) = through_a_cut("b").await;
    let before = Asked::start(&cluster, PAUSE).await;
    // Not long enough for A's watch to break off: it sees the deletion, and B cannot write before it.
    cluster.ground.etcd.stop();
    cut.cut();
    tokio::time::sleep(LEASE_TTL + Duration::from_secs(2)).await;
    cluster.ground.etcd.cont();
    let registry = Registry::new(cluster.ground.etcd.client().await, "/registry");
    let live = registry.live("b");
    eventually("B's live key is gone", LONG, async || {
        registry.get(&live).await.is_none()
    })
    .await;
    cut.restore();
    before.ends_well(&cluster).await;
}

/// Requests for what is local and what the peer has, from before something happens until it is over.
struct Asked {
    streams: [Steady; 2],
    lists: f64,
}

impl Asked {
    async fn start(cluster: &Cluster, pause: Duration) -> Self {
        let admin = cluster.client().cert("admin");
        let lists = cluster.proxy_a.metric(LISTS, &[]).await;
        let streams = ["/api/v1/pods", HPAS].map(|path| asking_every(pause, &admin.fresh(), path));
        Self { streams, lists }
    }

    /// Watches for ten seconds more: everything was answered, nothing listed again, etcd is followed again.
    async fn ends_well(self, cluster: &Cluster) {
        tokio::time::sleep(Duration::from_secs(10)).await;
        for stream in self.streams {
            assert!(stream.stop().await > 0);
        }
        eventually("etcd is heard of again", LONG, async || {
            let age = cluster.proxy_a.metric(AGE, &[]).await;
            if age < 5.0 { Ok(()) } else { Err(age) }
        })
        .await;
        eventually("B is a target", LONG, async || {
            cluster.proxy_a.statusz().await["peers"][0]["target"] == true
        })
        .await;
        assert_eq!(cluster.proxy_a.metric(LISTS, &[]).await, self.lists);
    }
}

#[tokio::test]
async fn an_etcd_that_refuses_to_write_makes_nobody_dead() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(&dir.path().join("pki"));
    let options = EtcdOptions {
        args: vec![format!("--quota-backend-bytes={}", 16 << 20)],
        ..EtcdOptions::default()
    };
    let etcd = Etcd::start_with(dir.path(), &pki, options).await;
    let ground = Ground { dir, pki, etcd };
    const TTL: Duration = Duration::from_secs(6);
    let cluster = Cluster::on(ground, v1_20(), |_, options| {
        options.set("peer.leaseTTL", "6s")
    });
    let cluster = cluster.await;
    // The last that changes in a record: what changes while nothing can be written does make somebody dead.
    for proxy in [&cluster.proxy_a, &cluster.proxy_b] {
        eventually("watch history is published", LONG, async || {
            proxy.statusz().await["peers"][0]["historyStart"].is_number()
        })
        .await;
    }
    let admin = cluster.client().cert("admin");
    let rerouted = asking(&admin, HPAS);
    let mut etcd = cluster.ground.etcd.client().await;
    let mut refused = false;
    for number in 0..64 {
        let key = format!("/filler/{number}");
        refused = etcd.put(key, vec![0; 1_000_000], None).await.is_err();
        if refused {
            break;
        }
    }
    assert!(refused, "there is space without end");
    let live = "/kube-interop-proxy/registry/live/b";
    let reading = cluster.ground.etcd.client().await;
    let revision = async || {
        let answer = reading.clone().get(live, None).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let kv = answer.kvs().first().ok_or("B's live key is gone")?;
        Ok::<_, String>(kv.mod_revision())
    };
    let before = revision().await.unwrap();
    let lives = async || {
        revision()
            .await
            .map_err(|why| cluster.proxy_b.log_tail() + &why)
    };
    holds("B lives", TTL * 2, lives).await;
    assert_eq!(revision().await.unwrap(), before, "nothing can be written");

    let everything = DeleteOptions::new().with_prefix();
    let deleted = etcd.delete("/filler/", Some(everything)).await.unwrap();
    let newest = deleted.header().unwrap().revision();
    etcd.compact(newest, Some(CompactionOptions::new().with_physical()))
        .await
        .unwrap();
    etcd.defragment().await.unwrap();
    let alarms = etcd.alarm(AlarmAction::Get, AlarmType::None, None).await;
    for alarm in alarms.unwrap().alarms() {
        let mut of = AlarmOptions::new();
        of.with_member(alarm.member_id());
        let off = etcd.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(of));
        off.await.unwrap();
    }
    eventually("it is written again", LONG, async || {
        let now = revision().await?;
        if now > before {
            Ok(())
        } else {
            Err(now.to_string())
        }
    })
    .await;
    assert!(rerouted.stop().await > 100);
}

#[tokio::test]
async fn a_killed_peer_is_no_target_soon_and_what_it_served_is_never_a_404() {
    // Long enough that twice of it would be too late.
    let ttl = Duration::from_secs(6);
    let mut cluster = Cluster::with(v1_20(), |options| options.set("peer.leaseTTL", "6s")).await;
    let admin = cluster.client().cert("admin");
    assert_eq!(admin.get(HPAS).await.code(), 200);
    let stream = {
        let client = admin.fresh();
        Steady::start("200 or 503", PAUSE, 2000, move || {
            let client = client.clone();
            async move {
                match client.try_get(HPAS).await.map(|answer| answer.code()) {
                    Ok(200 | 503) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            }
        })
    };

    cluster.proxy_b.kill();
    // etcd lets go of a lease within a second or so of its end.
    let soon = ttl + Duration::from_secs(4);
    eventually("B is no target", soon, async || {
        let status = cluster.proxy_a.statusz().await;
        status["peers"][0]["id"] == "b" && status["peers"][0]["target"] == false
    })
    .await;
    let after = LEASE_TTL;
    holds("what only B served is a 503", after, async || {
        match admin.get(HPAS).await.code() {
            503 => Ok(()),
            code => Err(code),
        }
    })
    .await;
    assert_refused(
        &admin.get(HPAS).await,
        "no apiserver that serves the requested resource",
    );
    assert!(stream.stop().await > 0);
    let direct = Client::new(cluster.b.addr(), &cluster.ground.pki).cert("admin");
    assert_eq!(direct.get(HPAS).await.code(), 200, "its apiserver is well");

    cluster.proxy_b.start_again().await;
    eventually("B is asked again", LONG, async || {
        admin.get(HPAS).await.code() == 200
    })
    .await;
}
