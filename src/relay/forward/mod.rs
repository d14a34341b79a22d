//! Sends a request to one server after the other until one answers. Called by [`crate::relay::service`].
//!
//! No write is sent twice: when an exchange broke off after part of it was sent, only reads are tried on another
//! server. A request that was certainly not executed is tried again whatever its verb, as long as its body can be sent
//! again.
//!
//! When no server is left, the client gets an answer that was kept (`kept_answers`). Otherwise it gets a 503.
//! client-go repeats any request whose answer has `Retry-After`, so a write that may have been executed gets a 503
//! without it.
//!
//! From top to bottom: `failover` is the loop over servers, `after_expiry` the one over those that may have the history
//! of a watch. Both make their exchanges of a `request`, `report` what failed, and keep answers.

mod after_expiry;
mod failover;
mod kept_answers;
mod report;
mod request;

pub use self::failover::forward;
pub use self::request::{ForwardedRequest, Refused};
