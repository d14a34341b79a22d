//! Watches across restarts (KEP-1904).
//!
//! When a client comes back: [`history`] finds out since when each apiserver has watch history, and [`resume`] which watches
//! a peer with a longer history serves better.
//!
//! When the proxy stops, each watch gets a final bookmark. [`frames`] splits a watch's response into events while it is
//! forwarded, and writes the bookmark, [`follower`] keeps what its client has seen, [`storage`] says where in etcd the resource is stored,
//! [`change_log`] holds the changes there, and [`proof`] says which revision is safe for the client. All of these are pure.
//!
//! [`change_logs`] watches etcd and fills one [`shared_change_log`] for each resource. [`stored_here`] knows which
//! resources are stored in this etcd: the [`prover`] asks servers ([`apiservers`]) and etcd, by a [`sample`] of each. The
//! stream itself belongs to [`crate::relay`].

pub mod apiservers;
pub mod change_log;
pub mod change_logs;
pub mod follower;
pub mod frames;
pub mod history;
pub mod metrics;
pub mod proof;
pub mod prover;
pub mod resume;
pub mod sample;
pub mod shared_change_log;
mod start;
pub mod storage;
pub mod stored_here;

pub use self::start::{WatchState, start};
