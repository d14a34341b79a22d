//! A member of etcd that gets late what its peers say, and a proxy that reads from it.

use std::time::{Duration, Instant};

use testkit::client::Client;
use testkit::cluster::{Ground, HPAS, LONG};
use testkit::double::{Double, v1_20};
use testkit::etcd::{Etcd, EtcdOptions};
use testkit::peer_links::PeerLinks;
use testkit::pki::Pki;
use testkit::proxy::{Proxy, Until};
use testkit::registry::Registry;
use testkit::wait::eventually;

const NOBODYS: &str = "/apis/no.such.group/v1/things";
/// A proof needs one read of etcd. Through a member that still lags it would take 1.5 s.
const QUICK: Duration = Duration::from_secs(1);
const HEARTBEAT: &str = "--heartbeat-interval=100";
/// Longer than what comes late: its election would change the leader.
const ELECTION: &str = "--election-timeout=10000";

struct World {
    ground: Ground,
    links: PeerLinks,
    healthy: Etcd,
    _third: Etcd,
    _double: Double,
    proxy: Proxy,
}

impl World {
    /// A proxy whose only endpoint of etcd is a member that follows the leader.
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::new(&dir.path().join("pki"));
        let options = EtcdOptions {
            args: [HEARTBEAT, ELECTION].map(str::to_owned).to_vec(),
            ..EtcdOptions::default()
        };
        let (mut members, links) = Etcd::start_linked(dir.path(), &pki, 3, &options).await;
        let mut late = None;
        for (at, member) in members.iter().enumerate() {
            let (id, leader) = ids(member).await;
            late = (id != leader).then_some(at).or(late);
        }
        let etcd = members.remove(late.expect("a member that does not lead"));
        let ground = Ground { dir, pki, etcd };
        let double = ground.double(v1_20().without_group("autoscaling")).await;
        let options = ground.proxy("a", double.addr()).set("peer.leaseTTL", "15s");
        let proxy = Proxy::start(options.until(Until::Ready)).await;
        Self {
            ground,
            links,
            healthy: members.remove(0),
            _third: members.remove(0),
            _double: double,
            proxy,
        }
    }

    fn client(&self) -> Client {
        self.proxy.client(&self.ground.pki).cert("admin")
    }

    async fn delay(&self, by: Duration) {
        self.ground.etcd.lag(&self.links, by).await;
    }

    /// What nobody lists is the apiserver's own 404, and mostly soon.
    async fn denies_quickly(&self) {
        const ASKED: usize = 9;
        let client = self.client();
        eventually("a 404", LONG, async || {
            let code = client.get(NOBODYS).await.code();
            (code == 404).then_some(()).ok_or(code)
        })
        .await;
        let mut answers = Vec::new();
        for _ in 0..ASKED {
            let begun = Instant::now();
            let code = client.get(NOBODYS).await.code();
            answers.push((code, begun.elapsed()));
        }
        let soon = answers
            .iter()
            .filter(|(code, took)| *code == 404 && *took < QUICK);
        assert!(soon.count() > ASKED / 2, "{answers:?}");
    }
}

/// Of a member and of its leader.
async fn ids(member: &Etcd) -> (u64, u64) {
    let status = member.client().await.status().await.unwrap();
    (status.header().unwrap().member_id(), status.leader())
}

/// Asks for `path`, so often and one after the other; it may be that nobody can serve it, but never that nobody has it.
async fn is_never_denied(client: &Client, path: &str, times: usize) {
    for number in 0..times {
        let answer = client.get(path).await;
        assert_ne!(answer.code(), 404, "{path}, {number}: {}", answer.text());
    }
}

#[tokio::test]
async fn a_server_that_joins_is_never_denied_through_a_member_that_lags() {
    let world = World::new().await;
    world.denies_quickly().await;
    let registry = Registry::new(world.healthy.client().await, "/registry");
    let mut number = 0;
    for by in [200, 1500] {
        world.delay(Duration::from_millis(by)).await;
        for _ in 0..4 {
            number += 1;
            let (id, group) = (format!("joins-{number}"), format!("joins-{number}.example"));
            let path = format!("/apis/{group}/v1/things");
            let (port, group_version) = (20_000 + number, format!("{group}/v1"));
            registry
                .put_record(&id, port, &group_version, &["things"])
                .await;
            let clients: Vec<_> = (0..3).map(|_| world.client()).collect();
            let [one, two, three] = &clients[..] else {
                unreachable!("three clients");
            };
            tokio::join!(
                is_never_denied(one, &path, 5),
                is_never_denied(two, &path, 5),
                is_never_denied(three, &path, 5),
            );
        }
    }

    let double = world.ground.double(v1_20()).await;
    let healthy = format!("[\"{}\"]", world.healthy.endpoint());
    let options = world
        .ground
        .proxy("b", double.addr())
        .set("etcd.endpoints", &healthy)
        .set("peer.leaseTTL", "15s");
    let asking = async {
        let live = registry.live("b");
        eventually("B says that it lives", LONG, async || {
            registry
                .get(&live)
                .await
                .map(drop)
                .ok_or("nothing yet".to_owned())
        })
        .await;
        let client = world.client();
        eventually("B's resource is served", LONG, async || {
            let answer = client.get(HPAS).await;
            assert_ne!(answer.code(), 404, "{}", answer.text());
            (answer.code() == 200)
                .then_some(())
                .ok_or(answer.code().to_string())
        })
        .await;
    };
    let (_b, ()) = tokio::join!(Proxy::start(options.until(Until::Ready)), asking);

    world.links.restore();
    world.denies_quickly().await;
}
