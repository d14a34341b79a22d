//! Where a request goes. Pure: a snapshot and a question in, a decision out.

pub mod decide;
pub mod documents;
pub mod table;
pub mod version;
