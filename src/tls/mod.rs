//! TLS: certificate files, and whom client certificates belong to.

pub mod rotation;
pub mod store;
pub mod verify;
