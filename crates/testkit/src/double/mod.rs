//! A controllable kube-apiserver: the real protocol, with a small table of resources.
//!
//! It imitates v1.20.2 and v1.36 as observed: the order of authentication, the three forms of a 404, both forms of
//! discovery and their errors, readiness during the start, watch history that a restart loses. In addition tests can
//! add and remove resources, inject faults, and read every request as it arrived.
pub mod auth;
pub mod body;
pub mod client_connection;
pub mod discovery;
pub mod front_door;
pub mod handler;
pub mod kept;
pub mod objects;
pub mod openapi;
pub mod protobuf;
pub mod record;
pub mod resources;
pub mod reviews;
pub mod route;
pub mod scripted_answer;
pub mod server;
pub mod special;
pub mod state;
pub mod status;
pub mod store;
pub mod tls;
pub mod upgrade;
pub mod watch;

pub use kept::KeptInEtcd;
pub use record::Recorded;
pub use resources::{Kubernetes, Preset, ServedResource, v1_20, v1_26, v1_36};
pub use scripted_answer::ScriptedAnswer;
pub use server::Double;
pub use state::{DoubleOptions, Fault, Phase};
pub use store::Store;
