//! Handles one request until one answer.
//!
//! The way of a request, top to bottom: [`service`] reads it and identifies the caller; [`plan`] says where it goes, by
//! the table of [`crate::routing`]; [`forward`] sends it to one server after the other until one answers; [`exchange`] is
//! one of these, and streams the answer back ([`final_bookmark`] for watches). What answers mean before they pass is
//! read in [`inspect`]. Discovery documents have their own routes ([`discovery`]), and get what other servers list added
//! to the answer ([`overlay`]). The proxy's own answers are made in [`refusal`]. Each request loads one snapshot; no
//! locks.

pub mod answer;
pub mod client;
pub mod context;
pub mod discovery;
pub mod documents;
pub mod exchange;
pub mod final_bookmark;
pub mod forward;
pub mod if_ready;
pub mod inspect;
pub mod observe;
pub mod outcome;
pub mod plan;
pub mod revalidate;
pub mod route;
pub mod service;
pub mod shared;
mod start;
pub mod unread;
pub mod upstream;

pub use self::start::{RelayInputs, start};
