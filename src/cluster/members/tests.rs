//! Named cases of cluster membership.

mod bare;
mod claims;
mod draining;
mod header_names;
mod others_ids;
mod suspended;
mod undecodable;
mod written_anew;

use std::time::{Duration, Instant};

use serde_json::json;

use super::*;
use crate::cluster::codec::encode_endpoints;
use crate::cluster::source::{EtcdItem, Event};
use crate::kube::gvr::GvrRef;
use crate::kube::version::Versions;
use crate::routing::table::ServerKind;

const TTL: Duration = Duration::from_secs(15);
const GRACE: Duration = Duration::from_secs(3600);

const OWN: &str = "10.0.0.1:6443";
const B: &str = "10.0.0.2:6443";
const HPA: GvrRef<'_> = GvrRef {
    group: "autoscaling",
    version: "v1",
    resource: "horizontalpodautoscalers",
    subresource: "",
};
const WIDGETS: GvrRef<'_> = GvrRef {
    group: "example.com",
    version: "v1",
    resource: "widgets",
    subresource: "",
};

fn item(key: &str, value: impl Into<Vec<u8>>, mod_revision: i64) -> EtcdItem {
    EtcdItem {
        key: key.into(),
        value: value.into(),
        create_revision: 1,
        mod_revision,
    }
}

/// The same key, which was deleted and created again.
fn created_anew(item: EtcdItem) -> EtcdItem {
    EtcdItem {
        create_revision: 7,
        ..item
    }
}

/// The IDs of the native peers whose discovery is to be read.
fn native_peers(state: &ClusterState) -> Vec<String> {
    let candidates = state.candidates(Some("a")).into_keys();
    candidates.filter_map(|it| it.id).collect()
}

fn record(id: &str, endpoint: &str, revision: i64) -> EtcdItem {
    let resources = r#"{"autoscaling/v1":["horizontalpodautoscalers"]}"#;
    item(
        id,
        format!(r#"{{"endpoint":"{endpoint}","resources":{resources}}}"#),
        revision,
    )
}

/// A live key that requires a record of revision 2 or later.
fn live(id: &str, endpoint: &str, initialized: bool, revision: i64) -> EtcdItem {
    let value =
        format!(r#"{{"endpoint":"{endpoint}","initialized":{initialized},"recordRevision":2}}"#);
    item(id, value, revision)
}

/// A state that took these in after empty lists.
fn state(messages: Vec<(Topic, EtcdItem)>) -> ClusterState {
    let mut state = ClusterState::new(OWN.parse().unwrap(), 1, TTL, GRACE);
    for topic in Topic::all(1) {
        take(&mut state, topic, Event::Init);
        take(&mut state, topic, Event::InitDone(1));
    }
    for (topic, item) in messages {
        take(&mut state, topic, Event::Apply(item));
    }
    state.settle(1);
    state
}

fn take(state: &mut ClusterState, topic: Topic, event: Event) -> bool {
    state.take((topic, event), Instant::now())
}

fn view(gvrs: &[GvrRef<'_>]) -> LocalView {
    let served = gvrs.iter().map(|gvr| gvr.owned()).collect::<ServedSet>();
    LocalView {
        served: Some(Arc::new(served)),
        reads: 1,
        ..LocalView::default()
    }
}

fn compiled(messages: Vec<(Topic, EtcdItem)>) -> Snapshot {
    state(messages).compile(Some("a"), &view(&[]))
}

fn holders(snapshot: &Snapshot) -> (Vec<&str>, bool) {
    let (_, holders) = snapshot.holders(HPA).expect("listed");
    (
        holders
            .targets
            .iter()
            .map(|index| &*snapshot.servers[*index].id)
            .collect(),
        holders.absent,
    )
}

/// The native peer `c` tells what it serves.
fn native_answers(state: &mut ClusterState, native: NativePeer) {
    let from = Unproxied {
        id: Some("c".into()),
        address: native.address,
        created: native.created,
    };
    assert!(state.answered(from, Ok(native), Instant::now()));
}

#[test]
fn it_is_synced_when_every_topic_was_listed() {
    let mut state = ClusterState::new(OWN.parse().unwrap(), 2, TTL, GRACE);
    // Routes depend on nothing in header names.
    for topic in Topic::all(2).filter(|topic| *topic != Topic::HeaderNames) {
        assert!(!state.synced());
        take(&mut state, topic, Event::Init);
        assert!(take(&mut state, topic, Event::InitDone(1)));
    }
    assert!(state.synced());
}

#[test]
fn a_live_initialized_peer_is_a_target() {
    let snapshot = compiled(vec![
        (Topic::Servers, record("b", B, 2)),
        (Topic::Live, live("b", B, true, 3)),
    ]);
    assert_eq!(holders(&snapshot), (vec!["b"], false));
}

#[test]
fn we_are_no_peer_of_ours() {
    let snapshot = compiled(vec![
        (Topic::Servers, record("a", OWN, 2)),
        (Topic::Live, live("a", OWN, true, 3)),
    ]);
    assert!(snapshot.servers.is_empty());
}

#[test]
fn another_server_that_has_our_id_is_a_server_all_the_same() {
    let snapshot = compiled(vec![
        (Topic::Servers, record("a", B, 2)),
        (Topic::Live, live("a", B, true, 3)),
    ]);
    assert_eq!(holders(&snapshot), (vec!["a"], false));
    let snapshot = compiled(vec![(Topic::Servers, record("a", B, 2))]);
    assert_eq!(
        holders(&snapshot),
        (vec![], true),
        "what it served is not gone"
    );
}

#[test]
fn what_a_dead_server_served_is_still_known() {
    let snapshot = compiled(vec![(Topic::Servers, record("b", B, 2))]);
    assert_eq!(holders(&snapshot), (vec![], true));
}

#[test]
fn a_starting_peer_is_no_target() {
    let snapshot = compiled(vec![
        (Topic::Servers, record("b", B, 2)),
        (Topic::Live, live("b", B, false, 3)),
    ]);
    assert_eq!(holders(&snapshot), (vec![], true));
}

#[test]
fn a_live_peer_at_our_own_address_is_no_target_but_what_it_serves_is_not_gone() {
    let snapshot = compiled(vec![
        (Topic::Servers, record("b", OWN, 2)),
        (Topic::Live, live("b", OWN, true, 3)),
        (Topic::Servers, record("a", OWN, 4)),
    ]);
    assert_eq!(holders(&snapshot), (vec![], true));
}

#[test]
fn our_record_from_before_a_restart_is_replaced_by_the_new_one() {
    let snapshot = compiled(vec![
        (Topic::Servers, record("a-before", OWN, 2)),
        (Topic::Servers, record("a", OWN, 4)),
    ]);
    assert!(snapshot.servers.is_empty());
}

#[test]
fn a_server_that_came_back_under_a_new_id_replaces_the_old_one() {
    let snapshot = compiled(vec![
        (Topic::Servers, record("b-old", B, 2)),
        (Topic::Live, live("b-old", B, true, 3)),
        (Topic::Servers, record("b-new", B, 4)),
        (Topic::Live, live("b-new", B, true, 5)),
    ]);
    assert_eq!(
        holders(&snapshot),
        (vec!["b-new"], true),
        "until the old live key is gone"
    );
    let snapshot = compiled(vec![
        (Topic::Servers, record("b-old", B, 2)),
        (Topic::Servers, record("b-new", B, 4)),
        (Topic::Live, live("b-new", B, true, 5)),
    ]);
    assert_eq!(holders(&snapshot), (vec!["b-new"], false));
}

#[test]
fn a_live_key_without_a_record_is_a_server_whose_set_is_unknown() {
    let snapshot = compiled(vec![(Topic::Live, live("b", B, true, 3))]);
    assert!(snapshot.peer_unknown);
    assert!(snapshot.servers[0].target);
}

#[test]
fn a_record_older_than_the_live_key_means_is_not_what_is_served_now() {
    let live = |meant: &str| {
        let value = format!(r#"{{"endpoint":"{B}","initialized":true{meant}}}"#);
        (Topic::Live, item("b", value, 9))
    };
    for (meant, unknown) in [
        ("", true),
        (r#","recordRevision":3"#, true),
        (r#","recordRevision":2"#, false),
    ] {
        let snapshot = compiled(vec![(Topic::Servers, record("b", B, 2)), live(meant)]);
        assert_eq!(snapshot.peer_unknown, unknown, "{meant}");
        assert_eq!(
            holders(&snapshot),
            (vec!["b"], false),
            "what was known last still counts"
        );
    }
}

fn api_service(name: &str, spec: &str) -> (Topic, EtcdItem) {
    let version = "apiregistration.k8s.io/v1";
    let value = format!(r#"{{"apiVersion":"{version}","kind":"APIService","spec":{spec}}}"#);
    (Topic::ApiServices, item(name, value.as_str(), 2))
}

#[test]
fn only_an_api_service_with_a_service_is_aggregated() {
    let state = state(vec![
        api_service("v1.apps", r#"{"group":"apps","version":"v1"}"#),
        api_service("v1.batch", r#"{"service":null}"#),
        api_service("v1beta1.metrics.k8s.io", r#"{"service":{"name":"x"}}"#),
    ]);
    let groups: Vec<_> = state
        .custom()
        .aggregated
        .iter()
        .map(|pair| pair.0.as_str())
        .collect();
    assert_eq!(groups, ["metrics.k8s.io"]);
}

fn definition(name: &str, version: &str) -> (Topic, EtcdItem) {
    let value = format!(
        r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","spec":{{"versions":[{{"name":"{version}","served":true}}]}}}}"#
    );
    (Topic::Definitions, item(name, value, 2))
}

#[test]
fn a_resource_is_a_crds_by_its_exact_group_version_and_plural() {
    let state = state(vec![
        definition("widgets.example.com", "v1"),
        definition("horizontalpodautoscalers.autoscaling", "v9"),
        definition("gadgets.example.com", "v1"),
        // It serves other versions now, and nobody can read which.
        (
            Topic::Definitions,
            item("gadgets.example.com", "k8s:enc:…", 3),
        ),
    ]);
    let snapshot = state.compile(Some("a"), &view(&[HPA]));
    let gvr = |resource, version| GvrRef {
        resource,
        version,
        ..WIDGETS
    };
    for (asked, custom) in [
        (WIDGETS, true),
        (gvr("widgets", "v2"), false),
        (gvr("gadgets", "v7"), true),
        (HPA, false),
        (
            GvrRef {
                version: "v9",
                ..HPA
            },
            true,
        ),
    ] {
        assert_eq!(snapshot.is_custom(asked), custom, "{asked:?}");
    }
    assert!(
        snapshot
            .holders(HPA)
            .is_some_and(|(_, holders)| holders.local)
    );
}

#[test]
fn a_crd_that_is_written_without_a_change_of_its_versions_changes_nothing() {
    const NAME: &str = "endpointslices.discovery.k8s.io";
    let mut state = state(vec![definition(NAME, "v1")]);
    for (version, changed) in [("v1", false), ("v2", true)] {
        let (topic, item) = definition(NAME, version);
        assert_eq!(take(&mut state, topic, Event::Apply(item)), changed);
    }
}

#[test]
fn what_a_live_or_an_absent_server_has_in_its_record_is_no_crds() {
    let mut messages = vec![definition("horizontalpodautoscalers.autoscaling", "v1")];
    messages.push((Topic::Servers, record("b", "10.0.0.2:6443", 2)));
    messages.push((Topic::Live, live("b", "10.0.0.2:6443", true, 3)));
    for alive in [true, false] {
        if !alive {
            messages.retain(|(topic, _)| *topic != Topic::Live);
        }
        let snapshot = state(messages.clone()).compile(Some("a"), &view(&[]));
        assert!(!snapshot.is_custom(HPA), "{alive}");
        let (_, holders) = snapshot.holders(HPA).unwrap();
        assert_eq!((holders.local, holders.absent), (false, !alive));
    }
}

fn entry(id: &str, address: &str, revision: i64) -> (Topic, EtcdItem) {
    let endpoint = PeerEndpoint {
        server: id.into(),
        address: address.parse().unwrap(),
    };
    let item = item(id, encode_endpoints(&endpoint, 1), revision);
    (Topic::PeerEndpoints, item)
}

fn lease(id: &str, renewed: &str) -> (Topic, EtcdItem) {
    let value = format!(
        r#"{{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{{"name":"{id}","uid":"u","labels":{{"apiserver.kubernetes.io/identity":"kube-apiserver"}}}},"spec":{{"holderIdentity":"{id}_1","leaseDurationSeconds":3600,"renewTime":"{renewed}"}}}}"#
    );
    (Topic::Leases(0), item(id, value, 5))
}

fn storage_version(id: &str) -> (Topic, EtcdItem) {
    let value = format!(
        r#"{{"apiVersion":"internal.apiserver.k8s.io/v1alpha1","kind":"StorageVersion","metadata":{{"name":"autoscaling.horizontalpodautoscalers"}},"status":{{"storageVersions":[{{"apiServerID":"{id}","encodingVersion":"autoscaling/v1","decodableVersions":["autoscaling/v2"],"servedVersions":["autoscaling/v1"]}}]}}}}"#
    );
    let item = item("autoscaling.horizontalpodautoscalers", value, 5);
    (Topic::StorageVersions, item)
}

#[test]
fn a_lease_without_an_endpoint_names_a_server_and_proves_nothing() {
    let state = state(vec![
        lease("c", "2026-01-01T00:00:00.000000Z"),
        storage_version("c"),
    ]);
    let snapshot = state.compile(Some("a"), &view(&[]));
    assert!(snapshot.servers.is_empty() && snapshot.holders(HPA).is_none());
    let named: Vec<_> = state.named_leases().unwrap();
    assert_eq!(named[0].name, "c");
}

#[test]
fn an_endpoint_without_a_lease_is_a_native_peer() {
    let mut state = state(vec![entry("c", B, 4)]);
    let snapshot = state.compile(Some("a"), &view(&[]));
    assert!(snapshot.peer_unknown, "its discovery is still to be read");
    assert_eq!(native_peers(&state), ["c"]);
    let native = NativePeer {
        address: B.parse().unwrap(),
        created: 1,
        served: Arc::new([HPA.owned(), WIDGETS.owned()].into()),
        binary_version: "v1.36.0".into(),
        version: "1.35".parse().ok(),
        read: Instant::now(),
        since: Instant::now(),
    };
    native_answers(&mut state, native);
    let snapshot = state.compile(Some("a"), &view(&[]));
    assert_eq!(holders(&snapshot), (vec!["c"], false));
    assert!(snapshot.servers[0].kind == ServerKind::Native && !snapshot.peer_unknown);
    assert_eq!(snapshot.servers[0].version, "1.35".parse().ok());
    take(&mut state, Topic::PeerEndpoints, Event::Delete("c".into()));
    let snapshot = state.compile(Some("a"), &view(&[]));
    assert_eq!(holders(&snapshot), (vec![], true), "unreachable, not gone");
    assert!(state.expire(Instant::now() + GRACE));
    let snapshot = state.compile(Some("a"), &view(&[]));
    assert!(snapshot.holders(HPA).is_none());
}

#[test]
fn what_a_native_peer_served_is_unknown_once_another_process_is_there_or_it_has_no_entry_and_is_read()
 {
    let native = |created| NativePeer {
        address: B.parse().unwrap(),
        created,
        served: Arc::new([HPA.owned()].into()),
        binary_version: "v1.36.0".into(),
        version: "1.36".parse().ok(),
        read: Instant::now(),
        since: Instant::now(),
    };
    let mut state = state(vec![entry("c", B, 4)]);
    native_answers(&mut state, native(1));
    let (topic, first) = entry("c", B, 4);
    take(&mut state, topic, Event::Delete("c".into()));
    take(&mut state, topic, Event::Apply(created_anew(first)));
    let told = |state: &ClusterState| {
        let snapshot = state.compile(Some("a"), &view(&[]));
        (snapshot.peer_unknown, snapshot.servers[0].tells_itself())
    };
    assert_eq!(told(&state), (true, false));
    let asked: Vec<_> = state.candidates(Some("a")).into_keys().collect();
    assert_eq!(asked[0].created, 7, "it is asked anew");
    native_answers(&mut state, native(7));
    assert_eq!(told(&state), (false, true));

    // Set back to a version without such entries.
    take(&mut state, Topic::PeerEndpoints, Event::Delete("c".into()));
    let lease = item("10.0.0.2", r#"{"apiVersion":"v1","kind":"Endpoints"}"#, 9);
    take(&mut state, Topic::MasterLeases, Event::Apply(lease));
    let served = Arc::default();
    let older = NativePeer {
        served,
        ..native(1)
    };
    state.bare_answered((B.parse().unwrap(), 1), Ok(older), Instant::now());
    let snapshot = state.compile(Some("a"), &view(&[]));
    assert_eq!(snapshot.servers.len(), 1);
    assert!(snapshot.holders(HPA).is_none() && !snapshot.peer_unknown);
}

#[test]
fn the_entry_of_an_apiserver_behind_a_proxy_is_no_native_peer() {
    for messages in [
        vec![(Topic::Servers, record("b", B, 2)), entry("b", B, 4)],
        vec![
            (Topic::Live, live("b", B, true, 3)),
            entry("its-own-id", B, 4),
        ],
        vec![entry("ours", OWN, 4)],
        vec![entry("a", "10.0.0.9:6443", 4)],
        vec![entry("mapped", "[::ffff:10.0.0.1]:6443", 4)],
    ] {
        let text = format!("{messages:?}");
        assert!(native_peers(&state(messages)).is_empty(), "{text}");
    }
}

#[test]
fn storage_versions_tell_what_a_living_server_serves_while_nothing_better_does() {
    let snapshot = compiled(vec![entry("c", B, 4), storage_version("c")]);
    assert_eq!(holders(&snapshot), (vec!["c"], false));
    assert!(snapshot.peer_unknown, "presence is proved, absence is not");
    let known = r#"{"endpoint":"10.0.0.2:6443","resources":{"v1":["pods"]}}"#;
    let snapshot = compiled(vec![
        (Topic::Servers, item("b", known, 2)),
        (Topic::Live, live("b", B, true, 3)),
        storage_version("b"),
    ]);
    assert!(
        snapshot.holders(HPA).is_none(),
        "its record is what it serves"
    );
}

#[test]
fn storage_versions_name_an_apiserver_by_its_own_id_and_not_by_its_proxys() {
    let live = format!(
        r#"{{"endpoint":"{B}","initialized":true,"apiServerID":"apiserver-b","recordRevision":3}}"#
    );
    let state = state(vec![
        (Topic::Live, item("b", live, 4)),
        entry("apiserver-b", B, 5),
        lease("apiserver-b", "2026-01-01T00:00:00.000000Z"),
        storage_version("apiserver-b"),
    ]);
    let snapshot = state.compile(Some("a"), &view(&[]));
    assert_eq!(holders(&snapshot), (vec!["b"], false));
    assert!(snapshot.peer_unknown);
    assert!(native_peers(&state).is_empty());
}

#[test]
fn a_proxy_without_an_id_is_a_server_whose_set_is_unknown() {
    let claim = (Topic::Claims, item("-/10.0.0.2:6443", "", 4));
    let unnamed = state(vec![claim.clone()]);
    assert!(unnamed.compile(Some("a"), &view(&[])).peer_unknown);
    let report = unnamed.report();
    assert_eq!(
        report["claims"],
        json!([]),
        "it is no second one of a server"
    );
    assert_eq!(report["unnamed"], json!([B]));
    let named = state(vec![
        claim,
        (Topic::Servers, record("b", B, 2)),
        (Topic::Live, live("b", B, true, 5)),
    ]);
    assert!(!named.compile(Some("a"), &view(&[])).peer_unknown);
}

#[test]
fn own_keys_are_those_of_the_own_id_or_of_a_proxy_without_one() {
    let state = state(vec![
        (Topic::Servers, record("a", OWN, 2)),
        (Topic::Live, live("a", OWN, true, 3)),
        (Topic::Claims, item(&format!("a/{OWN}"), "", 4)),
        (Topic::Claims, item(&format!("-/{OWN}"), "", 5)),
    ]);
    assert_eq!(state.own_keys(Some("a")), [2, 3, 0, 4, 0]);
    assert_eq!(state.own_keys(Some("b")), [0; 5]);
    assert_eq!(state.own_keys(None), [0, 0, 0, 5, 0]);
}

#[test]
fn what_a_native_peers_discovery_lacks_is_not_added_by_storage_versions() {
    let mut state = state(vec![entry("c", B, 4), storage_version("c")]);
    let native = NativePeer {
        address: B.parse().unwrap(),
        created: 1,
        served: Arc::new([WIDGETS.owned()].into()),
        binary_version: "v1.37.0".into(),
        version: None,
        read: Instant::now(),
        since: Instant::now(),
    };
    native_answers(&mut state, native);
    let snapshot = state.compile(Some("a"), &view(&[]));
    assert!(snapshot.holders(HPA).is_none() && !snapshot.peer_unknown);
}

#[test]
fn a_clock_that_is_an_hour_off_changes_nothing() {
    for renewed in ["2000-01-01T00:00:00.000000Z", "2100-01-01T00:00:00.000000Z"] {
        let snapshot = compiled(vec![
            (Topic::Servers, record("b", B, 2)),
            (Topic::Live, live("b", B, true, 3)),
            lease("b", renewed),
        ]);
        assert_eq!(holders(&snapshot), (vec!["b"], false));
    }
}

#[test]
fn versions_are_what_records_and_our_own_apiserver_say_and_unknown_where_they_say_nothing() {
    let versioned = |id: &str, endpoint: &str, said: &str| {
        let value = format!(r#"{{"endpoint":"{endpoint}",{said}"resources":{{}}}}"#);
        (Topic::Servers, item(id, value, 2))
    };
    let state = state(vec![
        versioned(
            "b",
            B,
            r#""binaryVersion":"v1.36.0","compatibilityVersion":"1.35","#,
        ),
        versioned("c", "10.0.0.3:6443", r#""binaryVersion":"v1.36.0","#),
        versioned("d", "10.0.0.4:6443", r#""compatibilityVersion":"newest","#),
    ]);
    let mut view = view(&[]);
    let snapshot = state.compile(Some("a"), &view);
    let versions: Vec<_> = snapshot.servers.iter().map(|it| it.version).collect();
    assert_eq!(versions, ["1.35".parse().ok(), None, None]);
    assert_eq!(snapshot.local_version, None);
    view.versions = Some(Versions {
        binary: "v1.36.1".into(),
        compatibility: "1.36".parse().ok(),
    });
    let snapshot = state.compile(Some("a"), &view);
    assert_eq!(snapshot.local_version, "1.36".parse().ok());
}

/// As where the server ID is configured: the apiserver's own is another one.
#[test]
fn the_entry_of_an_apiserver_that_a_proxy_names_is_no_native_peers() {
    let named = |item: EtcdItem| {
        let value = String::from_utf8(item.value).unwrap();
        let value = value.replacen('{', r#"{"apiServerID":"apiserver-b","#, 1);
        EtcdItem {
            value: value.into_bytes(),
            ..item
        }
    };
    // All apiservers advertise one load balancer.
    let balancer = item("10.0.0.99", r#"{"apiVersion":"v1","kind":"Endpoints"}"#, 3);
    let mut state = state(vec![
        (Topic::Servers, named(record("b", B, 2))),
        (Topic::Live, named(live("b", B, true, 3))),
        (Topic::MasterLeases, balancer),
        entry("apiserver-b", "10.0.0.99:6443", 4),
    ]);
    let servers = |state: &ClusterState| {
        let servers = state.compile(Some("a"), &view(&[])).servers.into_iter();
        servers.map(|it| it.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(servers(&state), ["b"]);
    take(&mut state, Topic::Live, Event::Delete("b".into()));
    assert_eq!(servers(&state), ["b"], "its record names it");
    assert!(native_peers(&state).is_empty());
    // Else nobody would find it any more.
    let delete = Event::Delete("10.0.0.99".into());
    take(&mut state, Topic::MasterLeases, delete);
    assert_eq!(native_peers(&state), ["apiserver-b"]);
}

#[test]
fn a_record_that_was_restored_with_etcd_tells_of_the_past_until_its_proxy_writes() {
    let mut state = state(vec![
        (Topic::Servers, record("b", B, 2)),
        (Topic::Live, live("b", B, true, 3)),
    ]);
    take(&mut state, Topic::Servers, Event::OtherHistory);
    take(&mut state, Topic::Servers, Event::Init);
    take(
        &mut state,
        Topic::Servers,
        Event::InitApply(record("b", B, 2)),
    );
    take(&mut state, Topic::Servers, Event::InitDone(5));
    let is_unknown = |state: &ClusterState| state.compile(Some("a"), &view(&[])).peer_unknown;
    assert!(is_unknown(&state));
    let renew = |state: &mut ClusterState, revision| {
        let live = Event::Apply(live("b", B, true, revision));
        take(state, Topic::Live, live)
    };
    assert!(!renew(&mut state, 5) && is_unknown(&state));
    // It has found its record to be true, or has written it before this server listed it.
    assert!(renew(&mut state, 6) && !is_unknown(&state));
    assert!(!renew(&mut state, 7));
}
