//! Servers that die or shut down while they have requests.

pub mod frozen;
pub mod load;
pub mod peers;
pub mod terminating;
pub mod unavailable;
