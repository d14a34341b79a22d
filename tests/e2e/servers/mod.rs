//! Server IDs, Leases, and what proxies publish (KEP-1965).

pub mod duplicate_id;
pub mod facts;
pub mod lease;
pub mod named;
pub mod published;
pub mod renamed;
pub mod rewritten;
pub mod starting;
pub mod taken_ids;
