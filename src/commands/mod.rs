//! What operators ask on the command line of a running cluster.
//!
//! Each command has a pure part, which makes text or decides, and a thin edge, which asks the admin port or etcd and waits
//! 5 s at most. Values come from etcd, where others write: they are shown by way of `text::plain` only.

pub mod forget;
pub mod status;
pub mod terminal;

mod text;

use std::time::Duration;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// As it should.
    Good,
    /// It could not be done, or the answer is bad news.
    Bad,
    /// It was called in a way that cannot be followed.
    Usage,
}
