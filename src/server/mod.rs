//! The TLS port: listeners, handshakes, one runtime for each core.

pub mod accept;
pub mod rotate;
pub mod worker;
