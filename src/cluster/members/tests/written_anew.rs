//! Values that are written anew and say the same as before.

use super::*;

/// An identity lease that says nothing but its revision anew.
fn annotated(revision: i64) -> Item {
    let (_, item) = lease("dead", "2026-01-01T00:00:00.000000Z");
    Item {
        mod_revision: revision,
        ..item
    }
}

fn seen_revision(state: &State) -> i64 {
    state.seen_leases().unwrap()[0].at.revision
}

#[test]
fn an_identity_lease_written_anew_is_told_with_its_newest_revision() {
    let mut state = state(vec![(Topic::Leases(0), annotated(5))]);
    let mut leases = |event| {
        let changes = state.take((Topic::Leases(0), event), 1, Instant::now());
        (changes.leases, seen_revision(&state))
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
