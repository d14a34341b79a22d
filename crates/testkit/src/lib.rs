//! Everything the end-to-end tests and the demo start around the proxy, and what they ask it with.
//!
//! Rules of the house: every server gets a loopback address of its own ([`addr`]), so no port is guessed; nothing sleeps
//! for luck ([`wait::eventually`]); whatever is started ends when its handle is dropped ([`process`]), and its output is
//! in a file of the test's directory, the tail of which is part of every panic about it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "test support: a failure is a panic with a message"
)]

pub mod addr;
pub mod attacker;
pub mod audit;
pub mod balancer;
pub mod chromium;
pub mod client;
pub mod cluster;
pub mod cut;
pub mod double;
pub mod etcd;
pub mod fake_etcd;
pub mod flood;
pub mod guarantees;
pub mod kcm;
pub mod kube;
pub mod kubectl;
pub mod ledger;
pub mod modern;
pub mod network;
pub mod node;
pub mod nodes;
pub mod notes;
mod one_task;
pub mod openssl;
pub mod pair;
pub mod peer_links;
pub mod pki;
pub mod process;
pub mod proxy;
pub mod raw;
pub mod registry;
pub mod steady;
pub mod streaming;
pub mod tls;
pub mod upgraded;
pub mod wait;
pub mod wire;

/// rustls refuses to choose between providers; etcd's client asks it to.
pub fn install_crypto_provider() {
    // An error says that another test of this process was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// How a missing program is reported: loudly, and with what to do about it. A test that cannot run has failed.
pub fn missing(what: &str, remedy: &str) -> ! {
    let place = if std::env::var_os("CI").is_some() {
        "this CI job"
    } else {
        "this machine"
    };
    panic!("{what} is not installed on {place}; {remedy}");
}
