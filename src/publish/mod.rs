//! What this proxy tells others.

pub mod identify;
pub mod identity;
pub mod record;
pub mod slot;
