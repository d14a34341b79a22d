//! Handles one request until one answer.
//!
//! The way of a request, top to bottom: [`service`] reads it and identifies the caller; [`plan`] says where it goes, by
//! the table of [`crate::routing`]; [`forward`] sends it to one server after the other until one answers; [`exchange`] is
//! one of these, and streams the answer back. What answers mean before they pass is read in [`inspect`]; what other
//! servers list is added to discovery documents in [`documents`]; how long-running requests end is in [`watch`]. The
//! proxy's own answers are made in [`answer`]. Each request loads one snapshot; no locks.
//!
//! The rooms and their order stand in `ARCHITECTURE.md`, and a test keeps them.

pub mod answer;
pub mod client;
pub mod documents;
pub mod exchange;
pub mod forward;
pub mod inspect;
pub mod observe;
pub mod outcome;
pub mod plan;
pub mod recovery;
pub mod service;
pub mod shared;
pub mod upstream;
pub mod watch;
