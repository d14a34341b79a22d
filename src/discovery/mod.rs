//! Merged discovery: what the apiserver beside us lists, and what peers list besides (KEP-4020).

pub mod aggregated;
pub mod forms;
pub mod gathered;
pub mod legacy;
pub mod model;
pub mod newest;
pub mod openapi;
pub mod others;
pub mod pool;
mod protobuf;
pub mod read;
mod splice;
mod wire;

#[cfg(test)]
mod tests;
