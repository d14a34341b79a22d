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
//! From top to bottom: `failover` is the loop over servers. What a request waits for first, and what identifies its caller,
//! is in `authentication`. What is known of the servers that were tried, and which is the next, is in `tries`, with the
//! answers that are kept (`kept_answers`, and `expired_watch` after a 410). `request` makes the exchange with one server,
//! and counts its answer; `report` tells the state of servers, and the log, what failed.

mod authentication;
mod expired_watch;
mod failover;
mod kept_answers;
mod report;
mod request;
mod tries;

pub use self::failover::forward;
pub use self::request::{ForwardedRequest, Refused};
