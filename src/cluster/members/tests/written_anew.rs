//! Values that are rewritten without a change.

use super::*;

/// An identity Lease of which only the revision changes.
fn annotated(revision: i64) -> EtcdItem {
    let (_, item) = lease("dead", "2026-01-01T00:00:00.000000Z");
    EtcdItem {
        mod_revision: revision,
        ..item
    }
}

fn seen_revision(state: &ClusterState) -> i64 {
    state.named_leases().unwrap()[0].revision
}

#[test]
fn an_identity_lease_written_anew_is_told_with_its_newest_revision() {
    let mut state = state(vec![(Topic::Leases(0), annotated(5))]);
    let mut leases = |event| {
        state.take((Topic::Leases(0), event), Instant::now());
        let told = std::mem::take(&mut state.leases_changed);
        (told, seen_revision(&state))
    };
    assert_eq!(leases(Event::Apply(annotated(6))), (true, 6));
    assert_eq!(leases(Event::Init), (false, 6));
    assert_eq!(leases(Event::InitApply(annotated(7))), (false, 6));
    assert_eq!(leases(Event::InitDone(7)), (true, 7));
    let others = r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","spec":{}}"#;
    leases(Event::Apply(item("scheduler", others, 8)));
    let renewed = leases(Event::Apply(item("scheduler", others, 9)));
    assert_eq!(renewed, (false, 7), "nobody waits for those");
}

#[test]
fn a_record_written_anew_is_still_the_one_that_the_live_key_means() {
    let mut state = state(vec![
        (Topic::Servers, record("b", B, 2)),
        (Topic::Live, live("b", B, true, 3)),
    ]);
    for (event, what) in [
        (Event::Apply(record("b", B, 9)), "written"),
        (Event::Init, "listed"),
        (Event::InitApply(record("b", B, 12)), "listed"),
        (Event::InitDone(12), "listed"),
    ] {
        take(&mut state, Topic::Servers, event);
        let snapshot = state.compile(Some("a"), &view(&[]));
        assert!(
            !snapshot.peer_unknown && snapshot.servers[0].known,
            "{what}"
        );
    }
}

#[test]
fn a_record_that_a_live_key_waits_for_is_a_change_whatever_it_says() {
    let later = format!(r#"{{"endpoint":"{B}","initialized":true,"recordRevision":9}}"#);
    let waiting = || {
        let later = item("b", later.as_str(), 10);
        state(vec![
            (Topic::Servers, record("b", B, 2)),
            (Topic::Live, later),
        ])
    };
    let mut written = waiting();
    assert!(written.compile(Some("a"), &view(&[])).peer_unknown);
    let apply = Event::Apply(record("b", B, 9));
    assert!(take(&mut written, Topic::Servers, apply));
    let mut listed = waiting();
    take(&mut listed, Topic::Servers, Event::Init);
    take(
        &mut listed,
        Topic::Servers,
        Event::InitApply(record("b", B, 9)),
    );
    assert!(take(&mut listed, Topic::Servers, Event::InitDone(9)));
    for state in [written, listed] {
        assert!(!state.compile(Some("a"), &view(&[])).peer_unknown);
    }
}

/// The servers that requests may go to.
fn reached(state: &ClusterState) -> Vec<String> {
    let snapshot = state.compile(Some("a"), &view(&[]));
    let targets = snapshot.servers.iter().filter(|server| server.target);
    targets.map(|server| server.id.to_string()).collect()
}

#[test]
fn of_two_servers_at_one_address_the_one_that_renews_its_key_is_reached() {
    let key = |topic, id: &str, revision| match topic {
        Topic::Live => live(id, B, true, revision),
        _ => entry(id, B, revision).1,
    };
    for topic in [Topic::Live, Topic::PeerEndpoints] {
        let mut state = state(vec![
            (topic, key(topic, "b", 3)),
            (topic, key(topic, "c", 4)),
        ]);
        assert_eq!(reached(&state), ["c"], "{topic:?}");
        assert!(take(&mut state, topic, Event::Apply(key(topic, "b", 5))));
        assert_eq!(reached(&state), ["b"], "{topic:?}");
    }
}

#[test]
fn a_server_that_renews_its_key_takes_the_address_of_one_whose_key_is_suspended() {
    let start = Instant::now();
    let back = start + 4 * TTL;
    let mut state = state(vec![entry("b", B, 3), entry("c", B, 4)]);
    state.take((Topic::Live, Event::Progress(4)), start);
    state.take((Topic::Live, Event::Progress(9)), back);
    let delete = Event::Delete("c".into());
    state.take((Topic::PeerEndpoints, delete), back);
    assert_eq!(reached(&state), ["c"]);
    let (topic, renewed) = entry("b", B, 9);
    assert!(state.take((topic, Event::Apply(renewed)), back));
    assert_eq!(reached(&state), ["b"]);
}
