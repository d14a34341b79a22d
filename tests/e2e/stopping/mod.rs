//! SIGTERM and the drain.

pub mod drain;
mod rebalancing;
pub mod sigterm;
pub mod successor;
pub mod tied;
pub mod together;
