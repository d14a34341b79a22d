//! The state of the cluster in etcd: watched below a few prefixes, kept in memory, published as one snapshot.

pub mod absence;
pub mod asking;
pub mod bare;
pub mod catalog;
pub mod codec;
pub mod connector;
pub mod custom;
pub mod etcd;
pub mod json;
pub mod keys;
pub mod leases;
pub mod members;
pub mod prefix;
pub mod record;
pub mod report;
pub mod source;
mod start;
pub mod state;
pub mod undecodable;
pub mod unproxied;
pub mod watch;

pub use self::start::{Foundation, start};

#[cfg(test)]
pub(crate) mod fake;
