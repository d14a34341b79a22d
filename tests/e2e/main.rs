//! The program as a process between real etcd and apiservers: doubles for faults that real ones cannot produce, real
//! kube-apiservers v1.20.2 and current apiserver machinery for everything important.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "tests: a failure is a panic with a message"
)]

mod addresses;
mod admin;
mod availability;
mod discovery;
mod etcd;
mod failover;
mod http;
mod identity;
mod limits;
mod mixed;
mod observing;
mod readiness;
mod routing;
mod security;
mod servers;
mod settings;
mod stopping;
mod watches;
