//! What operators see: metrics, health, and the status page, on a loopback port of its own.

pub mod certificates;
pub mod documents;
pub mod gathering;
pub mod lease;
pub mod metrics;
pub mod page;
pub mod pages;
pub mod recent;
#[cfg(test)]
mod reference;
pub mod serve;
pub mod status;
pub mod watches;
