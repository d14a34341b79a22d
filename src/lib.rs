//! Sidecar reverse proxy that keeps kube-apiserver's answers right while the servers of a cluster differ.
//!
//! See `ARCHITECTURE.md` for ports, the way of a request and what happens when something fails. The library is for the
//! binary and its tests, and its interface is not stable. What is for others is the crate `if-ready`.

pub mod admin;
pub mod app;
pub mod cli;
pub mod client;
pub mod cluster;
pub mod config;
pub mod discovery;
pub mod install;
pub mod kube;
pub mod local;
pub mod log_queue;
pub mod log_throttle;
pub mod metrics;
pub mod net;
pub mod otlp;
pub mod publish;
#[cfg(test)]
mod reference;
pub mod relay;
pub mod reload;
pub mod request;
pub mod retry;
pub mod routing;
pub mod server;
pub mod shutdown;
pub mod tls;
pub mod watches;
pub mod x509;
