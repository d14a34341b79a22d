//! The TLS port: listeners, handshakes, and one serving thread for each core, each with its own runtime, listeners and
//! upstream connections. No work is stolen, and shared state is only read.

pub mod accept;
pub mod http2;
pub mod listener;
pub mod metrics;
pub mod rotate;
pub mod socket;
mod start;

pub use self::start::{ServingThreads, start};
