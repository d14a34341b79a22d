//! Values that cannot be decoded: the last known value stays, and error messages do not quote them.

use super::*;

#[test]
fn an_undecodable_value_is_named_and_leaves_what_was_known() {
    let mut state = state(vec![(Topic::Servers, record("b", B, 2))]);
    let garbage = Event::Apply(item("b", "k8s:enc:aescbc", 9));
    take(&mut state, Topic::Servers, garbage.clone());
    assert_eq!(state.undecodables.count, 1);
    take(&mut state, Topic::Servers, garbage);
    assert_eq!(state.undecodables.count, 1, "it is the same value");
    assert_eq!(state.undecodables.list().len(), 1);
    let snapshot = state.compile(Some("a"), &view(&[]));
    assert_eq!(holders(&snapshot), (vec![], true));
}

#[test]
fn an_array_is_neither_a_record_nor_a_live_key_nor_an_api_service() {
    let mut state = state(vec![
        (Topic::Servers, record("b", B, 2)),
        (Topic::Live, live("b", B, true, 3)),
        api_service("v1.metrics.k8s.io", r#"{"service":{}}"#),
    ]);
    for (topic, key, array) in [
        (
            Topic::Servers,
            "b",
            r#"["10.0.0.2:6443",null,null,null,{}]"#,
        ),
        (Topic::Live, "b", r#"["10.0.0.2:6443",false,7]"#),
        (Topic::ApiServices, "v1.metrics.k8s.io", "[]"),
    ] {
        let event = Event::Apply(item(key, array, 9));
        let before = state.undecodables.count;
        take(&mut state, topic, event);
        assert_eq!(state.undecodables.count, before + 1, "{array}");
    }
    let snapshot = state.compile(Some("a"), &view(&[]));
    assert_eq!(holders(&snapshot), (vec!["b"], false));
    assert_eq!(state.custom().aggregated.len(), 1);
}

#[test]
fn what_is_said_of_an_undecodable_value_repeats_nothing_of_it() {
    let mut state = state(vec![]);
    for (topic, value) in [
        (
            Topic::Servers,
            r#"{"endpoint":"classified","resources":{}}"#,
        ),
        (
            Topic::Servers,
            r#"{"endpoint":{"classified":1},"resources":{}}"#,
        ),
        (
            Topic::Live,
            r#"{"endpoint":"10.0.0.2:1","initialized":"classified"}"#,
        ),
        (
            Topic::ApiServices,
            r#"{"kind":{"classified":"classified"}}"#,
        ),
        (Topic::StorageVersions, "classified"),
        (Topic::PeerEndpoints, "k8s\0classified"),
        (
            Topic::Leases(0),
            r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","spec":{"renewTime":"classified"}}"#,
        ),
    ] {
        let event = Event::Apply(item("x", value, 9));
        state.take((topic, event), Instant::now());
        let said = serde_json::to_string(&state.undecodables.list()).unwrap();
        assert!(
            said.contains(topic.name()) && !said.contains("classified"),
            "{said}"
        );
    }
}
