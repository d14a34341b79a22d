//! Handles one request until one answer.
//!
//! The way of a request, top to bottom: [`service`] reads it and identifies the caller; [`plan`] says where it goes, by
//! the table of [`crate::routing`]; [`forward`] sends it to one server after the other until one answers; [`exchange`] is
//! one of these, and streams the answer back ([`final_bookmark`] for watches). What answers mean before they pass is
//! read in [`inspect`]. Discovery documents have their own routes ([`discovery`]), and get what other servers list added
//! to the answer ([`overlay`]). The proxy's own answers are made in [`refusal`]. Each request loads one snapshot; no
//! locks.

mod access_log;
pub mod answer;
pub mod client_session;
pub mod connection;
pub mod context;
pub mod discovery;
pub mod downstream;
pub mod exchange;
pub mod final_bookmark;
pub mod forward;
pub mod framing;
pub mod frozen;
pub mod head;
pub mod health;
pub mod if_ready;
pub mod inspect;
pub mod keepalive;
pub mod large_headers;
pub mod metrics;
pub mod outcome;
pub mod overlay;
pub mod plan;
pub mod pool;
pub mod recent;
pub mod request_metrics;
pub mod request_span;
pub mod revalidate;
pub mod route;
pub mod service;
pub mod shared;
mod start;
pub mod tokens;
pub mod unread;
pub mod upstream;
pub mod upstream_stream;

pub use self::start::{RelayInputs, start};
