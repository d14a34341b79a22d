//! SIGTERM and the drain.

pub mod drain;
mod draining;
mod in_turn;
pub mod rebalancing;
pub mod sigterm;
pub mod successor;
pub mod tied;
pub mod together;
