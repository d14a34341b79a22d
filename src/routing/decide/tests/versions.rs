//! The rows where versions count: 7 and 8.

use proptest::prelude::*;

use super::*;
use crate::routing::fit::Fit;

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
    snapshot.local_version = local_version;
    snapshot
}

/// A cluster in which peers with these versions list pods, and the local server is of version `local`.
fn cluster(local: &str, lists: bool, peers: &[&str]) -> Snapshot {
    let peers = peers.iter().enumerate();
    let peers = peers.map(|(index, of)| versioned(&index.to_string(), of));
    let own: &[GvrRef<'_>] = if lists { &[PODS] } else { &[] };
    beside(version(local), snapshot(Some(own), peers.collect()))
}

fn question(gvr: GvrRef<'_>, wanted: Option<KubernetesVersion>) -> RoutingInput<'_> {
    RoutingInput {
        resource: Some(gvr),
        rerouted: false,
        resume: None,
        version: wanted,
    }
}

fn asked<'s>(
    wanted: Option<KubernetesVersion>,
    initialized: bool,
    snapshot: &'s Snapshot,
) -> Decision<'s> {
    let question = question(PODS, wanted);
    decide(question, POLICY, local(initialized), snapshot, || false)
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
    for place in [&decision.to, &decision.then, &decision.finally] {
        let servers = match place {
            ServerChoice::Local => vec![None],
            ServerChoice::Nowhere => vec![],
            ServerChoice::Peers(indices, _) | ServerChoice::Historians(indices, _, _) => {
                indices.iter().copied().map(Some).collect()
            }
            ServerChoice::Fitting(indices, _, wanted) => {
                let mut indices = indices.to_vec();
                indices.sort_by_key(|index| Fit::of(snapshot.servers[*index].version, *wanted));
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
    ] {
        let cluster = cluster(own, true, peers);
        let decision = asked(version(wanted), true, &cluster);
        assert_eq!(decision.row, Row::Local, "{wanted} {own} {peers:?}");
        assert_eq!(order(&decision, &cluster), expected, "{wanted} {own}");
    }
}

#[test]
fn row_8_who_fits_better_comes_before_the_local_server_and_the_others_after_it() {
    for (wanted, own, peers, expected) in [
        ("1.32", "1.31", &["1.32"][..], &["1.32", "local"][..]),
        ("1.32", "1.33", &["1.32"], &["1.32", "local"]),
        (
            "1.32",
            "1.34",
            &["1.33", "1.34"],
            &["1.33", "local", "1.34"],
        ),
        ("1.32", "", &["1.40", "1.31"], &["1.40", "local", "1.31"]),
        (
            "1.32",
            "1.33",
            &["1.34", "", "1.33", "1.32", "1.31", "1.32"],
            &["1.32", "1.32", "local", "1.33", "1.34", "?", "1.31"],
        ),
        (
            "1.30",
            "1.36",
            &["1.35", "1.34", "1.29"],
            &["1.34", "1.35", "local", "1.29"],
        ),
    ] {
        let cluster = cluster(own, true, peers);
        let decision = asked(version(wanted), true, &cluster);
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
        let decision = asked(version(wanted), true, &cluster);
        assert_eq!(decision.row, Row::Peers);
        assert_eq!(order(&decision, &cluster), expected, "{wanted}");
        assert_eq!(
            (&decision.then, &decision.finally),
            (&ServerChoice::Nowhere, &ServerChoice::Nowhere)
        );
    }
}

#[test]
fn row_8_a_starting_local_server_is_last_whatever_its_version() {
    let cluster = cluster("1.32", true, &["1.31", "1.33"]);
    let decision = asked(version("1.32"), false, &cluster);
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
    let decision = asked(version("1.32"), true, &cluster);
    assert_eq!(
        (decision.row, decision.to),
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
    let pods = question(PODS, version("1.32"));
    let off = Policy {
        rerouting: false,
        ..POLICY
    };
    let serve_local = Policy {
        unsynced: Unsynced::ServeLocal,
        ..POLICY
    };
    let unsynced = Snapshot::default();
    for (question, policy, snapshot) in [
        (
            RoutingInput {
                resource: None,
                ..pods
            },
            POLICY,
            &both,
        ),
        (
            RoutingInput {
                rerouted: true,
                ..pods
            },
            POLICY,
            &both,
        ),
        (pods, off, &both),
        (pods, serve_local, &unsynced),
        (question(WIDGETS, pods.version), POLICY, &both),
        (
            RoutingInput {
                resume: Some(600),
                ..pods
            },
            POLICY,
            &both,
        ),
        (question(RESIZE, pods.version), POLICY, &both),
    ] {
        let decided = |question| decide(question, policy, local(true), snapshot, || false);
        let without = RoutingInput {
            version: None,
            ..question
        };
        assert_eq!(decided(question), decided(without), "{question:?}");
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
        (any_version(), any::<bool>(), any::<bool>()).prop_map(move |(version, listed, target)| {
            Server {
                version,
                target,
                live: target,
                ..peer("peer", lists(listed))
            }
        });
    let peers = prop::collection::vec(peer, 0..6);
    (peers, any_version(), any::<bool>())
        .prop_map(move |(peers, own, listed)| beside(own, snapshot(Some(lists(listed)), peers)))
}

proptest! {
    #[test]
    fn whatever_the_versions_the_same_servers_are_asked_as_without_the_header_and_the_best_first(
        cluster in any_cluster(),
        wanted in any_version(),
        initialized: bool,
    ) {
        let plain = asked(None, initialized, &cluster);
        let decision = asked(wanted, initialized, &cluster);
        let (all, mut asked) = (walk(&plain, &cluster), walk(&decision, &cluster));
        // The local server stays last while it starts: row 9.
        let fits: Vec<_> = wanted.map_or_else(Vec::new, |wanted| {
            let servers = asked.iter().filter(|server| server.is_some() || initialized);
            let version = |server: &Option<usize>| match server {
                Some(index) => cluster.servers[*index].version,
                None => cluster.local_version,
            };
            servers.map(|server| Fit::of(version(server), wanted)).collect()
        });
        prop_assert!(fits.is_sorted(), "{:?}", fits);
        if wanted.is_none() {
            prop_assert_eq!(&decision, &plain);
        }
        let to_local = decision.to == ServerChoice::Local;
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
            [&decision.to, &decision.then, &decision.finally].map(|place| match place {
                ServerChoice::Peers(indices, gvr) => {
                    let mut indices = indices.to_vec();
                    indices.sort_unstable();
                    (indices, gvr.cloned(), false)
                }
                place => (vec![], None, *place == ServerChoice::Local),
            })
        };
        prop_assert_eq!(who(&decision), who(&before));
    }
}
