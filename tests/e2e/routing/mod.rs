//! Which server gets a request, and the answer if there is none.

pub mod absent_servers;
pub mod bare;
pub mod controllers;
pub mod custom_resources;
pub mod false_404;
pub mod misconfigured;
pub mod named_like_built_in;
pub mod real_apiservers;
pub mod refusals;
pub mod rerouting;
pub mod true_404;
pub mod unsynced;
pub mod versions;
