//! HTTP: what passes unchanged, and what cannot pass.

pub mod as_real_apiservers;
pub mod bodies;
pub mod differential;
pub mod disconnects;
pub mod does_not_pass;
pub mod early_answers;
pub mod expectations;
pub mod fidelity;
pub mod headers;
pub mod scripted_server;
pub mod strict_server;
pub mod upgrades;
