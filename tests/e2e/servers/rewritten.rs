//! What a proxy rewrites while nothing changes.

use etcd_client::KeyValue;
use kube_interop_proxy::cluster::record::LiveKey;

use testkit::cluster::{Cluster, LONG};
use testkit::double::v1_20;
use testkit::wait::eventually;

const RECORD: &str = "/kube-interop-proxy/registry/servers/b";
const LIVE: &str = "/kube-interop-proxy/registry/live/b";

#[tokio::test]
async fn a_record_that_is_written_anew_stays_the_one_that_the_live_key_means() {
    // The record is written anew with each live key.
    let set =
        |options: testkit::proxy::ProxyOptions| options.set("rerouting.absentServerGrace", "5s");
    let cluster = Cluster::with(v1_20(), set).await;
    let read = async |key: &str| -> KeyValue {
        let there = cluster.ground.etcd.below(key).await;
        there.into_iter().next().expect("B lives")
    };
    let meant = |live: &KeyValue| {
        let live: LiveKey = serde_json::from_slice(live.value()).unwrap();
        live.record_revision
    };
    let mut before: Option<(KeyValue, Option<i64>)> = None;
    let (first, then) = eventually("the record is written anew", LONG, async || {
        let record = read(RECORD).await;
        let live = read(LIVE).await;
        if live.mod_revision() < record.mod_revision() {
            return Err("the live key is still to follow".to_owned());
        }
        match &before {
            Some((first, meant_first)) if first.value() == record.value() => {
                let writings = record.version() - first.version();
                let revisions = (*meant_first, meant(&live));
                (writings >= 3)
                    .then_some(revisions)
                    .ok_or(format!("{writings} times"))
            }
            // Its contents have not settled yet.
            _ => {
                before = Some((record, meant(&live)));
                Err("not yet".to_owned())
            }
        }
    })
    .await;
    assert!(first.is_some());
    assert_eq!(first, then);
}
