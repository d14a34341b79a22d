//! Initialization and readiness of apiservers, and which clients see it.

pub mod if_ready;
pub mod initialization;
pub mod requestheader;
pub mod restarts;
