//! SIGTERM and the drain.

pub mod drain;
mod in_turn;
mod rebalancing;
pub mod sigterm;
pub mod successor;
pub mod tied;
pub mod together;
