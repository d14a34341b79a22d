//! What this proxy tells others.

pub mod identity;
pub mod record;
