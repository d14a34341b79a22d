//! A model of a cluster with one watch, in which every order of steps is tried, up to a bound of each kind of step. Its client
//! gets each change of the resource once, in order, or its watch ends cleanly, and it misses nothing if it comes back. No
//! watch ends while a server is known that can go on with it.
//!
//! An error that is put into the model ([`Mutation`]) is found; without one nothing is.

mod client;
mod cluster;
mod hand_over;
mod search;
mod world;

use std::time::Instant;

use self::cluster::Kind::{self, Elsewhere, Older, Plain, Refuses};
use self::search::{Violation, search};
use self::world::{Bounds, Mutation, Setup, World};

/// More states than any of the searches has.
const MOST: usize = 100_000;

const BOUNDS: Bounds = Bounds {
    writes: 2,
    stops: 1,
    restarts: 0,
    restores: 0,
    compactions: 0,
    halves: 0,
    bookmarks: 0,
};

const RESTORES: Bounds = Bounds {
    writes: 3,
    restores: 1,
    ..BOUNDS
};

const SETUP: Setup = Setup {
    kinds: [Plain; 3],
    first: 0,
    from_anything: false,
    after_restore: false,
    bounds: BOUNDS,
    mutation: None,
    strict: false,
};

fn with(kinds: [Kind; 3], bounds: Bounds) -> Setup {
    Setup {
        kinds,
        bounds,
        ..SETUP
    }
}

/// Servers and faults that are tried together.
fn setups() -> [Setup; 9] {
    let on_the_wire = Bounds {
        halves: 1,
        bookmarks: 1,
        ..BOUNDS
    };
    let restarts = Bounds {
        restarts: 1,
        halves: 1,
        ..BOUNDS
    };
    let stops = Bounds {
        writes: 1,
        stops: 2,
        restarts: 1,
        ..BOUNDS
    };
    let compacts = Bounds {
        restarts: 1,
        compactions: 1,
        ..BOUNDS
    };
    let from_peer = |setup: Setup| Setup { first: 1, ..setup };
    [
        with([Plain, Elsewhere, Refuses], restarts),
        with([Plain, Plain, Older], on_the_wire),
        from_peer(with([Plain, Plain, Elsewhere], on_the_wire)),
        from_peer(with([Plain, Plain, Refuses], stops)),
        with([Plain, Elsewhere, Refuses], RESTORES),
        with([Plain, Elsewhere, Older], compacts),
        with([Elsewhere, Plain, Plain], stops),
        Setup {
            from_anything: true,
            ..with([Plain, Plain, Refuses], on_the_wire)
        },
        Setup {
            after_restore: true,
            ..with([Plain; 3], on_the_wire)
        },
    ]
}

#[test]
fn a_client_gets_each_change_once_or_comes_back_and_misses_nothing() {
    let begun = Instant::now();
    let mut states = 0;
    for setup in setups() {
        match search(&setup, World::new(&setup), MOST) {
            Ok(tried) => states += tried,
            Err(Violation { what, trace }) => panic!("{what}, after {trace:#?} with {setup:#?}"),
        }
    }
    println!("{states} states were tried in {:?}", begun.elapsed());
    assert!(states > 50_000, "{states}");
}

/// The search finds an error, by the shortest trace.
fn finds(mutation: Mutation, kinds: [Kind; 3], bounds: Bounds, says: &str) {
    let mutated = Setup {
        mutation: Some(mutation),
        ..with(kinds, bounds)
    };
    let found = search(&mutated, World::new(&mutated), MOST);
    let Violation { what, trace } = found.expect_err("nothing is found");
    println!("{what}, after {trace:?}");
    assert!(what.contains(says), "{what}, after {trace:#?}");
}

#[test]
fn a_position_that_is_one_too_high_is_found() {
    let says = r#"got (12, "a"), wanted Some((11, "a"))"#;
    finds(Mutation::PositionTooHigh, [Plain; 3], BOUNDS, says);
}

#[test]
fn a_revision_that_is_taken_for_whole_is_found() {
    let says = r#"got (12, "a"), wanted Some((11, "b"))"#;
    finds(Mutation::WholeRevision, [Plain; 3], BOUNDS, says);
}

#[test]
fn the_proof_of_another_server_is_found() {
    let kinds = [Plain, Elsewhere, Elsewhere];
    finds(Mutation::ProofOfAnother, kinds, BOUNDS, "wanted None");
}

#[test]
fn an_event_that_comes_twice_is_found() {
    let says = r#"got (11, "a"), wanted None"#;
    finds(Mutation::Twice, [Plain; 3], BOUNDS, says);
}

#[test]
fn a_second_hop_is_found() {
    let kinds = [Plain, Plain, Elsewhere];
    let bounds = Bounds { stops: 2, ..BOUNDS };
    finds(Mutation::SecondHop, kinds, bounds, "wanted None");
}

#[test]
fn a_history_from_before_a_restore_is_found() {
    finds(Mutation::RestoreForgotten, [Plain; 3], RESTORES, "wanted");
}

#[test]
fn half_an_event_that_passes_is_found() {
    let bounds = Bounds {
        halves: 1,
        ..BOUNDS
    };
    finds(Mutation::HalfFrame, [Plain; 3], bounds, "no event");
}

#[test]
fn an_older_server_that_is_asked_is_found() {
    let kinds = [Plain, Older, Older];
    finds(Mutation::OlderServer, kinds, BOUNDS, "foreign");
}

#[test]
fn a_last_bookmark_that_etcd_does_not_prove_is_found() {
    let kinds = [Plain, Refuses, Refuses];
    finds(Mutation::NewestBookmark, kinds, BOUNDS, "would never get");
}

#[test]
fn a_last_bookmark_from_another_history_is_found() {
    let kinds = [Plain, Refuses, Refuses];
    finds(
        Mutation::BookmarkOfBefore,
        kinds,
        RESTORES,
        "would never get",
    );
}

#[test]
fn a_restore_between_the_proof_and_the_question_is_found() {
    finds(Mutation::OneLook, [Plain; 3], RESTORES, "wanted");
}

#[test]
fn a_watch_that_stays_and_waits_for_what_another_server_did_not_send_is_found() {
    let kinds = [Plain, Refuses, Refuses];
    finds(Mutation::AskedInVain, kinds, BOUNDS, "is left");
}

/// A server stops between two objects of one transaction, and no other can go on. So it is without the proxy.
#[test]
fn a_clean_end_within_a_revision_is_the_gap_that_is_left() {
    let setup = Setup {
        strict: true,
        ..with([Plain, Refuses, Refuses], BOUNDS)
    };
    let found = search(&setup, World::new(&setup), MOST);
    let Violation { what, trace } = found.expect_err("nothing is found");
    assert!(
        what.contains(r#"at 11 without (11, "b")"#),
        "{what}, after {trace:#?}"
    );
}
