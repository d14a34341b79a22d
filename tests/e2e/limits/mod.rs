//! Slow, greedy and broken clients: their resources are limited, and no other client waits for them.

pub mod clients;
mod cold;
pub mod etcd_values;
pub mod fairness;
pub mod http2;
pub mod large_headers;
mod leases;
pub mod unread;
