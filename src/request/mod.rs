//! Reads a request: what it asks for, its caller, and which of its headers count. Pure.

pub mod again;
pub mod caller;
pub mod credential;
pub mod header_names;
pub mod headers;
pub mod info;
pub mod since;
pub mod surplus;
pub mod token;
