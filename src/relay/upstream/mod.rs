//! Connections to apiservers, and what is known of the servers behind them: which have failed ([`health`]), and from which
//! nothing comes ([`frozen`]). The plan asks which servers to avoid; an exchange takes a session and gives it back.

mod connection;
pub mod frozen;
mod groups;
pub mod health;
mod pool;
mod stream;
mod tokens;

pub use self::connection::{LONG_RUNNING_WINDOW, STREAM_WINDOW};
pub use self::groups::{
    ConnectionChoice, PoolChoice, RequestKind, STREAMS, UnverifiedPools, UpstreamGroup, Upstreams,
};
pub use self::stream::{BodyPrefix, UpstreamSession, UpstreamStream};
pub use self::tokens::{Token, Tokens};
