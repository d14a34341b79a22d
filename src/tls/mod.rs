//! TLS: certificate files, rustls configurations, and verification of client certificates.

pub mod credentials;
pub mod error;
pub mod files;
pub mod metrics;
pub mod rotation;
pub mod serving;
pub mod sni;
pub mod store;
pub mod verify;
