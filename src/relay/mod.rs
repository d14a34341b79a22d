//! Handles one request until one answer.
//!
//! A request's path: read it, identify the caller, check readiness ([`if_ready`]), plan where it goes ([`plan`], by the
//! table of [`crate::routing`]), write the upstream headers, exchange ([`exchange`]) and stream the answer back
//! ([`stream`]; [`final_bookmark`] for watches; [`expired`] for watches that one server is too new for). Discovery documents have their own routes ([`discovery`]), and get
//! what other servers list added to the answer ([`overlay`]). The proxy's own answers are made in [`refusal`]. Each
//! request loads one snapshot; no locks.

pub mod accept;
mod access_log;
mod answer;
pub mod boxed;
pub mod client_session;
pub mod connection;
pub mod denials;
pub mod destination;
pub mod dial;
pub mod discovery;
pub mod download;
pub mod downstream;
pub mod exchange;
pub mod expired;
pub mod failover;
pub mod files;
pub mod final_bookmark;
pub mod framing;
pub mod frozen;
mod h2_body;
pub mod head;
pub mod health;
pub mod if_ready;
pub mod keepalive;
pub mod kept_answer;
pub mod large_headers;
mod merged_document;
pub mod metrics;
pub mod not_found;
pub mod outcome;
pub mod overlay;
pub mod packed_header;
mod pieces;
pub mod plan;
pub mod pool;
pub mod recent;
pub mod refusal;
pub mod request_metrics;
pub mod request_span;
pub mod revalidate;
pub mod route;
pub mod service;
pub mod shared;
mod start;
pub mod status;
pub mod stream;
pub mod tokens;
pub mod turned_away;
pub mod unread;
pub mod upgraded;
pub mod upload;
pub mod upstream;
pub mod upstream_headers;
pub mod upstream_stream;
pub mod watch_rest;
pub mod write_batch;

pub use self::start::{RelayInputs, start};
