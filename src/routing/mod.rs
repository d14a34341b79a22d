//! Decides where to send a request, from the request and a snapshot of the cluster. Pure.

pub mod decide;
pub mod hand_over;
pub mod table;
pub mod versions;
