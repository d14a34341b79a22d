//! Merged discovery: what the apiserver beside us lists, and what peers list besides (KEP-4020).

pub mod aggregated;
mod classes;
pub mod clients;
pub mod forms;
pub mod gather;
pub mod gathered;
mod held;
pub mod legacy;
pub mod model;
pub mod newest;
pub mod openapi;
pub mod others;
pub mod pool;
mod protobuf;
pub mod read;
mod select;
mod sources;
mod splice;
pub mod stand_in;
mod wire;

#[cfg(test)]
mod tests;
