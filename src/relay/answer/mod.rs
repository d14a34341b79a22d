//! The proxy's own answers: why it answers itself, and how that becomes an HTTP response in the form that the client
//! accepts. Called by [`crate::relay::service`] for requests, and wherever a [`Refusal`] is chosen.

mod format;
mod refusal;
mod status;
mod writing;

pub use self::format::{StatusFormat, is_for_one_server};
pub use self::refusal::{Refusal, ResponseOptions};
pub use self::writing::{refuse, refuse_unread};
