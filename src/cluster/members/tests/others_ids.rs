//! IDs that no Lease makes ours, and one that once was ours.

use super::*;

const C: &str = "10.0.0.3:6443";

#[test]
fn the_ids_of_servers_at_other_addresses_are_theirs() {
    let empty = ClusterState::new(OWN.parse().unwrap(), 1, TTL, GRACE);
    assert_eq!(empty.others_ids(), None, "etcd was not read");
    let of_b = json!({"endpoint": B, "initialized": true, "apiServerID": "of-b"});
    let state = state(vec![
        (Topic::Servers, record("a", "[::ffff:10.0.0.1]:6443", 2)),
        (Topic::Live, live("a", OWN, true, 3)),
        entry("of-a", OWN, 3),
        (Topic::Servers, record("dead", B, 2)),
        (Topic::Live, item("b", of_b.to_string(), 4)),
        entry("c", C, 5),
        lease("lease", "2026-01-01T00:00:00.000000Z"),
        storage_version("stored"),
    ]);
    let others = state.others_ids().unwrap();
    let all = |ids: std::collections::BTreeSet<String>| ids.into_iter().collect::<Vec<_>>();
    assert_eq!(all(others.proxied), ["b", "dead", "of-b"]);
    assert_eq!(all(others.native), ["c"]);
}

#[test]
fn a_record_under_a_former_id_hides_no_apiserver_of_this_id() {
    let mut messages = vec![(Topic::Servers, record("c", OWN, 2)), entry("c", C, 3)];
    let natives = |messages: &[(Topic, EtcdItem)]| {
        let state = state(messages.to_vec());
        native_peers(&state)
    };
    assert!(natives(&messages).is_empty());
    messages.push((Topic::Servers, record("a", OWN, 4)));
    assert_eq!(natives(&messages), ["c"]);
    let servers = compiled(messages).servers;
    assert!(servers[0].kind == ServerKind::Native && servers[0].live);
}
