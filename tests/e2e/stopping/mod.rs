//! SIGTERM and the drain.

pub mod drain;
pub mod sigterm;
