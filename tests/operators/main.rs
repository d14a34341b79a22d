//! What operators use: the command line, the admin pages, the files below `deploy/` and `docs/`, and the client layer.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    unreachable_pub,
    reason = "tests: a failure is a panic with a message"
)]

mod admin_port;
mod architecture;
mod check;
mod circles;
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
mod next_node;
mod packages;
mod page;
mod repository;
mod status;
mod unwritable;
