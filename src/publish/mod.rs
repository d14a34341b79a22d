//! What this proxy tells others.

pub mod identify;
pub mod identity;
pub mod lease;
pub mod record;
pub mod rhythm;
pub mod slot;
