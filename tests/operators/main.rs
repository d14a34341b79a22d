//! What operators hold in their hands: the command line, the admin pages, the files below `deploy/` and `docs/`, and the
//! client layer.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    unreachable_pub,
    reason = "tests: a failure is a panic with a message"
)]

#[allow(dead_code, reason = "shared with the end-to-end tests")]
#[path = "../e2e/cluster.rs"]
mod cluster;
#[path = "../double/mod.rs"]
mod double;
#[path = "../support/mod.rs"]
mod support;

mod admin_port;
mod check;
mod client_layer;
mod clients;
mod command;
mod doctor;
mod documents;
mod etcd_role;
mod forget;
mod full;
mod kubeadm;
mod logs;
mod manifests;
mod monitoring;
mod page;
mod status;
mod unwritable;
