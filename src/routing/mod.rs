//! Decides where to send a request, from the request and a snapshot of the cluster. Pure.

pub mod decide;
pub mod fit;
pub mod table;
