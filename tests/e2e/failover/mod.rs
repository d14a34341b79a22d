//! Servers that die or shut down while they have requests.

pub mod frozen;
pub mod peers;
pub mod real_apiservers;
pub mod terminating;
pub mod unavailable;
