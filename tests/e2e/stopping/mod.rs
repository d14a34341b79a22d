//! SIGTERM and the drain.

pub mod drain;
pub mod sigterm;
pub mod successor;
pub mod tied;
pub mod together;
