//! Sidecar reverse proxy that keeps kube-apiserver's answers right while the servers of a cluster differ.
//!
//! See `ARCHITECTURE.md` for ports, the way of a request and what happens when something fails. The library is for the
//! binary and its tests, and its interface is not stable. Only [`if_ready`] (feature `client`) is for others.

#[cfg(feature = "proxy")]
pub mod admin;
#[cfg(feature = "proxy")]
pub mod app;
#[cfg(feature = "proxy")]
pub mod client;
#[cfg(feature = "proxy")]
pub mod cluster;
#[cfg(feature = "proxy")]
pub mod commands;
#[cfg(feature = "proxy")]
pub mod config;
#[cfg(feature = "proxy")]
pub mod discovery;
#[cfg(feature = "proxy")]
pub mod doctor;
#[cfg(feature = "client")]
pub mod if_ready;
#[cfg(feature = "proxy")]
pub mod local;
#[cfg(feature = "proxy")]
pub mod publish;
#[cfg(test)]
#[cfg(feature = "proxy")]
mod reference;
#[cfg(feature = "proxy")]
pub mod relay;
#[cfg(feature = "proxy")]
pub mod request;
#[cfg(any(feature = "client", feature = "proxy"))]
pub mod retry;
#[cfg(feature = "proxy")]
pub mod routing;
#[cfg(feature = "proxy")]
pub mod server;
#[cfg(feature = "proxy")]
pub mod tls;
#[cfg(feature = "proxy")]
pub mod trouble;
#[cfg(feature = "proxy")]
pub mod watches;
