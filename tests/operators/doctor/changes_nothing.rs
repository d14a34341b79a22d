//! A healthy pair is reported as healthy, and the check changes nothing.

use std::collections::BTreeMap;

use super::{doctor, file_of, pair};
use testkit::cluster::{Ground, LONG};
use testkit::wait::eventually;

/// What proxies keep writing themselves.
const RHYTHM: [&str; 4] = [
    "/kube-interop-proxy/registry/servers/",
    "/kube-interop-proxy/registry/live/",
    "/kube-interop-proxy/registry/claims/",
    "/registry/peerserverleases/",
];

/// All keys, with the revision of what is nobody's rhythm.
async fn everything(ground: &Ground) -> BTreeMap<String, Option<i64>> {
    let kvs = ground.etcd.below("/").await;
    kvs.iter()
        .map(|kv| {
            let key = kv.key_str().unwrap().to_owned();
            let written = RHYTHM.iter().any(|prefix| key.starts_with(prefix));
            (key, (!written).then_some(kv.mod_revision()))
        })
        .collect()
}

async fn revision(ground: &Ground) -> i64 {
    let answer = ground.etcd.client().await.get("up", None).await.unwrap();
    answer.header().unwrap().revision()
}

#[tokio::test]
async fn a_healthy_pair_is_told_to_be_so_and_nothing_is_changed() {
    let mut cluster = pair().await;
    let dir = cluster.ground.dir.path().to_owned();
    eventually("both have said what they serve", LONG, async || {
        let keys = everything(&cluster.ground).await;
        let below = |prefix: &str| keys.keys().filter(|key| key.starts_with(prefix)).count();
        below(RHYTHM[0]) == 2 && below(RHYTHM[3]) == 2
    })
    .await;
    let before = everything(&cluster.ground).await;
    cluster.a.take_requests();
    cluster.b.take_requests();
    for proxy in [&cluster.proxy_a, &cluster.proxy_b] {
        let said = doctor(&dir, &file_of(proxy), &[]).await;
        said.is_healthy();
        let endpoint = cluster.ground.etcd.endpoint();
        for start in [
            "ok      configuration ",
            "ok      certificate ",
            &format!("ok      etcd {endpoint}: 3."),
            "ok      etcd permissions: the user of etcd.certFile may read and write",
            "ok      apiserver ",
            "ok      proxy here: ",
            "ok      serving.bindAddress ",
            "ok      server ID ",
            "ok      peer ",
        ] {
            assert!(
                said.lines.iter().any(|line| line.starts_with(start)),
                "{start}\n{}",
                said.all()
            );
        }
        println!("{}", said.all());
    }
    assert_eq!(everything(&cluster.ground).await, before);
    for double in [&cluster.a, &cluster.b] {
        let requests = double.take_requests();
        assert!(!requests.is_empty());
        let writes = requests.iter().filter(|request| request.method != "GET");
        assert_eq!(writes.count(), 0);
    }

    // With nobody else there, nothing is written at all.
    let config = file_of(&cluster.proxy_a);
    cluster.proxy_a.terminate().await;
    let b = format!("\"{}\"", cluster.proxy_b.addr());
    let said = doctor(&dir, &config, &[("serving.bindAddress", b)]).await;
    let taken = "serving.bindAddress ";
    said.is(
        "another proxy's address",
        &[&[taken, "leads to another proxy"]],
        &[],
    );
    cluster.proxy_b.terminate().await;
    let before = revision(&cluster.ground).await;
    let said = doctor(&dir, &config, &[]).await;
    said.is_healthy();
    assert_eq!(revision(&cluster.ground).await, before);
    let all = said.all();
    assert!(all.contains("info    proxy here: none runs"), "{all}");
    let b = cluster.proxy_b.addr();
    let dead = format!("info    peer b {b}: absent");
    assert!(
        all.contains(&dead) && all.contains("kube-interop-proxy forget b --config"),
        "{all}"
    );
}
