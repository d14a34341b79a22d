//! Discovery documents of apiservers: their forms, and how they are read. Pure.

pub mod documents;
pub mod legacy;
pub mod model;
