//! Servers that drain: watches from before every other history are sent there, and nothing else.

use super::*;

/// A server that drains, whose history begins at `start`.
fn draining(id: &str, start: i64, gvrs: &[GvrRef<'_>]) -> Server {
    Server {
        live: false,
        initialized: false,
        target: false,
        ready: false,
        draining: true,
        history_start: Some(start),
        ..peer(id, gvrs)
    }
}

/// B is a target that lists pods and autoscalers since 900; C and D drain, C lists pods since 100, D autoscalers since 50.
/// The local apiserver lists pods, since 1000.
fn rollout() -> Snapshot {
    let servers = vec![
        historian("b", Some(900)),
        draining("c", 100, &[PODS]),
        draining("d", 50, &[HPA]),
    ];
    snapshot(Some(&[PODS]), servers)
}

fn words(choice: &ServerChoice<'_>) -> String {
    match choice {
        ServerChoice::Local => "local".to_owned(),
        ServerChoice::Nowhere => "nowhere".to_owned(),
        ServerChoice::Peers(peers) => format!("{:?} {:?}", peers.indices, peers.since),
    }
}

#[test]
fn row_6_who_drains_is_asked_if_no_target_and_not_local_reaches_back() {
    let all = rollout();
    let (b, c, d) = ("[0] Some(950)", "[1] Some(500)", "[2] Some(50)");
    for (gvr, since, initialized, order) in [
        (PODS, 500, true, [c, "local", "[0] None"]),
        (PODS, 500, false, [c, "[0] None", "local"]),
        // The local apiserver does not list it.
        (HPA, 50, true, [d, "[0] None", "nowhere"]),
        // A target comes first.
        (PODS, 950, true, [b, "local", "[0] None"]),
    ] {
        let decision = resume(gvr, since, initialized, &all);
        assert_eq!(decision.row, Row::Resume, "{gvr:?} {since}");
        assert_eq!(decision.order.map(|choice| words(&choice)), order);
        assert_eq!(decision.no_such_resource, NoSuchResource::Doubt);
    }
    // Local history reaches, or none: D does not list pods.
    for since in [1000, 99, 60] {
        assert_eq!(resume(PODS, since, true, &all).row, Row::Local, "{since}");
    }
    assert_eq!(resume(HPA, 49, true, &all).row, Row::Peers);
}

#[test]
fn what_only_a_server_that_drains_lists_is_a_503_but_for_watches_that_it_has_the_history_of() {
    let servers = vec![draining("c", 100, &[RESIZE])];
    let all = snapshot(Some(&[PODS]), servers);
    let decision = resume(RESIZE, 100, true, &all);
    assert_eq!(words(&decision.order[0]), "[0] Some(100)");
    assert_eq!(resume(RESIZE, 99, true, &all).row, Row::Unreachable);
    assert_eq!(ask(RESIZE, true, &all).row, Row::Unreachable);
}

#[test]
fn who_drains_gets_nothing_else() {
    let all = rollout();
    let rerouted = RoutingInput {
        rerouted: true,
        ..watch(PODS, Some(500))
    };
    let off = Settings {
        rerouting: false,
        ..Settings::DEFAULT
    };
    let mut unsynced = all.clone();
    unsynced.synced = false;
    for (question, settings, snapshot) in [
        (watch(PODS, None), &Settings::DEFAULT, &all),
        (watch(HPA, None), &Settings::DEFAULT, &all),
        (watch(WIDGETS, None), &Settings::DEFAULT, &all),
        (watch(WIDGETS, Some(500)), &Settings::DEFAULT, &all),
        (watch(METRICS, Some(500)), &Settings::DEFAULT, &all),
        (rerouted, &Settings::DEFAULT, &all),
        (watch(PODS, Some(500)), &off, &all),
        (watch(PODS, Some(500)), &Settings::DEFAULT, &unsynced),
    ] {
        for initialized in [true, false] {
            let decision = decide(question, settings, local(initialized), snapshot, || false);
            assert_eq!(decision.last, ServerChoice::Nowhere);
            let is_target = |choice: &ServerChoice<'_>| match choice {
                ServerChoice::Peers(peers) => *peers.indices == [0],
                _ => true,
            };
            assert!(decision.order.iter().all(is_target), "{decision:?}");
        }
    }
    assert_eq!(all.targets, [0]);
}

#[test]
fn after_a_410_who_drains_is_asked_last() {
    let all = rollout();
    let last = |question| {
        let decision = after_expiry(question, &Settings::DEFAULT, local(true), &all).unwrap();
        words(&decision.last)
    };
    assert_eq!(last(watch(PODS, Some(500))), "[1] None");
    // Where the history of a custom resource begins is unknown everywhere.
    assert_eq!(last(watch(WIDGETS, Some(7))), "[1, 2] None");
}
