//! A member of etcd that gets late what its peers say, and a proxy that reads from it.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use testkit::client::Client;
use testkit::cluster::{Ground, HPAS, LONG, Single};
use testkit::double::{DoubleOptions, v1_20};
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

/// Where a proxy reads is a member of etcd that follows the leader. And the other members.
async fn follower() -> (Ground, PeerLinks, Vec<Etcd>) {
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
    (Ground { dir, pki, etcd }, links, members)
}

/// What nobody lists is the apiserver's own 404, and mostly soon.
async fn denies_quickly(client: &Client) {
    const ASKED: usize = 9;
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

/// Of a member and of its leader.
async fn ids(member: &Etcd) -> (u64, u64) {
    let status = member.client().await.status().await.unwrap();
    (status.header().unwrap().member_id(), status.leader())
}

/// Asks for `path`, so often and one after the other; it may be that nobody can serve it, but never that nobody has it.
async fn is_never_denied(client: Client, path: &str, times: usize) {
    for number in 0..times {
        let answer = client.get(path).await;
        assert_ne!(answer.code(), 404, "{path}, {number}: {}", answer.text());
    }
}

#[tokio::test]
async fn a_server_that_joins_is_never_denied_through_a_member_that_lags() {
    let (ground, links, others) = follower().await;
    let double = DoubleOptions::new(ground.pki.dir(), v1_20().without_group("autoscaling"));
    let a = Single::on(ground, double, |options| {
        options.set("peer.leaseTTL", "15s")
    })
    .await;
    let admin = a.client().cert("admin");
    denies_quickly(&admin.fresh()).await;
    let registry = Registry::new(others[0].client().await, "/registry");
    let mut number = 0;
    for by in [200, 1500] {
        a.ground.etcd.lag(&links, Duration::from_millis(by)).await;
        for _ in 0..4 {
            number += 1;
            let (id, group) = (format!("joins-{number}"), format!("joins-{number}.example"));
            let path = format!("/apis/{group}/v1/things");
            let (port, group_version) = (20_000 + number, format!("{group}/v1"));
            registry
                .put_record(&id, port, &group_version, &["things"])
                .await;
            let asking = [(); 3].map(|()| is_never_denied(admin.fresh(), &path, 5));
            join_all(asking).await;
        }
    }

    let double = a.ground.double(v1_20()).await;
    let healthy = format!("[\"{}\"]", others[0].endpoint());
    let options = a.ground.proxy("b", double.addr());
    let options = options
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
        let client = admin.fresh();
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

    links.restore();
    denies_quickly(&admin.fresh()).await;
}
