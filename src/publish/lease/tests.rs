use http::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::fake::{Scene, Store, scene, scene_with};
use super::*;
use crate::client::fake::Reply;
use crate::cluster::codec::{self, MANAGED_BY, MANAGER, RENEWAL, renewal};

/// Shortest pause after a failure.
const FIRST_PAUSE: Duration = Duration::from_millis(200);

const SUCCESSES: &str = "apiserver_identity_lease_success_count";
const FAILURES: &str = "apiserver_identity_lease_failure_count";
const KEPT_BY_OTHER: &str = "kube_interop_proxy_identity_lease{kept_by=\"other\"}";
const RENEWED: &str = "2001-09-09T01:46:40.000000Z";

/// A Lease as another process left it.
fn lease_of(holder: &str, published: bool) -> Value {
    let mut lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"labels": {"k8s.io/component": "kube-apiserver"}},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 1, "renewTime": RENEWED},
    });
    if published {
        lease["metadata"]["labels"][MANAGED_BY] = json!(MANAGER);
        lease["metadata"]["annotations"] = json!({RENEWAL: renewal(holder, RENEWED)});
    }
    lease
}

/// As etcd has it.
fn observed(lease: &Value, published: bool) -> Option<Arc<Vec<Arc<NamedLease>>>> {
    let metadata = |key: &str| lease["metadata"][key].as_str().unwrap();
    Some(Arc::new(vec![Arc::new(NamedLease {
        namespace: 0,
        name: metadata("name").to_owned(),
        revision: metadata("resourceVersion").parse().unwrap(),
        value: codec::Lease {
            identity: true,
            published,
            hostname: None,
            holder: None,
            duration: Some(Duration::from_millis(60)),
            renewed: None,
            uid: metadata("uid").to_owned(),
        },
    })]))
}

fn is_there(name: &str) -> impl Fn(&Store) -> bool {
    move |store| store.leases.contains_key(name)
}

fn is_gone(name: &str) -> impl Fn(&Store) -> bool {
    move |store| !store.leases.contains_key(name)
}

fn holds(store: &Store, name: &str, key: &str) -> Value {
    store.leases[name]["spec"][key].clone()
}

#[tokio::test]
async fn a_lease_is_created_renewed_and_deleted_at_the_end() {
    let scene = scene(|_| ()).await;
    scene.until("created", is_there("cp-a")).await;
    let made = scene.lease("cp-a").unwrap();
    let holder = object::holder(&made).unwrap();
    assert!(
        holder
            .strip_prefix("cp-a_")
            .is_some_and(|process| process.len() == 32)
    );
    scene
        .until("renewed", |store| {
            holds(store, "cp-a", "renewTime") != made["spec"]["renewTime"]
        })
        .await;
    scene.more(Method::PUT, 2).await;
    let renewed = scene.lease("cp-a").unwrap();
    for key in ["holderIdentity", "acquireTime"] {
        assert_eq!(renewed["spec"][key], made["spec"][key], "{key}");
    }
    assert!(scene.metric(SUCCESSES) >= 3.0);
    assert_eq!(scene.metric(FAILURES), 0.0);
    let (start, renew) = (
        scene.metric("apiserver_identity_lease_start_time_seconds"),
        scene.metric("apiserver_identity_lease_renew_time_seconds"),
    );
    assert!(0.0 < start && start < renew, "{start} {renew}");

    let store = scene.stop().await;
    let store = store.borrow();
    assert!(store.leases.is_empty());
    let (method, path, options) = store.seen.last().unwrap();
    assert_eq!(method, Method::DELETE);
    assert!(path.ends_with("/namespaces/kube-system/leases/cp-a"));
    assert_eq!(options["preconditions"]["uid"], made["metadata"]["uid"]);
    assert!(options["preconditions"]["resourceVersion"].is_string());
    assert_eq!(store.count(&Method::POST), 1);
}

#[tokio::test]
async fn versions_come_into_the_annotations_as_soon_as_they_are_known() {
    let scene = scene(|_| ()).await;
    let says = |version: &'static str| {
        move |store: &Store| {
            store.leases.get("cp-a").is_some_and(|lease| {
                lease["metadata"]["annotations"]["kube-interop-proxy/binary-version"] == version
            })
        }
    };
    scene.until("annotated", says("v1.20.2")).await;
    scene.view.send_modify(|view| {
        if let Some(versions) = &mut view.versions {
            versions.binary = "v1.21.0".into();
        }
    });
    scene.until("annotated anew", says("v1.21.0")).await;
}

#[tokio::test]
async fn what_others_write_into_our_lease_is_kept() {
    let scene = scene(|_| ()).await;
    scene.until("created", is_there("cp-a")).await;
    scene.change(|store| {
        let mut lease = store.leases["cp-a"].clone();
        lease["metadata"]["labels"]["team"] = json!("a");
        lease["metadata"]["annotations"]["note"] = json!("b");
        store.put("cp-a", lease);
    });
    scene.more(Method::PUT, 3).await;
    let lease = scene.lease("cp-a").unwrap();
    assert_eq!(lease["metadata"]["labels"]["team"], "a");
    assert_eq!(lease["metadata"]["annotations"]["note"], "b");
    // The conflict was settled by reading, and is no failure.
    assert!(scene.store.borrow().count(&Method::GET) >= 1);
    assert_eq!(scene.metric(FAILURES), 0.0);
}

#[tokio::test]
async fn a_lease_that_somebody_deleted_is_created_again() {
    let scene = scene(|_| ()).await;
    scene.until("created", is_there("cp-a")).await;
    let uid = scene.lease("cp-a").unwrap()["metadata"]["uid"].clone();
    scene.change(|store| {
        store.leases.remove("cp-a");
    });
    scene
        .until("created again", |store| {
            let lease = store.leases.get("cp-a");
            lease.is_some_and(|lease| lease["metadata"]["uid"] != uid)
        })
        .await;
    assert_eq!(scene.metric(FAILURES), 0.0);
}

#[tokio::test]
async fn the_lease_of_the_process_before_is_taken_over() {
    let scene = scene(|store| {
        store.put("cp-a", lease_of("cp-a_before", true));
    })
    .await;
    scene
        .until("taken over", |store| {
            holds(store, "cp-a", "holderIdentity") != "cp-a_before"
        })
        .await;
    let lease = scene.lease("cp-a").unwrap();
    assert_eq!(lease["spec"]["acquireTime"], lease["spec"]["renewTime"]);
    assert!(scene.stop().await.borrow().leases.is_empty());
}

#[tokio::test]
async fn an_apiservers_own_lease_is_left_alone() {
    let mut before = Value::Null;
    let scene = scene(|store| before = store.put("cp-a", lease_of("cp-a_native", false))).await;
    scene.leases.send_replace(observed(&before, false));
    scene.more(Method::GET, 4).await;
    assert_eq!(scene.metric(FAILURES) + scene.metric(SUCCESSES), 0.0);
    assert_eq!(scene.metric(KEPT_BY_OTHER), 1.0);
    let store = scene.stop().await;
    let store = store.borrow();
    assert_eq!(store.leases["cp-a"], before);
    for method in [Method::POST, Method::PUT, Method::DELETE] {
        assert_eq!(store.count(&method), 0, "{method}");
    }
}

/// What an apiserver of our ID makes of our Lease: client-go's controller changes the time, others the holder too.
fn taken_over(lease: &Value, holder: Option<&str>) -> Value {
    let mut taken = lease.clone();
    taken["spec"]["renewTime"] = json!("2002-01-01T00:00:00.000000Z");
    taken["metadata"]["labels"]["kubernetes.io/hostname"] = json!("host-a");
    if let Some(holder) = holder {
        taken["spec"]["holderIdentity"] = json!(holder);
    }
    taken
}

#[tokio::test]
async fn a_lease_that_an_apiserver_takes_over_is_the_apiservers_from_then_on() {
    for holder in [None, Some("cp-a_native")] {
        let scene = scene(|_| ()).await;
        scene.until("created", is_there("cp-a")).await;
        let mut taken = Value::Null;
        scene.change(|store| {
            let lease = taken_over(&store.leases["cp-a"], holder);
            taken = store.put("cp-a", lease);
        });
        assert_eq!(taken["metadata"]["labels"][MANAGED_BY], MANAGER);
        scene.leases.send_replace(observed(&taken, false));
        scene.more(Method::GET, 4).await;
        assert_eq!(scene.lease("cp-a"), Some(taken.clone()));
        assert_eq!(scene.metric(KEPT_BY_OTHER), 1.0);
        let store = scene.stop().await;
        let store = store.borrow();
        assert_eq!(store.leases["cp-a"], taken);
        assert_eq!(store.count(&Method::DELETE), 0);
    }
}

#[tokio::test]
async fn a_lease_that_another_proxy_took_comes_back_when_it_is_gone() {
    let scene = scene(|_| ()).await;
    scene.until("created", is_there("cp-a")).await;
    let mut taken = Value::Null;
    scene.change(|store| taken = store.put("cp-a", lease_of("cp-a_other", true)));
    scene.more(Method::GET, 4).await;
    assert_eq!(scene.lease("cp-a"), Some(taken.clone()));
    // That proxy is dead.
    scene.leases.send_replace(observed(&taken, true));
    scene
        .until("ours again", |store| {
            let lease = store.leases.get("cp-a");
            lease.is_some_and(|lease| lease["metadata"]["uid"] != taken["metadata"]["uid"])
        })
        .await;
    scene.more(Method::PUT, 1).await;
    assert_eq!(scene.metric(KEPT_BY_OTHER), 0.0);
}

#[tokio::test]
async fn a_lease_that_changes_before_it_is_deleted_is_read_again() {
    let scene = scene(|store| store.overtaken = 2).await;
    scene.until("created", is_there("cp-a")).await;
    let store = scene.stop().await;
    let store = store.borrow();
    assert!(store.leases.is_empty());
    assert_eq!(store.count(&Method::DELETE), 3);
}

#[tokio::test]
async fn a_lease_that_another_process_holds_now_is_not_deleted() {
    let state = LocalState::default();
    state.answered(true, state.epoch());
    // No renewal takes it back.
    let scene = scene_with(state, Duration::from_secs(3600), |_| ()).await;
    scene.until("created", is_there("cp-a")).await;
    scene.change(|store| {
        store.put("cp-a", lease_of("cp-a_other", true));
    });
    let store = scene.stop().await;
    let store = store.borrow();
    assert_eq!(holds(&store, "cp-a", "holderIdentity"), "cp-a_other");
    assert_eq!(store.count(&Method::DELETE), 0);
}

#[tokio::test]
async fn a_lease_that_is_no_longer_wanted_is_deleted_and_comes_back_when_it_is() {
    let scene = scene(|_| ()).await;
    scene.until("created", is_there("cp-a")).await;
    scene.id.send_replace(None);
    scene.until("deleted", is_gone("cp-a")).await;
    scene.id.send_replace(Some("cp-a".into()));
    scene.until("created again", is_there("cp-a")).await;
}

#[tokio::test]
async fn another_id_is_another_lease() {
    let scene = scene(|_| ()).await;
    scene.until("created", is_there("cp-a")).await;
    scene.id.send_replace(Some("cp-b".into()));
    let moved = |store: &Store| is_gone("cp-a")(store) && is_there("cp-b")(store);
    scene.until("moved", moved).await;
    let holder = scene.lease("cp-b").unwrap()["spec"]["holderIdentity"].clone();
    assert!(holder.as_str().unwrap().starts_with("cp-b_"));
    scene.id.send_replace(None);
    scene.until("deleted", is_gone("cp-b")).await;
}

#[tokio::test]
async fn an_apiserver_that_is_starting_is_asked_nothing() {
    // So long that only the change can wake it.
    let scene = scene_with(LocalState::default(), Duration::from_secs(3600), |_| ()).await;
    let mut changes = scene.store.subscribe();
    scene.id.send_replace(Some("cp-b".into()));
    let asked = tokio::time::timeout(FIRST_PAUSE * 3, changes.changed()).await;
    assert!(asked.is_err());
    scene.state.answered(true, scene.state.epoch());
    scene.until("created", is_there("cp-b")).await;
}

#[tokio::test]
async fn failures_are_counted_and_slow_down() {
    let start = Instant::now();
    let scene = scene(|store| {
        let fault = || Reply::new(500, &[], "{}");
        store.faults.extend([fault(), fault()]);
    })
    .await;
    scene.until("created", is_there("cp-a")).await;
    assert!(start.elapsed() >= FIRST_PAUSE * 3);
    assert_eq!(scene.metric(FAILURES), 2.0);
}

#[test]
fn pauses_double_up_to_the_longest() {
    let millis = |failures, random| BACKOFF.pause(failures, random).as_millis();
    assert_eq!(millis(1, 0.0), 200);
    assert_eq!(millis(1, 0.5), 300);
    assert_eq!(millis(2, 0.0), 400);
    assert_eq!(millis(7, 0.0), 10_000);
    assert_eq!(millis(u32::MAX, 0.5), 15_000);
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_silent_apiserver() {
    let scene = scene(|_| ()).await;
    scene.until("created", is_there("cp-a")).await;
    scene.change(|store| store.faults.extend([Reply::Silence, Reply::Silence]));
    let start = Instant::now();
    let store = scene.stop().await;
    assert!(start.elapsed() < FAREWELL * 2);
    assert!(is_there("cp-a")(&store.borrow()));
}

/// A scene with the Lease `dead` in it, and that Lease.
async fn with_dead(published: bool) -> (Scene, Value) {
    let mut dead = Value::Null;
    let scene = scene(|store| dead = store.put("dead", lease_of("dead_1", published))).await;
    (scene, dead)
}

#[tokio::test]
async fn an_expired_lease_of_another_proxy_is_collected() {
    let (scene, dead) = with_dead(true).await;
    scene.leases.send_replace(observed(&dead, true));
    scene.until("collected", is_gone("dead")).await;
    assert!(is_there("cp-a")(&scene.store.borrow()));
    let store = scene.store.borrow();
    let (_, _, options) = store
        .seen
        .iter()
        .find(|seen| seen.0 == Method::DELETE)
        .unwrap();
    assert_eq!(options["preconditions"]["uid"], dead["metadata"]["uid"]);
}

#[tokio::test]
async fn a_lease_renewed_meanwhile_is_not_collected() {
    let (scene, dead) = with_dead(true).await;
    // Our view is outdated: the Lease has been renewed since.
    scene.leases.send_replace(observed(&dead, true));
    scene.change(|store| {
        let lease = store.leases["dead"].clone();
        store.put("dead", lease);
    });
    scene.more(Method::DELETE, 2).await;
    assert!(is_there("dead")(&scene.store.borrow()));
    // None of this prevents our own renewals.
    assert_eq!(scene.metric(FAILURES), 0.0);
    scene.more(Method::PUT, 2).await;
}

#[tokio::test]
async fn an_expired_lease_of_an_apiserver_is_not_collected() {
    let (scene, dead) = with_dead(false).await;
    scene.leases.send_replace(observed(&dead, false));
    scene.more(Method::PUT, 5).await;
    assert_eq!(scene.lease("dead"), Some(dead));
    assert_eq!(scene.store.borrow().count(&Method::DELETE), 0);
}

#[test]
fn only_what_a_proxy_published_and_nobody_changed_for_its_duration_is_expired() {
    let duration = Duration::from_millis(60);
    let start = Instant::now();
    let lease = |name: &str, uid: &str, revision: &str, published| {
        let metadata = json!({"name": name, "uid": uid, "resourceVersion": revision});
        let all = observed(&json!({"metadata": metadata}), published);
        all.unwrap().to_vec()
    };
    let a = |revision: &str| lease("a", "1", revision, true);
    for (what, sightings, is_expired) in [
        ("first sight", vec![(99, a("1"))], false),
        ("within its time", vec![(0, a("1")), (1, a("1"))], false),
        ("beyond its time", vec![(0, a("1")), (2, a("1"))], true),
        (
            "renewed",
            vec![(0, a("1")), (1, a("2")), (2, a("2"))],
            false,
        ),
        (
            "renewed, then silent",
            vec![(0, a("1")), (1, a("2")), (3, a("2"))],
            true,
        ),
        (
            "made again",
            vec![(0, a("1")), (2, lease("a", "2", "1", true))],
            false,
        ),
        (
            "gone for a while",
            vec![(0, a("1")), (1, vec![]), (2, a("1"))],
            false,
        ),
        (
            "kept by its apiserver",
            vec![(0, lease("a", "1", "1", false)); 2],
            false,
        ),
        (
            "published only now",
            vec![(0, lease("a", "1", "1", false)), (9, a("2"))],
            false,
        ),
        (
            "no name",
            vec![
                (0, lease("a/b", "1", "1", true)),
                (9, lease("a/b", "1", "1", true)),
            ],
            false,
        ),
    ] {
        let mut seen = HashMap::new();
        let mut last = Vec::new();
        for (durations, leases) in &sightings {
            last = expired(&mut seen, leases, start + duration * *durations);
        }
        assert_eq!(last.len(), usize::from(is_expired), "{what}");
        assert!(seen.len() <= 1, "{what}");
    }
}

#[tokio::test]
async fn the_own_lease_is_not_collected() {
    let scene = scene(|_| ()).await;
    scene.until("created", is_there("cp-a")).await;
    let own = scene.lease("cp-a").unwrap();
    scene.leases.send_replace(observed(&own, true));
    scene.more(Method::PUT, 5).await;
    assert_eq!(scene.store.borrow().count(&Method::DELETE), 0);
}
