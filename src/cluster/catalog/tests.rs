use super::*;
use crate::routing::table::{Gvr, GvrRef};

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

fn own() -> Own {
    Own {
        id: "a".into(),
        endpoint: OWN.parse().unwrap(),
    }
}

fn item(key: &str, value: &str, mod_revision: i64) -> Item {
    Item {
        key: key.into(),
        value: value.into(),
        mod_revision,
    }
}

fn record(id: &str, endpoint: &str, revision: i64) -> Item {
    let resources = r#"{"autoscaling/v1":["horizontalpodautoscalers"]}"#;
    item(
        id,
        &format!(r#"{{"endpoint":"{endpoint}","resources":{resources}}}"#),
        revision,
    )
}

/// A live key that means the records of revision 2 and later.
fn live(id: &str, endpoint: &str, initialized: bool, revision: i64) -> Item {
    let value =
        format!(r#"{{"endpoint":"{endpoint}","initialized":{initialized},"recordRevision":2}}"#);
    item(id, &value, revision)
}

/// A state that took these in after empty lists.
fn state(messages: Vec<(Topic, Item)>) -> (State, Published) {
    let (mut state, published) = (State::default(), Published::default());
    for topic in Topic::ALL {
        state.take((topic, Event::Init), &published);
        state.take((topic, Event::InitDone(1)), &published);
    }
    for (topic, item) in messages {
        state.take((topic, Event::Apply(item)), &published);
    }
    (state, published)
}

fn view(reads: u64, gvrs: &[GvrRef<'_>]) -> LocalView {
    let served = gvrs.iter().map(|gvr| gvr.owned()).collect::<ServedSet>();
    LocalView {
        served: Some(Arc::new(served)),
        reads,
        versions: None,
    }
}

fn compiled(messages: Vec<(Topic, Item)>) -> Snapshot {
    let (mut state, _) = state(messages);
    let custom = state.custom(1);
    state.compile(&own(), &view(1, &[]), custom)
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

#[test]
fn half_a_list_is_never_visible() {
    let (mut state, published) = state(vec![(Topic::Live, live("b", B, true, 5))]);
    assert!(!state.take((Topic::Live, Event::Init), &published));
    assert!(!state.take(
        (Topic::Live, Event::InitApply(live("c", B, true, 6))),
        &published
    ));
    assert_eq!(state.live.current.keys().collect::<Vec<_>>(), ["b"]);
    assert!(state.take((Topic::Live, Event::InitDone(6)), &published));
    assert_eq!(state.live.current.keys().collect::<Vec<_>>(), ["c"]);
}

#[test]
fn it_is_synced_when_every_topic_was_listed() {
    let (mut state, published) = (State::default(), Published::default());
    for topic in Topic::ALL {
        assert!(!state.synced());
        state.take((topic, Event::Init), &published);
        state.take((topic, Event::InitDone(1)), &published);
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
        (Topic::Live, item("b", &value, 9))
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

#[test]
fn an_undecodable_value_leaves_what_was_known_and_is_counted() {
    let (mut state, published) = state(vec![(Topic::Servers, record("b", B, 2))]);
    assert!(!state.take(
        (Topic::Servers, Event::Apply(item("b", "k8s:enc:aescbc", 9))),
        &published
    ));
    state.take((Topic::Servers, Event::Init), &published);
    state.take(
        (Topic::Servers, Event::InitApply(item("b", "\u{0}", 10))),
        &published,
    );
    assert!(
        state.servers.current.contains_key("b"),
        "nor while the list is not complete"
    );
    state.take((Topic::Servers, Event::InitDone(11)), &published);
    assert!(state.servers.current.contains_key("b"));
    assert_eq!(published.told.undecodable.load(Ordering::Relaxed), 2);
}

#[test]
fn only_an_api_service_with_a_service_is_aggregated() {
    let local = item(
        "v1.apps",
        r#"{"kind":"APIService","spec":{"group":"apps","version":"v1"}}"#,
        2,
    );
    let null = item("v1.batch", r#"{"spec":{"service":null}}"#, 3);
    let remote = item(
        "v1beta1.metrics.k8s.io",
        r#"{"spec":{"service":{"name":"metrics-server"}}}"#,
        4,
    );
    let (mut state, _) = state(vec![
        (Topic::ApiServices, local),
        (Topic::ApiServices, null),
        (Topic::ApiServices, remote),
    ]);
    let custom = state.custom(1);
    let aggregated: Vec<_> = custom.aggregated.iter().collect();
    assert_eq!(
        aggregated,
        [&Pair("metrics.k8s.io".into(), "v1beta1".into())]
    );
}

#[test]
fn the_core_groups_api_service_has_an_empty_group() {
    assert_eq!(pair("v1."), Some(Pair("v1".into(), String::new())));
}

#[test]
fn custom_resources_are_not_the_local_servers_own() {
    let (mut state, _) = state(vec![(
        Topic::Definitions,
        item("widgets.example.com", "", 2),
    )]);
    let custom = state.custom(1);
    let snapshot = state.compile(&own(), &view(1, &[HPA, WIDGETS]), custom);
    let listed: Vec<&Gvr> = snapshot.resources().into_keys().collect();
    assert_eq!(listed, [&HPA.owned()]);
    assert!(snapshot.custom.contains(WIDGETS));
}

#[test]
fn what_was_custom_is_taken_for_built_in_only_after_two_more_reads() {
    let (mut state, published) = state(vec![(
        Topic::Definitions,
        item("widgets.example.com", "", 2),
    )]);
    state.custom(5);
    state.take(
        (
            Topic::Definitions,
            Event::Delete("widgets.example.com".into()),
        ),
        &published,
    );
    assert!(state.custom(5).contains(WIDGETS));
    assert!(state.custom(6).contains(WIDGETS));
    assert!(!state.custom(7).contains(WIDGETS));
}
