//! The admin port (loopback only): metrics, health, and the status page. And the TLS port for monitoring from other hosts.

mod accept;
pub mod document;
pub mod metrics;
pub mod page;
pub mod pages;
pub mod predecessor;
pub mod secure;
mod start;
mod status;
#[cfg(test)]
mod tests;

pub use self::start::start;
