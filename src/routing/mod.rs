//! Where a request goes. Pure: a snapshot and a question in, a decision out.

pub mod decide;
pub mod table;
pub mod version;
