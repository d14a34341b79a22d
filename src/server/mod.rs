//! The TLS port: listeners, handshakes, one runtime for each core.

pub mod accept;
mod closing;
pub mod counted_stream;
mod delegate;
mod frame_budget;
pub mod header_blocks;
pub mod http2;
pub mod listener;
pub mod metrics;
pub mod rotate;
mod start;
pub mod worker;

pub use self::start::{ServerInputs, ServingThreads, start};
