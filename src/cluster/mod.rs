//! What etcd says of the cluster: watched below a few prefixes, kept in memory, published as one snapshot.

pub mod catalog;
pub mod codec;
pub mod connector;
pub mod custom;
pub mod etcd;
pub mod freshness;
pub mod json;
pub mod keys;
pub mod listed;
pub mod members;
pub mod native;
mod news;
pub mod record;
pub mod report;
pub mod source;
pub mod state;
pub mod undecodable;
pub mod vanished;
pub mod watch;

#[cfg(test)]
pub(crate) mod fake;
