//! Watches across restarts (KEP-1904).
//!
//! Coming back: since when each apiserver has history ([`history`]), and which watches a peer with a longer one serves
//! better ([`resume`]).
//!
//! A last bookmark for each watch when the proxy stops: [`frames`] takes a watch's answer apart while it passes,
//! [`follower`] keeps what its client has seen, [`storage`] says where in etcd that is kept, [`chronicle`] holds what etcd
//! told of that place, and [`proof`] says which revision a client may be told. All of these are pure; [`archive`] asks
//! etcd and fills [`book`]s. [`samples`] has what lists showed, for watches that see nothing. The stream that a watch is
//! belongs to [`crate::relay`].

pub mod archive;
pub mod book;
pub mod bookmark;
pub mod chronicle;
pub mod follower;
pub mod frames;
pub mod history;
pub mod proof;
pub mod resume;
pub mod samples;
pub mod storage;
