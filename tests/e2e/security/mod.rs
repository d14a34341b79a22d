//! Attackers at the TLS port.

pub mod attacker;
pub mod desync;
pub mod floods;
pub mod forged_headers;
pub mod http2_attacks;
pub mod promises;
pub mod smuggling;
pub mod strangers;
