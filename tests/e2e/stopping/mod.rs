//! SIGTERM and the drain.

pub mod drain;
mod draining;
pub mod rebalancing;
pub mod sigterm;
pub mod successor;
pub mod tied;
mod together;
