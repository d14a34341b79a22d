//! Discovery documents of apiservers: wire formats, parsing, and a model independent of the format. Pure.

pub mod documents;
pub mod model;
pub mod pool;
pub mod read;
pub mod wire;
