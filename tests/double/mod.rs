//! A kube-apiserver that does as it is told: the real protocol on the outside, a small table of resources inside.
//!
//! What it imitates was seen on v1.20.2 and v1.36: the order of authentication, the three forms of a 404, both forms of
//! discovery and how they lie, readiness while starting, watch history that a restart loses. What it adds is control:
//! resources come and go, faults are injected, and every request is recorded as it arrived.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    missing_docs,
    unreachable_pub,
    dead_code,
    unused_imports,
    reason = "test support: a failure is a panic with a message, and not every test binary uses all of it"
)]

pub mod auth;
pub mod body;
pub mod discovery;
pub mod handler;
pub mod objects;
pub mod openapi;
pub mod protobuf;
pub mod record;
pub mod resources;
pub mod route;
pub mod server;
pub mod special;
pub mod state;
pub mod status;
pub mod store;
pub mod tls;
pub mod told;
pub mod upgrade;
pub mod watch;

pub use record::Recorded;
pub use resources::{Preset, ServedResource, v1_20, v1_26, v1_36};
pub use server::Double;
pub use state::{DoubleOptions, Fault, Phase};
pub use store::Store;
pub use told::Told;
