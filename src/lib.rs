//! Sidecar reverse proxy that keeps kube-apiserver's answers right while the servers of a cluster differ.
//!
//! See `ARCHITECTURE.md` for ports, the way of a request and what happens when something fails. The library is for the
//! binary and its tests; its interface is not stable.

pub mod admin;
pub mod app;
pub mod client;
pub mod cluster;
pub mod commands;
pub mod config;
pub mod discovery;
pub mod local;
pub mod publish;
pub mod relay;
pub mod request;
pub mod routing;
pub mod server;
pub mod tls;
pub mod watches;
