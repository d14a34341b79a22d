//! Live keys that vanish, with and without a gap in etcd's answers before.

use super::*;

fn targets(state: &ClusterState) -> usize {
    state.compile(Some("a"), &view(&[])).targets.len()
}

#[test]
fn live_keys_that_all_vanish_after_a_gap_are_still_targets_for_another_ttl() {
    let mut state = state(vec![(Topic::Servers, record("b", B, 2))]);
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let apply = Event::Apply(live("b", B, true, 3));
    state.take((Topic::Live, apply), at(1));
    let delete = Event::Delete("b".into());
    state.take((Topic::Live, delete), at(61));
    assert_eq!(targets(&state), 1);
    assert_eq!(state.next_expiry(), Some(at(76)));
    state.expire(at(76));
    assert_eq!(targets(&state), 0);
}

#[test]
fn live_keys_that_a_new_list_after_a_gap_lacks_are_still_targets_until_refused() {
    let mut state = state(vec![(Topic::Servers, record("b", B, 2))]);
    let later = Instant::now() + Duration::from_secs(60);
    let apply = Event::Apply(live("b", B, true, 3));
    state.take((Topic::Live, apply), Instant::now());
    state.take((Topic::Live, Event::Init), later);
    state.take((Topic::Live, Event::InitDone(9)), later);
    assert_eq!(targets(&state), 1);
    assert!(state.refused(B.parse().unwrap()));
    assert_eq!(targets(&state), 0);
}

#[test]
fn a_live_key_that_vanishes_while_etcd_answers_is_gone_at_once() {
    let mut state = state(vec![
        (Topic::Servers, record("b", B, 2)),
        (Topic::Live, live("b", B, true, 3)),
    ]);
    take(&mut state, Topic::Live, Event::Delete("b".into()));
    assert_eq!(targets(&state), 0);
}

#[test]
fn what_a_restored_etcd_has_lost_is_forgotten_but_for_who_lives_until_another_ttl() {
    let mut state = state(vec![
        (Topic::Servers, record("b", B, 2)),
        (Topic::Servers, record("lost", "10.0.0.3:6443", 90)),
        (Topic::Live, live("b", B, true, 95)),
    ]);
    take(&mut state, Topic::Live, Event::Progress(100));
    for (topic, items) in [
        (Topic::Servers, vec![record("b", B, 2)]),
        (Topic::Live, vec![]),
    ] {
        take(&mut state, topic, Event::OtherHistory);
        take(&mut state, topic, Event::Init);
        for item in items {
            take(&mut state, topic, Event::InitApply(item));
        }
        take(&mut state, topic, Event::InitDone(60));
    }
    assert_eq!(state.revision(), 60);
    let snapshot = state.compile(Some("a"), &view(&[]));
    assert_eq!(holders(&snapshot), (vec!["b"], false));
    assert_eq!(snapshot.servers.len(), 1);
    assert!(state.expire(Instant::now() + TTL));
    let snapshot = state.compile(Some("a"), &view(&[]));
    assert_eq!(holders(&snapshot), (vec![], true));
}

/// A native peer whose entry is known, and live keys that are heard of until then.
fn with_a_native_peer(start: Instant) -> ClusterState {
    let mut state = state(vec![entry("c", B, 4)]);
    state.take((Topic::PeerEndpoints, Event::Progress(4)), start);
    state.take((Topic::Live, Event::Progress(4)), start);
    state
}

#[test]
fn an_entry_that_vanishes_before_live_keys_are_heard_of_again_is_still_a_target_for_another_ttl() {
    let start = Instant::now();
    let mut state = with_a_native_peer(start);
    let back = start + 4 * TTL;
    let delete = Event::Delete("c".into());
    state.take((Topic::PeerEndpoints, delete), back);
    assert_eq!(targets(&state), 1);
    state.take((Topic::Live, Event::Progress(9)), back);
    assert_eq!(targets(&state), 1);
    state.expire(back + TTL);
    assert_eq!(targets(&state), 0);
}

#[test]
fn an_entry_whose_watch_comes_back_long_after_that_of_live_keys_is_still_a_target() {
    let start = Instant::now();
    let mut state = with_a_native_peer(start);
    let back = start + 4 * TTL;
    for third in 0..9 {
        let now = back + third * TTL / 3;
        state.take((Topic::Live, Event::Progress(9)), now);
    }
    let delete = Event::Delete("c".into());
    let late = back + 3 * TTL;
    state.take((Topic::PeerEndpoints, delete), late);
    assert_eq!(targets(&state), 1);
    assert_eq!(state.next_expiry(), Some(late + TTL));
}

#[test]
fn an_entry_that_vanishes_while_etcd_answers_is_gone_at_once_however_quiet_its_watch_was() {
    let start = Instant::now();
    let mut state = with_a_native_peer(start);
    for third in 1..4 {
        let now = start + third * TTL / 3;
        state.take((Topic::Live, Event::Progress(9)), now);
    }
    let delete = Event::Delete("c".into());
    state.take((Topic::PeerEndpoints, delete), start + TTL);
    assert_eq!(targets(&state), 0);
}
