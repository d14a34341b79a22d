//! The program as a process, between real etcd and apiservers: doubles for what real ones cannot be made to do, real
//! kube-apiservers v1.20.2 for what matters.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    unreachable_pub,
    reason = "tests: a failure is a panic with a message"
)]

#[path = "../attacker/mod.rs"]
mod attacker;
#[path = "../double/mod.rs"]
mod double;
#[path = "../double/tests.rs"]
mod double_itself;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/selftest.rs"]
mod support_itself;

mod absent;
mod admin;
mod attacks;
mod believed;
mod bodies;
mod bookmark_proofs;
mod bookmark_rounds;
mod bookmarks;
mod certificates;
mod cluster;
mod compaction;
mod controllers;
mod credentials;
mod crowd;
mod differential;
mod discovery;
mod discovery_real;
mod discovery_routes;
mod discovery_walk;
mod does_not_pass;
mod drain;
mod facts;
mod failover;
mod fairness;
mod false_404;
mod fidelity;
mod following;
mod forged;
mod forgers;
mod gathering;
mod gone;
mod headers;
mod hostile;
mod identity;
mod if_ready;
mod initialization;
mod lease;
mod limits;
mod limits_etcd;
mod limits_http2;
mod misconfigured;
mod openapi;
mod outages;
mod progress;
mod published;
mod quiet;
mod real;
mod real_failover;
mod real_identity;
mod reconnecting;
mod refusals;
mod renamed;
mod rerouting;
mod restarts;
mod restored;
mod resume;
mod rewritten;
mod rollout;
mod rotated_twice;
mod rotation;
mod scripted;
mod security;
mod smuggling;
mod stampede;
mod stop;
mod stored;
mod twins;
mod undecodable;
mod unsynced;
mod upgrades;
mod versions;
mod witness;
