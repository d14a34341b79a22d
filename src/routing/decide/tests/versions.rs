//! The rows where versions count: 7 and 8.

use proptest::prelude::*;

use super::*;
use crate::kube::version::KubernetesVersion;

fn version(text: &str) -> Option<KubernetesVersion> {
    text.parse().ok()
}

/// A peer that lists pods; one without a version if `of` is empty.
fn versioned(id: &str, of: &str) -> Server {
    Server {
        version: version(of),
        ..peer(id, &[PODS])
    }
}

/// The same with a local server of this version.
fn beside(local_version: Option<KubernetesVersion>, mut snapshot: Snapshot) -> Snapshot {
    snapshot.set_local_version(local_version);
    snapshot
}

/// A cluster in which peers with these versions list pods, and the local server is of version `local`.
fn cluster(local: &str, lists: bool, peers: &[&str]) -> Snapshot {
    let peers = peers.iter().enumerate();
    let peers = peers.map(|(index, of)| versioned(&index.to_string(), of));
    let own: &[GvrRef<'_>] = if lists { &[PODS] } else { &[] };
    beside(version(local), snapshot(Some(own), peers.collect()))
}

/// What a client wants that asks for a version.
fn named(text: &str) -> Option<Wanted> {
    version(text).map(Wanted::Version)
}

/// What a client wants that is of this version.
fn not_older(text: &str) -> Option<Wanted> {
    version(text).map(|version| Wanted::NotOlder {
        version,
        needed: None,
    })
}

fn question(gvr: GvrRef<'_>, wanted: Option<Wanted>) -> RoutingInput<'_> {
    RoutingInput {
        resource: Some(gvr),
        rerouted: false,
        resume: None,
        wanted,
    }
}

fn asked<'s>(wanted: Option<Wanted>, initialized: bool, snapshot: &'s Snapshot) -> Decision<'s> {
    decided(question(PODS, wanted), initialized, snapshot)
}

/// The versions of the servers to try, in order: `local` for the local server, `?` for an unknown version.
fn order(decision: &Decision<'_>, snapshot: &Snapshot) -> Vec<String> {
    let name = |server: Option<usize>| match server {
        None => "local".to_owned(),
        Some(index) => snapshot.servers[index]
            .version
            .map_or_else(|| "?".to_owned(), |version| version.to_string()),
    };
    walk(decision, snapshot).into_iter().map(name).collect()
}

/// The servers to try, in order; `None` is the local server.
fn walk(decision: &Decision<'_>, snapshot: &Snapshot) -> Vec<Option<usize>> {
    let mut walked = Vec::new();
    for place in &decision.order {
        let servers = match place {
            ServerChoice::Local => vec![None],
            ServerChoice::Nowhere => vec![],
            ServerChoice::Peers(peers) => {
                let servers = &snapshot.servers;
                let is_meant = |index: &usize| {
                    let since = peers
                        .since
                        .is_none_or(|since| servers[*index].reaches(since));
                    since && (servers[*index].ready || !peers.ready)
                };
                let mut indices: Vec<_> = peers.indices.iter().copied().filter(is_meant).collect();
                if let Some(wanted) = peers.wanted {
                    indices.sort_by_key(|index| {
                        let server = &servers[*index];
                        let yields = wanted.needs_ready() && !server.ready;
                        (yields, server.fit(wanted))
                    });
                }
                indices.into_iter().map(Some).collect()
            }
        };
        for server in servers {
            if !walked.contains(&server) {
                walked.push(server);
            }
        }
    }
    walked
}

#[test]
fn row_7_the_local_server_is_asked_first_where_nobody_fits_better() {
    for (wanted, own, peers, expected) in [
        ("1.32", "1.32", &["1.32"][..], &["local", "1.32"][..]),
        (
            "1.32",
            "1.32",
            &["1.33", "1.31"],
            &["local", "1.33", "1.31"],
        ),
        (
            "1.32",
            "1.33",
            &["1.34", "1.33"],
            &["local", "1.33", "1.34"],
        ),
        ("1.32", "1.31", &["1.30", ""], &["local", "?", "1.30"]),
        ("1.32", "", &["1.31", ""], &["local", "?", "1.31"]),
        ("1.32", "", &[], &["local"]),
        ("2.0", "1.36", &["1.99"], &["local", "1.99"]),
        // A later local server comes before later peers.
        (
            "1.32",
            "1.34",
            &["1.33", "1.34", "1.31"],
            &["local", "1.33", "1.34", "1.31"],
        ),
        (
            "1.30",
            "1.36",
            &["1.35", "1.34", "1.29"],
            &["local", "1.34", "1.35", "1.29"],
        ),
    ] {
        let cluster = cluster(own, true, peers);
        let decision = asked(named(wanted), true, &cluster);
        assert_eq!(decision.row, Row::Local, "{wanted} {own} {peers:?}");
        assert_eq!(order(&decision, &cluster), expected, "{wanted} {own}");
    }
}

#[test]
fn row_8_who_fits_better_comes_before_the_local_server_and_the_others_after_it() {
    for (wanted, own, peers, expected) in [
        ("1.32", "1.31", &["1.32"][..], &["1.32", "local"][..]),
        ("1.32", "1.33", &["1.32"], &["1.32", "local"]),
        ("1.32", "", &["1.40", "1.31"], &["1.40", "local", "1.31"]),
        (
            "1.32",
            "1.33",
            &["1.34", "", "1.33", "1.32", "1.31", "1.32"],
            &["1.32", "1.32", "local", "1.33", "1.34", "?", "1.31"],
        ),
    ] {
        let cluster = cluster(own, true, peers);
        let decision = asked(named(wanted), true, &cluster);
        assert_eq!(decision.row, Row::Peers, "{wanted} {own} {peers:?}");
        assert_eq!(order(&decision, &cluster), expected, "{wanted} {own}");
        assert_eq!(decision.no_such_resource, NoSuchResource::Doubt);
    }
}

#[test]
fn row_8_among_peers_alone_the_nearest_that_is_not_older_is_first() {
    let cluster = cluster("1.32", false, &["1.31", "1.34", "", "1.33"]);
    for (wanted, expected) in [
        ("1.32", ["1.33", "1.34", "?", "1.31"]),
        ("1.31", ["1.31", "1.33", "1.34", "?"]),
        ("1.34", ["1.34", "?", "1.31", "1.33"]),
        ("1.35", ["?", "1.31", "1.33", "1.34"]),
    ] {
        let decision = asked(named(wanted), true, &cluster);
        assert_eq!(decision.row, Row::Peers);
        assert_eq!(order(&decision, &cluster), expected, "{wanted}");
        assert_eq!(
            (&decision.order[1], &decision.order[2]),
            (&ServerChoice::Nowhere, &ServerChoice::Nowhere)
        );
    }
}

#[test]
fn row_8_a_starting_local_server_is_last_whatever_its_version() {
    let cluster = cluster("1.32", true, &["1.31", "1.33"]);
    let decision = asked(named("1.32"), false, &cluster);
    assert_eq!(decision.row, Row::Peers);
    assert_eq!(order(&decision, &cluster), ["1.33", "1.31", "local"]);
}

#[test]
fn only_those_that_list_the_resource_and_can_be_reached_are_compared() {
    let gone = Server {
        target: false,
        live: false,
        ..versioned("gone", "1.32")
    };
    let other = Server {
        version: version("1.32"),
        ..peer("other", &[HPA])
    };
    let cluster = beside(version("1.31"), snapshot(Some(&[PODS]), vec![gone, other]));
    let decision = asked(named("1.32"), true, &cluster);
    assert_eq!(
        (decision.row, decision.order[0]),
        (Row::Local, ServerChoice::Local)
    );
}

#[test]
fn versions_do_not_count_in_other_rows() {
    let fitting = Server {
        version: version("1.32"),
        ..historian("b", Some(500))
    };
    let both = beside(version("1.31"), snapshot(Some(&[PODS]), vec![fitting]));
    let pods = question(PODS, named("1.32"));
    let off = Settings {
        rerouting: false,
        ..Settings::DEFAULT
    };
    let serve_local = Settings {
        unsynced: Unsynced::ServeLocal,
        ..Settings::DEFAULT
    };
    let unsynced = Snapshot::default();
    for (question, settings, snapshot) in [
        (
            RoutingInput {
                resource: None,
                ..pods
            },
            &Settings::DEFAULT,
            &both,
        ),
        (
            RoutingInput {
                rerouted: true,
                ..pods
            },
            &Settings::DEFAULT,
            &both,
        ),
        (pods, &off, &both),
        (pods, &serve_local, &unsynced),
        (question(WIDGETS, pods.wanted), &Settings::DEFAULT, &both),
        (question(RESIZE, pods.wanted), &Settings::DEFAULT, &both),
    ] {
        let decided = |question| decide(question, settings, local(true), snapshot, || false);
        let without = RoutingInput {
            wanted: None,
            ..question
        };
        assert_eq!(decided(question), decided(without), "{question:?}");
    }
    // Row 6: those that have the history are ordered.
    let resumed = RoutingInput {
        resume: Some(600),
        ..pods
    };
    let decision = decided(resumed, true, &both);
    let ServerChoice::Peers(peers) = decision.order[0] else {
        panic!("{decision:?}");
    };
    assert_eq!((decision.row, peers.since), (Row::Resume, Some(600)));
    assert_eq!(peers.wanted, pods.wanted);
}

#[test]
fn a_policy_makes_the_oldest_or_the_newest_first_and_falls_through_who_is_not_ready() {
    for (wanted, own, peers, expected) in [
        (
            Wanted::Oldest,
            "1.32",
            &["1.31", "1.33"][..],
            &["1.31", "local", "1.33"][..],
        ),
        (
            Wanted::Newest,
            "1.32",
            &["1.31", "1.33"],
            &["1.33", "local", "1.31"],
        ),
        (
            Wanted::Oldest,
            "1.31",
            &["1.31", "1.33"],
            &["local", "1.31", "1.33"],
        ),
        (
            Wanted::Newest,
            "1.33",
            &["1.31", "1.33"],
            &["local", "1.33", "1.31"],
        ),
        (
            Wanted::Oldest,
            "1.34",
            &["1.33", "1.31", ""],
            &["1.31", "1.33", "local", "?"],
        ),
        (
            Wanted::Newest,
            "1.30",
            &["1.33", "1.31", ""],
            &["1.33", "1.31", "local", "?"],
        ),
        (
            Wanted::Oldest,
            "",
            &["1.33", "1.31", ""],
            &["1.31", "1.33", "local", "?"],
        ),
        (
            Wanted::Newest,
            "",
            &["1.33", "1.31", ""],
            &["1.33", "1.31", "local", "?"],
        ),
        (Wanted::Newest, "1.30", &[""], &["local", "?"]),
    ] {
        let mut cluster = cluster(own, true, peers);
        let decision = asked(Some(wanted), true, &cluster);
        assert_eq!(
            order(&decision, &cluster),
            expected,
            "{wanted:?} {own} {peers:?}"
        );
        for server in &mut cluster.servers {
            server.ready = false;
        }
        let decision = asked(Some(wanted), true, &cluster);
        assert_eq!(
            decision.order[0],
            ServerChoice::Local,
            "nobody else is ready"
        );
    }
    let mut cluster = cluster("1.34", true, &["1.31", "1.32"]);
    cluster.servers[0].ready = false;
    let decision = asked(Some(Wanted::Oldest), true, &cluster);
    assert_eq!(order(&decision, &cluster), ["1.32", "local", "1.31"]);
}

#[test]
fn a_newer_client_goes_to_the_nearest_that_is_not_older_and_nobody_to_an_older_one() {
    for (wanted, own, peers, expected) in [
        (
            "1.36",
            "1.24",
            &["1.36", "1.24"][..],
            &["1.36", "local", "1.24"][..],
        ),
        (
            "1.35",
            "1.24",
            &["1.37", "1.36"],
            &["1.36", "1.37", "local"],
        ),
        ("1.36", "1.24", &["1.30"], &["local", "1.30"]),
        ("1.36", "1.37", &["1.36"], &["local", "1.36"]),
        ("1.24", "1.36", &["1.24"], &["local", "1.24"]),
        ("999.0", "1.24", &["1.36"], &["local", "1.36"]),
    ] {
        let cluster = cluster(own, true, peers);
        let decision = asked(not_older(wanted), true, &cluster);
        assert_eq!(
            order(&decision, &cluster),
            expected,
            "{wanted} {own} {peers:?}"
        );
    }
}

#[test]
fn a_watch_that_the_local_server_has_the_history_of_goes_only_to_one_that_has_it_too() {
    let with = |history| {
        let better = Server {
            version: version("1.32"),
            ..historian("b", history)
        };
        beside(version("1.31"), snapshot(Some(&[PODS]), vec![better]))
    };
    for (history, expected) in [
        (Some(1200), Row::Peers),
        (Some(1600), Row::Local),
        (None, Row::Local),
    ] {
        let cluster = with(history);
        for wanted in [named("1.32"), not_older("1.32"), Some(Wanted::Newest)] {
            let resumed = RoutingInput {
                resume: Some(1500),
                ..question(PODS, wanted)
            };
            let decision = decided(resumed, true, &cluster);
            assert_eq!(decision.row, expected, "{history:?} {wanted:?}");
        }
    }
}

#[test]
fn versions_differ_while_live_servers_say_different_ones() {
    let window = |own: &str, peers: &[&str]| cluster(own, true, peers).window;
    assert_eq!(window("1.32", &["1.32", ""]), None);
    let found = window("1.32", &["1.31", "1.33"]).unwrap();
    assert_eq!(
        (Some(found.oldest), Some(found.newest)),
        (version("1.31"), version("1.33"))
    );
    let gone = Server {
        live: false,
        target: false,
        ..versioned("gone", "1.31")
    };
    let alone = beside(version("1.32"), snapshot(Some(&[PODS]), vec![gone]));
    assert_eq!(alone.window, None);
}

#[test]
fn what_a_server_was_before_it_restarted_counts_less_than_what_others_are() {
    let restarted = Server {
        known: false,
        ..versioned("restarted", "1.36")
    };
    for (others, expected) in [
        (
            &["1.36", "1.24", "1.35"][..],
            &["1.35", "1.36", "restarted", "local", "1.24"][..],
        ),
        // It is not an older one for certain.
        (&["1.24"], &["restarted", "local", "1.24"]),
    ] {
        let mut peers: Vec<_> = others.iter().map(|of| versioned(of, of)).collect();
        peers.insert(0, restarted.clone());
        let cluster = beside(version("1.24"), snapshot(Some(&[PODS]), peers));
        let decision = asked(not_older("1.35"), true, &cluster);
        let name = |server: Option<usize>| match server {
            None => "local",
            Some(index) => &*cluster.servers[index].id,
        };
        let walked = walk(&decision, &cluster).into_iter().map(name);
        assert_eq!(walked.collect::<Vec<_>>(), expected);
        let newer = among_newer(
            question(PODS, None),
            &Settings::DEFAULT,
            local(true),
            &cluster,
            version("1.24"),
        );
        let ServerChoice::Peers(newer) = newer.unwrap().order[1] else {
            panic!("nobody is newer");
        };
        assert_eq!(newer.indices.len(), others.len());
    }
}

fn any_version() -> impl Strategy<Value = Option<KubernetesVersion>> {
    let text = prop::sample::select(vec!["", "1.30", "1.31", "1.32", "1.33", "2.0"]);
    text.prop_map(version)
}

/// Up to five peers that list pods or not, are targets or not; a local server.
fn any_cluster() -> impl Strategy<Value = Snapshot> {
    let lists = |lists: bool| if lists { &[PODS][..] } else { &[] };
    let peer =
        (any_version(), any::<[bool; 3]>()).prop_map(move |(version, [listed, target, ready])| {
            Server {
                version,
                target,
                live: target,
                ready,
                ..peer("peer", lists(listed))
            }
        });
    let peers = prop::collection::vec(peer, 0..6);
    (peers, any_version(), any::<bool>())
        .prop_map(move |(peers, own, listed)| beside(own, snapshot(Some(lists(listed)), peers)))
}

fn any_wanted() -> impl Strategy<Value = Option<Wanted>> {
    let not_older = |version| Wanted::NotOlder {
        version,
        needed: Some(version),
    };
    prop_oneof![
        any_version().prop_map(|version| version.map(Wanted::Version)),
        any_version().prop_map(move |version| version.map(not_older)),
        Just(Some(Wanted::Oldest)),
        Just(Some(Wanted::Newest)),
    ]
}

proptest! {
    #[test]
    fn whatever_the_versions_the_same_servers_are_asked_as_without_the_header_and_the_best_first(
        cluster in any_cluster(),
        wanted in any_wanted(),
        initialized: bool,
    ) {
        let plain = asked(None, initialized, &cluster);
        let decision = asked(wanted, initialized, &cluster);
        let (all, mut asked) = (walk(&plain, &cluster), walk(&decision, &cluster));
        // The local server stays last while it starts: row 9.
        let fits: Vec<_> = wanted.map_or_else(Vec::new, |wanted| {
            let servers = asked.iter().filter(|server| server.is_some() || initialized);
            let fit = |server: &Option<usize>| match server.map(|index| &cluster.servers[index]) {
                Some(server) => {
                    (wanted.needs_ready() && !server.ready, server.fit(wanted))
                }
                None => (false, wanted.fit(cluster.local_version, true)),
            };
            servers.map(fit).collect()
        });
        prop_assert!(fits.is_sorted(), "{:?}", fits);
        if wanted.is_none() {
            prop_assert_eq!(&decision, &plain);
        }
        let to_local = decision.order[0] == ServerChoice::Local;
        let rows = [Row::Local, Row::Peers];
        prop_assert!(decision.row == plain.row || rows.contains(&plain.row) && rows.contains(&decision.row));
        prop_assert_eq!(rows.contains(&decision.row) && to_local, decision.row == Row::Local);
        asked.sort();
        let mut sorted = all;
        sorted.sort();
        prop_assert_eq!(asked, sorted);
    }

    #[test]
    fn without_the_header_versions_change_nothing(cluster in any_cluster(), initialized: bool) {
        let servers = cluster.servers.iter().map(|server| Server {
            version: None,
            ..server.clone()
        });
        let own = cluster.holders(PODS).is_some_and(|(_, holders)| holders.local);
        let own: &[GvrRef<'_>] = if own { &[PODS] } else { &[] };
        let unversioned = snapshot(Some(own), servers.collect());
        let decision = asked(None, initialized, &cluster);
        let before = asked(None, initialized, &unversioned);
        prop_assert_eq!(decision.row, before.row);
        let who = |decision: &Decision<'_>| {
            decision.order.each_ref().map(|place| match place {
                ServerChoice::Peers(peers) => {
                    let mut indices = peers.indices.to_vec();
                    indices.sort_unstable();
                    (indices, false)
                }
                place => (vec![], *place == ServerChoice::Local),
            })
        };
        prop_assert_eq!(who(&decision), who(&before));
    }
}
