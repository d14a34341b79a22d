//! Merged discovery: what the apiserver beside us lists, and what peers list besides (KEP-4020).

pub mod model;
pub mod openapi;
