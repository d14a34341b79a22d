//! The apiserver beside us: whether it is initialized, and what it serves.

pub mod discovery;
pub mod documents;
pub mod probe;
pub mod reader;
pub mod state;
