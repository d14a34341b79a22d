//! Merged discovery: what the local apiserver serves, and what peers list in addition (KEP-4020).

mod cache;
mod classes;
pub mod clients;
pub mod fallback;
pub mod merge;
pub mod metrics;
pub mod newest;
pub mod openapi;
pub mod peer_discovery;
pub mod peer_union;
mod reader;
mod sources;

pub use self::reader::start;

#[cfg(test)]
mod tests;
