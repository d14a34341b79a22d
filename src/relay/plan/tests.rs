use std::collections::BTreeSet;

use super::*;
use crate::relay::upstream::health::Health;

fn server(last: u8) -> Server {
    Server {
        endpoint: ([10, 0, 0, last], 6443).into(),
        ..Server::peer(&last.to_string())
    }
}

fn chosen(servers: &[Server], seed: u64, health: &Health) -> Option<SocketAddr> {
    choose(servers.iter(), Peers::default(), seed, health).map(|server| server.endpoint)
}

fn asking(version: &str) -> Peers<'static> {
    Peers {
        wanted: version.parse().ok().map(Wanted::Version),
        ..Peers::default()
    }
}

#[test]
fn a_connection_keeps_to_its_choice_and_connections_spread() {
    let servers = [server(1), server(2), server(3)];
    let health = Health::default();
    for seed in [0, 1, u64::MAX] {
        assert_eq!(
            chosen(&servers, seed, &health),
            chosen(&servers, seed, &health)
        );
    }
    let all: BTreeSet<_> = (0..100)
        .filter_map(|seed| chosen(&servers, seed, &health))
        .collect();
    assert_eq!(all.len(), 3);
    assert_eq!(chosen(&[], 3, &health), None);
}

#[test]
fn what_goes_away_leaves_the_choices_of_others_alone_and_is_taken_over_by_all() {
    let servers = [server(1), server(2), server(3)];
    let health = Health::default();
    let gone = servers[0].endpoint;
    let mut heirs = BTreeSet::new();
    for seed in 0..100 {
        let before = chosen(&servers, seed, &health);
        let after = chosen(&servers[1..], seed, &health);
        match before == Some(gone) {
            true => heirs.extend(after),
            false => assert_eq!(before, after),
        }
    }
    assert_eq!(heirs.len(), 2);
}

#[tokio::test]
async fn the_unhealthy_are_last_but_better_than_nobody() {
    let servers = [server(1), server(2)];
    let health = Health::default();
    health.failed(servers[0].endpoint);
    for seed in 0..100 {
        assert_eq!(chosen(&servers, seed, &health), Some(servers[1].endpoint));
        assert_eq!(
            chosen(&servers[..1], seed, &health),
            Some(servers[0].endpoint)
        );
    }
}

#[tokio::test]
async fn a_better_version_comes_first_even_from_the_unhealthy() {
    let of = |last, version: &str| Server {
        version: version.parse().ok(),
        ..server(last)
    };
    let servers = [
        of(1, "1.33"),
        of(2, ""),
        of(3, "1.32"),
        of(4, "1.32"),
        of(5, "1.31"),
        // Restarted, it may be of any version.
        Server {
            known: false,
            ..of(6, "1.32")
        },
    ];
    let health = Health::default();
    let mut left = servers.to_vec();
    let mut order = Vec::new();
    health.failed(servers[2].endpoint);
    while let Some(next) = choose(left.iter(), asking("1.32"), 7, &health) {
        let endpoint = next.endpoint;
        order.push(endpoint.ip().to_string());
        left.retain(|server| server.endpoint != endpoint);
    }
    assert_eq!(order[..4], ["10.0.0.4", "10.0.0.3", "10.0.0.1", "10.0.0.6"]);
    assert_eq!(order.len(), 6);
    // What does not fit is all alike: connections spread.
    let all: BTreeSet<_> = (0..100)
        .filter_map(|seed| choose(servers.iter(), asking("1.34"), seed, &health))
        .map(|server| server.endpoint)
        .collect();
    assert_eq!(all.len(), 4);
}

#[tokio::test]
async fn a_policy_falls_through_to_the_next_version_where_nobody_is_healthy() {
    let of = |last, version: &str| Server {
        version: version.parse().ok(),
        ..server(last)
    };
    let servers = [of(1, "1.31"), of(2, "1.31"), of(3, "1.32")];
    let health = Health::default();
    let first = |health: &Health, ready| {
        let peers = Peers {
            wanted: Some(Wanted::Oldest),
            ready,
            ..Peers::default()
        };
        let chosen = choose(servers.iter(), peers, 7, health);
        chosen.map(|server| server.endpoint)
    };
    let all = servers.each_ref().map(|server| server.endpoint);
    assert_ne!(first(&health, true), Some(all[2]));
    health.failed(all[0]);
    assert_eq!(first(&health, true), Some(all[1]));
    health.failed(all[1]);
    assert_eq!(first(&health, true), Some(all[2]));
    health.failed(all[2]);
    assert_eq!(first(&health, true), None);
    assert!(first(&health, false) < Some(all[2]), "the policy's order");
}

const PODS: &str = "/api/v1/pods";

fn if_ready(mode: IfReadyMode, enforce: Enforce) -> IfReadyConfig {
    IfReadyConfig {
        enabled: true,
        mode,
        enforce,
        retry_after_seconds: 5,
        retry_after_jitter_seconds: 0,
    }
}

/// Which requests are held back, of those that (asked, found it initialized).
fn held_back(config: &IfReadyConfig) -> [bool; 4] {
    [(true, false), (true, true), (false, false), (false, true)]
        .map(|(asked, initialized)| is_held_back(config, PODS, asked, initialized))
}

#[test]
fn who_asks_is_held_back_while_it_is_not_initialized() {
    let config = if_ready(IfReadyMode::Retry, Enforce::OptIn);
    assert_eq!(held_back(&config), [true, false, false, false]);
}

#[test]
fn always_holds_back_those_that_did_not_ask() {
    let config = if_ready(IfReadyMode::Retry, Enforce::Always);
    assert_eq!(held_back(&config), [true, false, true, false]);
}

#[test]
fn health_metrics_and_version_are_held_back_only_if_they_ask() {
    let config = if_ready(IfReadyMode::Retry, Enforce::Always);
    for path in [
        "/livez",
        "/livez/ping",
        "/readyz",
        "/readyz/etcd",
        "/healthz",
        "/healthz/poststarthook/x",
        "/metrics",
        "/metrics/slis",
        "/version",
    ] {
        assert!(!is_held_back(&config, path, false, false), "{path}");
        assert!(is_held_back(&config, path, true, false), "{path}");
    }
    for path in [
        "/version/x",
        "/versions",
        "/readyzzz",
        "/",
        "/api",
        "/api/v1/namespaces/metrics",
        "//metrics",
    ] {
        assert!(is_held_back(&config, path, false, false), "{path}");
    }
}

#[test]
fn annotate_and_switched_off_hold_back_nothing() {
    for enforce in [Enforce::OptIn, Enforce::Always] {
        let config = if_ready(IfReadyMode::Annotate, enforce);
        assert_eq!(held_back(&config), [false; 4]);
        let off = IfReadyConfig {
            enabled: false,
            ..if_ready(IfReadyMode::Retry, enforce)
        };
        assert_eq!(held_back(&off), [false; 4]);
    }
}
