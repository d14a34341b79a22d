//! The local apiserver: whether it is initialized, and what it serves.

mod client;
pub mod discovery;
pub mod groups;
mod own;
pub mod probe;
pub mod process;
pub mod reader;
pub mod requestheader;
mod start;
pub mod state;

pub use self::client::maker;
pub use self::start::{EtcdFacts, start};
