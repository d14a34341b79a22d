//! A proxy is cut off from etcd while etcd compacts changes that it has not seen: it keeps watches where it can, and
//! lists once where it cannot.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::etcd::outages::{asking, behind_a_cut, through_a_cut};
use crate::etcd::reconnecting::{has, ids};
use testkit::cluster::{HPAS, LONG, lists};
use testkit::double::{ServedResource, v1_20};
use testkit::etcd::EtcdOptions;
use testkit::proxy::{Proxy, Until, admin_get};
use testkit::registry::Registry;
use testkit::steady::Steady;
use testkit::wait::eventually;

const POLL: Duration = Duration::from_millis(50);

/// What is followed, how far it is known, and how often it was listed.
pub fn topics(status: &Value) -> BTreeMap<String, (i64, u64)> {
    let topics = status["facts"]["topics"].as_array().unwrap();
    let numbers = |topic: &Value| (topic["revision"].as_i64(), topic["lists"].as_u64());
    let each = topics.iter().enumerate().map(|(number, topic)| {
        let (revision, lists) = numbers(topic);
        let name = topic["topic"].as_str().unwrap();
        (
            format!("{number} {name}"),
            (revision.unwrap(), lists.unwrap()),
        )
    });
    each.collect()
}

/// How often each topic is listed when it goes on from where it was `before`, the history before `compacted` being
/// gone.
fn expected_lists(before: &BTreeMap<String, (i64, u64)>, compacted: i64) -> BTreeMap<&str, u64> {
    let each = before.iter().map(|(name, (revision, lists))| {
        let is_gone = revision + 1 < compacted;
        (name.as_str(), lists + u64::from(is_gone))
    });
    each.collect()
}

/// Waits until all topics that had to be listed were, and sees that none is listed twice, nor any other once.
async fn are_listed(proxy: &Proxy, expected: &BTreeMap<&str, u64>) {
    let as_expected = async || {
        let topics = topics(&proxy.statusz().await);
        let lists = topics
            .iter()
            .map(|(name, (_, lists))| (name.as_str(), *lists));
        let lists: BTreeMap<_, _> = lists.collect();
        if lists == *expected {
            Ok(())
        } else {
            Err(format!("{lists:?}, expected {expected:?}"))
        }
    };
    eventually("each is listed as often as it has to be", LONG, as_expected).await;
    // A list that is made meanwhile stays counted.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(as_expected().await, Ok(()), "and no more");
}

/// Whether a status page says that the local apiserver serves `resource` of `group` itself.
pub fn is_local(status: &Value, group: &str, resource: &str) -> bool {
    let resources = status["resources"].as_array().unwrap();
    resources.iter().any(|listed| {
        listed["group"] == group && listed["resource"] == resource && listed["local"] == true
    })
}

#[tokio::test]
async fn a_compaction_while_cut_off_costs_one_list_of_each_and_hides_nobody() {
    let (cluster, cut) = through_a_cut("a").await;
    for resource in ["things", "parts"] {
        let resource = ServedResource::new("w.example", "v1", resource, "Thing");
        cluster.a.add_resource(resource);
    }
    let registry = Registry::new(cluster.ground.etcd.client().await, "/registry");
    for number in 0..30 {
        let id = format!("w-{number:02}");
        registry
            .put_record(&id, 20000 + number, "w.example/v1", &["things", "parts"])
            .await;
    }
    registry.put_definition("parts.w.example").await;
    eventually("A knows all of them", LONG, async || {
        let status = cluster.proxy_a.statusz().await;
        ids(&status).len() == 31
            && is_local(&status, "w.example", "things")
            && !is_local(&status, "w.example", "parts")
    })
    .await;
    let admin = cluster.client().cert("admin");
    let rerouted = asking(&admin, HPAS);
    let page = cluster.proxy_a.admin();
    let nobody_is_hidden = Steady::start("31 servers or more", POLL, 2000, move || async move {
        let status = admin_get(page, "/statusz?format=json", "*/*").await;
        let status = status.map_err(|error| format!("{error:#}"))?.json();
        match ids(&status).len() {
            31.. => Ok(()),
            fewer => Err(format!("{fewer}: {status:#}")),
        }
    });

    cut.cut();
    for number in 30..40 {
        let id = format!("w-{number:02}");
        registry
            .put_record(&id, 20000 + number, "w.example/v1", &["things"])
            .await;
    }
    registry
        .put_record("w-07", 20007, "changed.example/v1", &["things"])
        .await;
    registry.put_definition("things.w.example").await;
    registry
        .delete(&registry.definition("parts.w.example"))
        .await;
    let compacted = registry.compact().await;
    let before = topics(&cluster.proxy_a.statusz().await);
    let expected = expected_lists(&before, compacted);
    assert!(expected.values().all(|lists| *lists == 2), "{before:?}");
    cut.restore();

    eventually("A knows what was written", LONG, async || {
        let status = cluster.proxy_a.statusz().await;
        let right = ids(&status).len() == 41
            && has(&status, "changed.example", "things")
            && !is_local(&status, "w.example", "things")
            && is_local(&status, "w.example", "parts")
            && status["peers"].to_string().contains("w-39")
            && lists(&status, "b", "autoscaling");
        if right {
            Ok(())
        } else {
            Err(format!("{status:#}"))
        }
    })
    .await;
    are_listed(&cluster.proxy_a, &expected).await;
    assert!(rerouted.stop().await > 10);
    assert!(nobody_is_hidden.stop().await > 10);
}

#[tokio::test]
async fn what_was_known_up_to_a_compaction_is_not_listed_again() {
    // Nothing is told of what does not change: each topic is known up to its own last change.
    let options = EtcdOptions {
        progress_notify: Duration::from_secs(600),
        ..EtcdOptions::default()
    };
    let (ground, cut) = behind_a_cut(options).await;
    let double = ground.double(v1_20()).await;
    let through = format!("[\"https://{}\"]", cut.addr());
    let options = ground.proxy("a", double.addr());
    let options = options
        .set("etcd.endpoints", &through)
        .set("peer.leaseTTL", "60s");
    let proxy = Proxy::start(options.until(Until::Ready)).await;
    let registry = Registry::new(ground.etcd.client().await, "/registry");
    for name in ["things.w.example", "parts.w.example"] {
        registry.put_definition(name).await;
    }
    let known = registry.put_definition("pieces.w.example").await;
    eventually("A knows the last definition", LONG, async || {
        let topics = topics(&proxy.statusz().await);
        topics["4 customresourcedefinitions"].0 >= known
    })
    .await;

    cut.cut();
    // The proxy's own keys may be newer already.
    let mut etcd = ground.etcd.client().await;
    etcd.compact(known, None).await.unwrap();
    let written = registry
        .put_record("late", 20001, "w.example/v1", &["late"])
        .await;
    registry.put_definition("late.w.example").await;
    let before = topics(&proxy.statusz().await);
    let expected = expected_lists(&before, known);
    let listed_again = expected.values().filter(|lists| **lists == 2).count();
    assert!(listed_again > 2, "{before:?}, {known}");
    assert_eq!(expected["4 customresourcedefinitions"], 1, "{before:?}");
    cut.restore();

    eventually("A knows what was written", LONG, async || {
        let status = proxy.statusz().await;
        let topics = topics(&status);
        ids(&status) == ["late"] && topics["4 customresourcedefinitions"].0 > written
    })
    .await;
    are_listed(&proxy, &expected).await;
}
