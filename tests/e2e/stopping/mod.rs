//! SIGTERM and the drain.

pub mod drain;
pub mod sigterm;
pub mod tied;
pub mod together;
