//! Publishes this server: its keys in etcd, its server ID and its identity Lease.

pub mod announcement;
pub mod etcd_key;
pub mod identify;
pub mod identity;
pub mod kept_records;
pub mod lease;
pub mod metrics;
mod peer_entry;
pub mod record;
pub mod renewal;
mod server_ids;
mod start;

pub use self::start::{PublishInputs, Publishing, start};
