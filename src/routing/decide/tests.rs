mod draining;
mod versions;

use std::sync::Arc;

use super::*;
use crate::kube::gvr::{Custom, Pair, ServedSet, defined};
use crate::routing::table::Server;

const HPA: GvrRef<'_> = GvrRef {
    group: "autoscaling",
    version: "v1",
    resource: "horizontalpodautoscalers",
    subresource: "",
};
const PODS: GvrRef<'_> = GvrRef {
    group: "",
    version: "v1",
    resource: "pods",
    subresource: "",
};
const RESIZE: GvrRef<'_> = GvrRef {
    subresource: "resize",
    ..PODS
};
const WIDGETS: GvrRef<'_> = GvrRef {
    group: "example.com",
    version: "v1",
    resource: "widgets",
    subresource: "",
};
const METRICS: GvrRef<'_> = GvrRef {
    group: "metrics.k8s.io",
    version: "v1beta1",
    resource: "pods",
    subresource: "",
};

fn served(gvrs: &[GvrRef<'_>]) -> ServedSet {
    gvrs.iter().map(|gvr| gvr.owned()).collect()
}

/// A peer that requests can be sent to.
fn peer(id: &str, gvrs: &[GvrRef<'_>]) -> Server {
    Server {
        endpoint: "10.0.0.2:6443".parse().unwrap(),
        served: Some(Arc::new(served(gvrs))),
        ..Server::peer(id)
    }
}

fn snapshot(local: Option<&[GvrRef<'_>]>, servers: Vec<Server>) -> Snapshot {
    let custom = Custom {
        definitions: [(
            Pair("example.com".into(), "widgets".into()),
            defined(&["v1"]),
        )]
        .into(),
        aggregated: [Pair("metrics.k8s.io".into(), "v1beta1".into())].into(),
    };
    Snapshot::new(true, servers, local.map(served).as_ref(), Arc::new(custom))
}

/// Any of these servers.
fn peers(indices: &[usize]) -> ServerChoice<'_> {
    ServerChoice::Peers(Peers::any(indices))
}

fn local(initialized: bool) -> LocalServer {
    LocalServer {
        epoch: 1,
        initialized,
        history_start: 1000,
    }
}

/// With the default settings, and a state that is current.
fn decided<'s>(
    question: RoutingInput<'_>,
    initialized: bool,
    snapshot: &'s Snapshot,
) -> Decision<'s> {
    let local = local(initialized);
    decide(question, &Settings::DEFAULT, local, snapshot, || false)
}

fn ask<'s>(gvr: GvrRef<'_>, initialized: bool, snapshot: &'s Snapshot) -> Decision<'s> {
    let question = RoutingInput {
        resource: Some(gvr),
        rerouted: false,
        resume: None,
        wanted: None,
    };
    decided(question, initialized, snapshot)
}

#[track_caller]
fn expect(decision: &Decision<'_>, row: Row, to: &ServerChoice<'_>, passes: bool) {
    let no_such_resource = match passes {
        true if row == Row::Nobody => NoSuchResource::IfProved,
        true => NoSuchResource::Pass,
        false => NoSuchResource::Doubt,
    };
    assert_eq!(
        (decision.row, &decision.order[0], decision.no_such_resource),
        (row, to, no_such_resource)
    );
}

#[test]
fn row_1_what_is_not_a_resource_is_local_whatever_is_known() {
    let question = RoutingInput {
        resource: None,
        rerouted: false,
        resume: None,
        wanted: None,
    };
    for (snapshot, initialized) in [
        (Snapshot::default(), false),
        (snapshot(Some(&[PODS]), vec![]), true),
    ] {
        expect(
            &decide(
                question,
                &Settings::DEFAULT,
                local(initialized),
                &snapshot,
                || true,
            ),
            Row::NotAResource,
            &ServerChoice::Local,
            true,
        );
    }
}

#[test]
fn row_2_a_rerouted_request_is_never_rerouted_again() {
    let question = RoutingInput {
        resource: Some(HPA),
        rerouted: true,
        resume: None,
        wanted: None,
    };
    for snapshot in [
        Snapshot::default(),
        snapshot(Some(&[PODS]), vec![peer("b", &[HPA])]),
    ] {
        for settings in [
            Settings::DEFAULT,
            Settings {
                rerouting: false,
                ..Settings::DEFAULT
            },
        ] {
            expect(
                &decide(question, &settings, local(true), &snapshot, || false),
                Row::Rerouted,
                &ServerChoice::Local,
                false,
            );
            expect(
                &decide(question, &settings, local(false), &snapshot, || false),
                Row::Rerouted,
                &ServerChoice::Nowhere,
                false,
            );
        }
    }
}

#[test]
fn row_3_switched_off_everything_is_local_and_untouched() {
    let settings = Settings {
        rerouting: false,
        ..Settings::DEFAULT
    };
    let question = RoutingInput {
        resource: Some(HPA),
        rerouted: false,
        resume: None,
        wanted: None,
    };
    let snapshot = snapshot(Some(&[PODS]), vec![peer("b", &[HPA])]);
    expect(
        &decide(question, &settings, local(true), &snapshot, || false),
        Row::Disabled,
        &ServerChoice::Local,
        true,
    );
}

#[test]
fn row_4_without_etcds_state_nothing_can_be_known() {
    let unsynced = Snapshot::default();
    let question = RoutingInput {
        resource: Some(PODS),
        rerouted: false,
        resume: None,
        wanted: None,
    };
    expect(
        &decide(question, &Settings::DEFAULT, local(true), &unsynced, || {
            false
        }),
        Row::Unsynced,
        &ServerChoice::Nowhere,
        false,
    );
    let settings = Settings {
        unsynced: Unsynced::ServeLocal,
        ..Settings::DEFAULT
    };
    expect(
        &decide(question, &settings, local(true), &unsynced, || false),
        Row::Unsynced,
        &ServerChoice::Local,
        false,
    );
}

#[test]
fn row_5_what_a_server_lists_as_its_own_is_not_custom_whatever_crds_and_api_services_are_named() {
    let absent = Server {
        live: false,
        initialized: false,
        target: false,
        ..peer("b", &[WIDGETS, METRICS])
    };
    let unreachable = snapshot(Some(&[PODS]), vec![absent]);
    let elsewhere = snapshot(Some(&[PODS]), vec![peer("b", &[WIDGETS, METRICS])]);
    let here = snapshot(Some(&[WIDGETS, METRICS]), vec![peer("b", &[PODS])]);
    for gvr in [WIDGETS, METRICS] {
        for (snapshot, row) in [
            (&unreachable, Row::Unreachable),
            (&elsewhere, Row::Peers),
            (&here, Row::Local),
        ] {
            let decision = ask(gvr, true, snapshot);
            assert_eq!(decision.row, row);
            assert_eq!(decision.no_such_resource, NoSuchResource::Doubt);
        }
    }
}

#[test]
fn row_11_what_the_local_server_listed_before_its_restart_is_not_custom() {
    let mut restarted = snapshot(None, vec![peer("b", &[PODS])]);
    assert_eq!(ask(WIDGETS, false, &restarted).row, Row::Custom);
    restarted.own_record = Some(Arc::new(served(&[WIDGETS])));
    let decision = ask(WIDGETS, false, &restarted);
    expect(&decision, Row::Unknown, &ServerChoice::Local, false);
}

#[test]
fn row_10_what_only_an_absent_server_has_is_not_the_crds_of_a_local_server_whose_set_is_unknown() {
    for named_alike in [WIDGETS, METRICS] {
        let absent = Server {
            target: false,
            ..peer("b", &[named_alike, HPA])
        };
        let mut snapshot = snapshot(None, vec![absent]);
        let row = |gvr, snapshot: &Snapshot| ask(gvr, true, snapshot).row;
        assert_eq!(row(named_alike, &snapshot), Row::Unreachable);
        assert_eq!(row(HPA, &snapshot), Row::Unknown);
        // Its own record says that it served it itself.
        snapshot.own_record = Some(Arc::new(served(&[named_alike])));
        assert_eq!(row(named_alike, &snapshot), Row::Unknown);
    }
}

#[test]
fn row_12_another_version_of_a_custom_resource_is_nobodys() {
    let alone = snapshot(Some(&[PODS]), vec![peer("b", &[PODS])]);
    let other = GvrRef {
        version: "v999",
        ..WIDGETS
    };
    expect(
        &ask(other, true, &alone),
        Row::Nobody,
        &ServerChoice::Local,
        true,
    );
}

/// A CRD may have the name of a built-in resource.
#[test]
fn row_5_a_custom_resource_may_be_what_a_server_serves_of_which_nothing_is_known() {
    let mut unread = snapshot(Some(&[PODS]), vec![peer("b", &[PODS])]);
    unread.peer_unknown = true;
    let doubted = |gvr| ask(gvr, true, &unread).no_such_resource == NoSuchResource::Doubt;
    assert!(doubted(METRICS) && !doubted(WIDGETS));
}

#[test]
fn row_5_custom_resources_and_aggregated_apis_are_everywhere() {
    let with_peer = snapshot(Some(&[PODS]), vec![peer("b", &[PODS])]);
    let alone = snapshot(Some(&[PODS]), vec![]);
    for gvr in [
        WIDGETS,
        GvrRef {
            subresource: "status",
            ..WIDGETS
        },
        METRICS,
    ] {
        let decision = ask(gvr, true, &with_peer);
        assert_eq!(
            (decision.row, &decision.order[0]),
            (Row::Custom, &ServerChoice::Local)
        );
        assert_eq!(decision.order[1], ServerChoice::Peers(Peers::any(&[0])));
        assert_eq!(decision.no_such_resource, NoSuchResource::IfUnanimous);
        expect(
            &ask(gvr, true, &alone),
            Row::Custom,
            &ServerChoice::Local,
            true,
        );
        expect(
            &ask(gvr, false, &with_peer),
            Row::Custom,
            &ServerChoice::Peers(Peers::any(&[0])),
            false,
        );
        expect(
            &ask(gvr, false, &alone),
            Row::Custom,
            &ServerChoice::Local,
            false,
        );
    }
}

#[test]
fn row_7_what_an_initialized_local_server_lists_is_local() {
    let snapshot = snapshot(Some(&[PODS]), vec![peer("b", &[PODS])]);
    expect(
        &ask(PODS, true, &snapshot),
        Row::Local,
        &ServerChoice::Local,
        false,
    );
}

#[test]
fn row_8_what_only_peers_list_goes_to_any_of_them() {
    let snapshot = snapshot(
        Some(&[PODS]),
        vec![peer("b", &[HPA]), peer("c", &[PODS]), peer("d", &[HPA])],
    );
    expect(
        &ask(HPA, true, &snapshot),
        Row::Peers,
        &peers(&[0, 2]),
        false,
    );
}

#[test]
fn row_8_peers_serve_what_a_starting_local_server_lists() {
    let snapshot = snapshot(Some(&[PODS]), vec![peer("b", &[PODS])]);
    expect(
        &ask(PODS, false, &snapshot),
        Row::Peers,
        &peers(&[0]),
        false,
    );
}

#[test]
fn row_8_a_subresource_is_a_resource_of_its_own() {
    let snapshot = snapshot(Some(&[PODS]), vec![peer("b", &[PODS, RESIZE])]);
    assert_eq!(ask(RESIZE, true, &snapshot).row, Row::Peers);
    assert_eq!(ask(PODS, true, &snapshot).row, Row::Local);
}

#[test]
fn row_9_a_starting_local_server_is_better_than_none() {
    let snapshot = snapshot(Some(&[PODS]), vec![]);
    expect(
        &ask(PODS, false, &snapshot),
        Row::LocalUninitialized,
        &ServerChoice::Local,
        false,
    );
}

#[test]
fn row_10_unreachable_is_not_gone() {
    let dead = Server {
        live: false,
        initialized: false,
        target: false,
        ..peer("b", &[HPA])
    };
    let starting = Server {
        initialized: false,
        target: false,
        ..peer("b", &[HPA])
    };
    let at_our_address = Server {
        target: false,
        ..peer("b", &[HPA])
    };
    for server in [dead, starting, at_our_address] {
        let snapshot = snapshot(Some(&[PODS]), vec![server]);
        expect(
            &ask(HPA, true, &snapshot),
            Row::Unreachable,
            &ServerChoice::Nowhere,
            false,
        );
    }
}

#[test]
fn row_11_absence_is_not_proved_while_something_is_unknown() {
    let local_unknown = snapshot(None, vec![peer("b", &[PODS])]);
    expect(
        &ask(HPA, true, &local_unknown),
        Row::Unknown,
        &ServerChoice::Local,
        false,
    );
    let peer_unknown = snapshot(
        Some(&[PODS]),
        vec![Server {
            known: false,
            ..peer("b", &[PODS])
        }],
    );
    expect(
        &ask(HPA, true, &peer_unknown),
        Row::Unknown,
        &ServerChoice::Local,
        false,
    );
    let stale = snapshot(Some(&[PODS]), vec![peer("b", &[PODS])]);
    let question = RoutingInput {
        resource: Some(HPA),
        rerouted: false,
        resume: None,
        wanted: None,
    };
    expect(
        &decide(question, &Settings::DEFAULT, local(true), &stale, || true),
        Row::Unknown,
        &ServerChoice::Local,
        false,
    );
}

#[test]
fn row_11_an_initialized_local_server_is_asked_while_its_set_is_unknown() {
    let dead = Server {
        live: false,
        initialized: false,
        target: false,
        ..peer("b", &[HPA])
    };
    let snapshot = snapshot(None, vec![dead]);
    expect(
        &ask(HPA, true, &snapshot),
        Row::Unknown,
        &ServerChoice::Local,
        false,
    );
    expect(
        &ask(HPA, false, &snapshot),
        Row::Unreachable,
        &ServerChoice::Nowhere,
        false,
    );
}

#[test]
fn row_11_a_dead_server_whose_set_was_never_known_proves_nothing_either_way() {
    let dead = Server {
        served: None,
        known: false,
        live: false,
        initialized: false,
        target: false,
        ..peer("b", &[])
    };
    let snapshot = snapshot(Some(&[PODS]), vec![dead]);
    assert_eq!(ask(HPA, true, &snapshot).row, Row::Nobody);
}

#[test]
fn row_12_what_nobody_lists_is_the_local_servers_404() {
    let snapshot = snapshot(Some(&[PODS]), vec![peer("b", &[PODS])]);
    expect(
        &ask(HPA, true, &snapshot),
        Row::Nobody,
        &ServerChoice::Local,
        true,
    );
}

#[test]
fn freshness_is_asked_only_where_absence_is_to_be_proved() {
    let snapshot = snapshot(Some(&[PODS]), vec![peer("b", &[HPA])]);
    for gvr in [PODS, HPA, WIDGETS] {
        let question = RoutingInput {
            resource: Some(gvr),
            rerouted: false,
            resume: None,
            wanted: None,
        };
        decide(question, &Settings::DEFAULT, local(true), &snapshot, || {
            panic!("asked for {gvr:?}")
        });
    }
}

#[test]
fn who_is_asked_next_is_what_the_later_rows_say() {
    let both = snapshot(Some(&[PODS]), vec![peer("b", &[PODS, HPA])]);
    let then = |gvr, initialized| ask(gvr, initialized, &both).order[1];
    // Row 7, then row 8; row 8, then row 9.
    assert_eq!(then(PODS, true), peers(&[0]));
    assert_eq!(then(PODS, false), ServerChoice::Local);
    assert_eq!(then(HPA, true), ServerChoice::Nowhere);
    // Row 5, both ways.
    assert_eq!(then(WIDGETS, true), ServerChoice::Peers(Peers::any(&[0])));
    assert_eq!(then(WIDGETS, false), ServerChoice::Local);
}

#[test]
fn without_a_target_nobody_is_asked_next() {
    let gone = Server {
        target: false,
        live: false,
        ..peer("b", &[PODS, HPA])
    };
    let alone = snapshot(Some(&[PODS]), vec![gone]);
    for (gvr, initialized) in [
        (PODS, false),
        (HPA, true),
        (HPA, false),
        (WIDGETS, false),
        (WIDGETS, true),
    ] {
        let then = ask(gvr, initialized, &alone).order[1];
        assert_eq!(then, ServerChoice::Nowhere, "{gvr:?} {initialized}");
    }
    let then = ask(PODS, true, &alone).order[1];
    assert_eq!(then, peers(&[]));
}

#[test]
fn what_is_not_to_be_rerouted_has_nowhere_else_to_go() {
    let both = snapshot(Some(&[PODS]), vec![peer("b", &[PODS])]);
    let off = Settings {
        rerouting: false,
        ..Settings::DEFAULT
    };
    for (resource, rerouted, settings) in [
        (None, false, &Settings::DEFAULT),
        (Some(PODS), true, &Settings::DEFAULT),
        (Some(PODS), false, &off),
    ] {
        let question = RoutingInput {
            resource,
            rerouted,
            resume: None,
            wanted: None,
        };
        let decision = decide(question, settings, local(true), &both, || false);
        assert_eq!(
            (decision.order[0], decision.order[1]),
            (ServerChoice::Local, ServerChoice::Nowhere)
        );
    }
}

fn historian(id: &str, start: Option<i64>) -> Server {
    Server {
        history_start: start,
        ..peer(id, &[PODS, HPA])
    }
}

fn resume<'s>(
    gvr: GvrRef<'_>,
    since: i64,
    initialized: bool,
    snapshot: &'s Snapshot,
) -> Decision<'s> {
    let question = RoutingInput {
        resource: Some(gvr),
        rerouted: false,
        resume: Some(since),
        wanted: None,
    };
    decided(question, initialized, snapshot)
}

#[test]
fn row_6_a_watch_that_is_older_than_the_local_history_goes_where_the_history_is() {
    let servers = vec![historian("b", Some(500)), historian("c", Some(900))];
    let both = snapshot(Some(&[PODS]), servers);
    for since in [500, 999] {
        let decision = resume(PODS, since, true, &both);
        assert_eq!(decision.row, Row::Resume, "{since}");
        let ServerChoice::Peers(peers) = decision.order[0] else {
            panic!("{decision:?}");
        };
        assert_eq!((peers.indices, peers.since), (&[0, 1][..], Some(since)));
        assert_eq!(decision.order[1], ServerChoice::Local);
        assert_eq!(decision.no_such_resource, NoSuchResource::Doubt);
    }
    // A history that the local server or no server has makes no difference.
    for since in [1, 499, 1000, i64::MAX] {
        assert_eq!(resume(PODS, since, true, &both).row, Row::Local, "{since}");
    }
}

#[test]
fn row_6_among_peers_the_one_with_the_history_is_asked_first() {
    let servers = vec![historian("b", Some(500)), historian("c", None)];
    let both = snapshot(Some(&[PODS]), servers);
    let decision = resume(HPA, 700, true, &both);
    let all = peers(&[0, 1]);
    assert_eq!(decision.order[1], all);
    let ServerChoice::Peers(all) = all else {
        panic!("{all:?}");
    };
    let since = Some(700);
    assert_eq!(
        decision.order[0],
        ServerChoice::Peers(Peers { since, ..all })
    );
    // The history of a local server that is not initialized does not count.
    assert_eq!(resume(PODS, 5000, false, &both).row, Row::Resume);
}

fn expired(question: RoutingInput<'_>, initialized: bool, snapshot: &Snapshot) -> [String; 3] {
    let decision = after_expiry(question, &Settings::DEFAULT, local(initialized), snapshot);
    let decision = decision.unwrap();
    assert_eq!(
        (decision.row, decision.no_such_resource),
        (Row::Resume, NoSuchResource::Doubt)
    );
    decision.order.map(|choice| match choice {
        ServerChoice::Local => "local".to_owned(),
        ServerChoice::Nowhere => "nowhere".to_owned(),
        ServerChoice::Peers(Peers { ready: true, .. }) => "only who is ready".to_owned(),
        ServerChoice::Peers(Peers {
            indices,
            wanted,
            since,
            ready: false,
        }) => {
            let wanted = wanted.map(|wanted| format!(" {wanted:?}"));
            let since = since.map(|since| format!(" since {since}"));
            let [wanted, since] = [wanted, since].map(Option::unwrap_or_default);
            format!("{indices:?}{wanted}{since}")
        }
    })
}

fn watch(gvr: GvrRef<'_>, since: Option<i64>) -> RoutingInput<'_> {
    RoutingInput {
        resource: Some(gvr),
        rerouted: false,
        resume: since,
        wanted: None,
    }
}

#[test]
fn after_a_410_known_histories_come_first_then_all_that_list_the_resource_then_local() {
    let absent = Server {
        target: false,
        ..historian("d", Some(1))
    };
    let other = Server {
        history_start: Some(1),
        ..peer("e", &[HPA])
    };
    let servers = vec![
        historian("b", Some(500)),
        historian("c", None),
        absent,
        other,
    ];
    let all = snapshot(Some(&[PODS]), servers);
    assert_eq!(
        expired(watch(PODS, Some(700)), true, &all),
        ["[0, 1] since 700", "[0, 1]", "local"]
    );
    let uninitialized = expired(watch(PODS, Some(700)), false, &all);
    assert_eq!(uninitialized[2], "nowhere");
    // The local apiserver does not list it.
    let of_others = expired(watch(HPA, Some(700)), true, &all);
    assert_eq!(of_others, ["[0, 1, 3] since 700", "[0, 1, 3]", "nowhere"]);
    let versioned = RoutingInput {
        wanted: Some(Wanted::Newest),
        ..watch(PODS, Some(700))
    };
    assert_eq!(expired(versioned, true, &all)[1], "[0, 1] Newest");
}

#[test]
fn after_a_410_any_target_may_have_the_history_of_a_custom_resource() {
    let servers = vec![historian("b", Some(500)), historian("c", None)];
    let both = snapshot(None, servers);
    assert_eq!(
        expired(watch(WIDGETS, Some(7)), true, &both),
        ["[0, 1] since 7", "[0, 1]", "local"]
    );
    assert_eq!(expired(watch(WIDGETS, Some(7)), false, &both)[2], "nowhere");
}

#[test]
fn a_410_passes_if_others_may_not_be_asked() {
    let both = snapshot(Some(&[PODS]), vec![historian("b", Some(5))]);
    let mut unsynced = both.clone();
    unsynced.synced = false;
    let off = Settings {
        rerouting: false,
        ..Settings::DEFAULT
    };
    let rerouted = RoutingInput {
        rerouted: true,
        ..watch(PODS, Some(7))
    };
    let unlisted = GvrRef {
        resource: "unlisted",
        ..PODS
    };
    for (question, settings, snapshot) in [
        (watch(PODS, None), &Settings::DEFAULT, &both),
        (rerouted, &Settings::DEFAULT, &both),
        (watch(unlisted, Some(7)), &Settings::DEFAULT, &both),
        (watch(PODS, Some(7)), &off, &both),
        (watch(PODS, Some(7)), &Settings::DEFAULT, &unsynced),
    ] {
        assert_eq!(
            after_expiry(question, settings, local(true), snapshot),
            None
        );
    }
    assert!(after_expiry(watch(PODS, Some(7)), &Settings::DEFAULT, local(true), &both).is_some());
}

#[test]
fn row_6_needs_a_history_that_is_known() {
    let servers = vec![historian("b", None)];
    let unknown = snapshot(Some(&[PODS]), servers);
    assert_eq!(resume(PODS, 5, true, &unknown).row, Row::Local);
    let custom = snapshot(Some(&[PODS]), vec![historian("b", Some(1))]);
    assert_eq!(resume(WIDGETS, 5, true, &custom).row, Row::Custom);
}
