//! A watch whose apiserver stops goes on at another one, below the answer that its client has, with real kube-apiservers.

use std::net::SocketAddr;

use kube_interop_proxy::watches::frames::EventKind;
use serde_json::json;

use crate::routing::real_apiservers::LONGER;
use crate::watches::bookmarks::{
    CONFIG_MAPS, Events, PROTOBUF, SECRETS, list_revision, watch_path, write,
};
use testkit::client::Client;
use testkit::cluster::Ground;
use testkit::kube::{self, KubeApiServer, Need};
use testkit::nodes::HANDED_OVER;
use testkit::pair::Pair;
use testkit::process::Signal;
use testkit::proxy::{Proxy, ProxyOptions, Until, until_histories_are_known};
use testkit::wait::eventually;

pub(super) fn patient(options: ProxyOptions) -> ProxyOptions {
    let log = "info,kube_interop_proxy::watches=debug,kube_interop_proxy::relay=debug";
    options
        .set("watch.bookmarkOnShutdown", "true")
        .set("watch.handOver", "true")
        .set("watch.handOverTimeout", "60s")
        .env("RUST_LOG", log)
}

/// Only a server that has proved where a stream's resource is stored may be left. Each of its processes proves it anew.
async fn until_proved_by(server: SocketAddr, proxy: &mut Proxy, proofs: usize) {
    let address = server.to_string();
    let log = proxy.process().log().to_owned();
    eventually("it is proved by this server", LONGER, async || {
        let log = std::fs::read_to_string(&log).unwrap();
        let its_own = log.lines().filter(|line| line.contains(&address));
        let proved = its_own.filter(|line| line.contains("stored_here: Some(true), kind: Some("));
        let seen = proved.count();
        (seen >= proofs).then_some(()).ok_or(seen)
    })
    .await;
}

/// Watches of a namespace's ConfigMaps in all forms, from one revision.
async fn open(admin: &Client, from: i64) -> Vec<Events> {
    let all = watch_path(CONFIG_MAPS, from);
    let plain = all.replace("&allowWatchBookmarks=true", "");
    let metadata = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
    let tables = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let mut open = Vec::new();
    for accept in ["application/json", PROTOBUF, metadata, tables] {
        let client = admin.header("accept", accept);
        for path in [
            &all,
            &plain,
            &format!("{all}&fieldSelector=metadata.name%3Dseen"),
        ] {
            open.push(Events::open(&client, path).await);
        }
    }
    open
}

fn changes(events: &Events) -> Vec<(i64, &str)> {
    let seen = events.seen.iter();
    let changes = seen.filter(|(kind, ..)| *kind == EventKind::Change);
    changes
        .map(|(_, revision, name)| (*revision, &**name))
        .collect()
}

#[tokio::test]
async fn a_watch_goes_on_at_another_apiserver_and_its_client_notices_nothing() {
    // Between two versions it goes one way only (`mixed::upgrades`).
    if kube::lacks(&[Need::OneVersion]) {
        return;
    }
    let Pair {
        mut a,
        mut b,
        mut proxy_a,
        proxy_b,
        ground,
    } = Pair::options().proxies(patient).start().await;
    until_histories_are_known(&[&proxy_a, &proxy_b]).await;
    let [admin, other] = [&proxy_a, &proxy_b].map(|it| it.client(&ground.pki).cert("admin"));

    let from = list_revision(&admin, CONFIG_MAPS).await;
    let mut watches = open(&admin, from).await;
    let secrets = watch_path(SECRETS, list_revision(&admin, SECRETS).await);
    let mut quiet = Events::open(&admin, &secrets).await;
    let mut expected = Vec::new();
    let moved = watches.len() as f64 + 1.0;
    let continued = [("result", "continued")];
    for round in 0..2 {
        // Of ConfigMaps and of Secrets.
        let proofs = 2 * (round + 1);
        until_proved_by(a.addr(), &mut proxy_a, proofs).await;
        for name in ["seen", "other"] {
            let data = json!({"data": {"before": round.to_string()}});
            let revision = write(&admin, CONFIG_MAPS, name, &data).await;
            expected.push((revision, name));
        }
        for watch in &mut watches {
            let last = expected
                .iter()
                .rev()
                .find(|(_, name)| *name == "seen")
                .unwrap();
            watch.until(last.0).await;
        }
        // Killed first, then told to stop.
        match round {
            0 => a.kill(),
            _ => a.process().signal(Signal::Term),
        }
        // The second time to B, after they have come back.
        let moves = moved * (2 * round + 1) as f64;
        proxy_a
            .until_metric(HANDED_OVER, &continued, |count| count >= moves)
            .await;
        // What a selector leaves out comes first: its watch has no bookmark yet, and A no history from before.
        for name in ["other", "seen"] {
            let data = json!({"data": {"after": round.to_string()}});
            let revision = write(&other, CONFIG_MAPS, name, &data).await;
            expected.push((revision, name));
        }
        for (index, watch) in watches.iter_mut().enumerate() {
            let seen: Vec<_> = match index % 3 {
                2 => expected
                    .iter()
                    .filter(|(_, name)| *name == "seen")
                    .copied()
                    .collect(),
                _ => expected.clone(),
            };
            watch.until(seen.last().unwrap().0).await;
            assert_eq!(changes(watch), seen, "watch {index} in round {round}");
        }
        // It waits for no watch.
        a.ended(LONGER).await;
        if round == 1 {
            break;
        }
        a.start_again();
        a.wait_ready().await;
        until_histories_are_known(&[&proxy_a]).await;
        // They have gone to B. So that they come back, B stops.
        // A peer is asked through its proxy.
        until_proved_by(proxy_b.addr(), &mut proxy_a, proofs).await;
        b.kill();
        proxy_a
            .until_metric(HANDED_OVER, &continued, |count| count >= 2.0 * moved)
            .await;
        b.start_again();
        b.wait_ready().await;
        until_histories_are_known(&[&proxy_a, &proxy_b]).await;
    }
    let revision = write(&other, SECRETS, "first", &json!({})).await;
    quiet.until(revision).await;
    assert_eq!(changes(&quiet), [(revision, "first")]);
    let ended = [("result", "ended")];
    assert_eq!(proxy_a.metric(HANDED_OVER, &ended).await, 0.0);
}

/// No other one can go on with them.
pub(super) async fn watches_wait_for_the_only_apiserver(
    ground: &Ground,
    server: &mut KubeApiServer,
) {
    let options = patient(ground.proxy("a", server.addr()));
    let mut proxy = Proxy::start(options.until(Until::Ready)).await;
    until_histories_are_known(&[&proxy]).await;
    let admin = proxy.client(&ground.pki).cert("admin");
    let [quiet, busy] = [CONFIG_MAPS, SECRETS];
    let from = list_revision(&admin, quiet).await;
    let mut watches = open(&admin, from).await;
    let seen = write(&admin, quiet, "seen", &json!({})).await;
    for watch in &mut watches {
        watch.until(seen).await;
    }
    for number in 0..5 {
        write(
            &admin,
            busy,
            "other",
            &json!({"stringData": {"n": number.to_string()}}),
        )
        .await;
    }
    let stops = [(Signal::Kill, "killed"), (Signal::Term, "told to stop")];
    for (stopped, (signal, text)) in stops.into_iter().enumerate() {
        until_proved_by(server.addr(), &mut proxy, stopped + 1).await;
        server.process().signal(signal);
        server.ended(LONGER).await;
        server.start_again();
        server.wait_ready().await;
        let before = watches[0].seen.len();
        until_histories_are_known(&[&proxy]).await;
        let revision = write(&admin, quiet, "seen", &json!({"data": {"s": text}})).await;
        for watch in &mut watches {
            watch.until(revision).await;
        }
        let changes = watches[0].seen.iter().skip(before);
        let changes = changes.filter(|(kind, ..)| *kind == EventKind::Change);
        assert_eq!(changes.count(), 1, "{text}");
    }
    assert_eq!(proxy.metric(HANDED_OVER, &[("result", "ended")]).await, 0.0);
}
