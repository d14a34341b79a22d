//! Proxies that were refused their server ID: they are live, but do not publish what they serve.

use super::*;

const TWIN: &str = "10.0.0.7:6443";

fn claim(id: &str, address: &str) -> (Topic, EtcdItem) {
    let name = format!("{id}/{address}");
    (Topic::Claims, item(&name, "", 9))
}

fn is_unknown(state: &ClusterState) -> bool {
    state.compile(Some("a"), &view(&[])).peer_unknown
}

/// B is known, and lives.
fn with(more: Vec<(Topic, EtcdItem)>) -> ClusterState {
    let mut messages = vec![
        (Topic::Servers, record("b", B, 2)),
        (Topic::Live, live("b", B, true, 3)),
    ];
    messages.extend(more);
    state(messages)
}

#[test]
fn while_somebody_claims_an_id_that_another_has_nobody_knows_everything() {
    for id in ["a", "b", "gone"] {
        let mut state = with(vec![]);
        assert!(!is_unknown(&state));
        let (_, claim) = claim(id, TWIN);
        let key = claim.key.clone();
        assert!(take(&mut state, Topic::Claims, Event::Apply(claim.clone())));
        assert!(is_unknown(&state), "{id}");
        let again = Event::Apply(claim);
        assert!(!take(&mut state, Topic::Claims, again), "nothing new");
        assert!(take(&mut state, Topic::Claims, Event::Delete(key)));
        assert!(!is_unknown(&state), "{id}");
    }
}

#[test]
fn whoever_has_a_live_key_tells_what_it_serves_whatever_it_claimed() {
    for address in [B, "[::ffff:10.0.0.2]:6443", OWN] {
        assert!(!is_unknown(&with(vec![claim("b", address)])), "{address}");
    }
}

#[test]
fn a_claim_that_cannot_be_read_is_somebodys() {
    let claims = [claim("b", "nowhere"), (Topic::Claims, item("b", "", 9))];
    for claim in claims {
        assert!(is_unknown(&with(vec![claim])));
    }
}

#[test]
fn a_claim_that_an_etcd_deletes_in_its_first_instant_back_counts_for_another_ttl() {
    let mut state = with(vec![]);
    let start = Instant::now();
    let (topic, claim) = claim("b", TWIN);
    let key = claim.key.clone();
    state.take((Topic::Live, Event::Progress(9)), start);
    state.take((topic, Event::Apply(claim)), start);
    let back = start + 4 * TTL;
    state.take((topic, Event::Delete(key)), back);
    assert!(is_unknown(&state));
    assert_eq!(state.next_expiry(), Some(back + TTL));
    assert!(state.expire(back + TTL));
    assert!(!is_unknown(&state));
}
