//! TLS: certificate files, and whom client certificates belong to.

pub mod credentials;
pub mod expiry;
pub mod reading;
pub mod rotation;
pub mod store;
pub mod verify;
