//! What etcd says of the cluster: watched below a few prefixes, kept in memory, published as one snapshot.

pub mod catalog;
pub mod codec;
pub mod etcd;
pub mod keys;
pub mod record;
pub mod source;
pub mod watch;

#[cfg(test)]
pub(crate) mod fake;
