//! Publishes this server: its keys in etcd, its server ID and its identity Lease.

pub mod etcd_key;
pub mod identify;
pub mod identity;
pub mod kept_records;
pub mod lease;
pub mod metrics;
pub mod record;
pub mod renewal;
mod start;

pub use self::start::{PublishInputs, Publishing, start};
