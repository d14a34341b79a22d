//! The header names by which apiservers recognise users.

use super::*;

const KEY: &str = "extension-apiserver-authentication";

fn names(state: &ClusterState) -> bool {
    state
        .header_names()
        .is_some_and(|names| names.is_complete())
}

fn not_followed(state: &ClusterState) -> String {
    state.report()["notFollowed"].to_string()
}

#[test]
fn they_stay_while_etcd_tells_nothing_better_and_routes_do_not_depend_on_them() {
    let mut state = state(vec![]);
    assert!(state.synced() && !names(&state));
    let mut take = |event| state.take((Topic::HeaderNames, event), Instant::now());
    let data = json!({"requestheader-username-headers": r#"["X-Remote-User"]"#});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data}).to_string();
    assert!(!take(Event::Apply(item(KEY, map, 2))));
    assert!(!take(Event::Apply(item(KEY, "k8s:enc:aescbc", 4))));
    assert!(!take(Event::Forbidden));
    assert!(state.synced() && names(&state));
    assert_eq!(not_followed(&state), format!("[\"{KEY}\"]"));

    let mut take = |event| state.take((Topic::HeaderNames, event), Instant::now());
    take(Event::Init);
    take(Event::InitDone(5));
    assert!(state.synced() && !names(&state));
    assert_eq!(not_followed(&state), "[]");
}
