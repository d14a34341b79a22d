//! Merged discovery: what the local apiserver serves, and what peers list in addition (KEP-4020).

pub mod aggregated;
mod cache;
mod classes;
pub mod clients;
pub mod document;
pub mod fallback;
pub mod legacy;
pub mod merge;
pub mod metrics;
pub mod newest;
pub mod openapi;
pub mod own;
pub mod peer_discovery;
pub mod peer_union;
mod protobuf;
pub mod reader;
mod select;
mod sources;
mod splice;
mod start;

pub use self::start::{DiscoveryInputs, start};

#[cfg(test)]
mod tests;
