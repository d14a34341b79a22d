//! One request to one answer.
//!
//! The way of a request: read it, judge who asks, gate on readiness ([`if_ready`]), decide where it goes
//! ([`plan`], by [`crate::routing`]'s table), write the headers that belong there, forward it ([`forward`]) and stream the answer back ([`stream`]; [`last_word`] of watches).
//! Discovery documents have a way of their own ([`discovery`]), and get what other servers list on their way back
//! ([`overlay`]). What the proxy answers itself is made in [`answer`]. One snapshot a request, taken once; no locks.

pub mod accept;
pub mod answer;
pub mod attempts;
pub mod between;
pub mod dial;
pub mod discovery;
pub mod download;
pub mod dress;
pub mod files;
pub mod forward;
pub mod framing;
pub mod front;
pub mod health;
pub mod if_ready;
pub mod last_word;
pub mod not_found;
pub mod overlay;
pub mod plan;
pub mod pool;
pub mod shared;
pub mod standing;
pub mod status;
pub mod stream;
pub mod upgraded;
pub mod upload;
pub mod upstream;
