//! Merges into discovery documents what the apiserver itself does not list, and what other servers list (KEP-4020).
//!
//! The apiserver is asked for its document as the caller and in the caller's format, because the apiserver decides what
//! the caller may see. An answer that is not a document passes unchanged. Entries of other servers are added to the
//! whole document. The result is cached ([`cache`]); while the apiserver answers that its document has not changed, it
//! does not send it again.

pub mod cache;
pub mod entity;
pub mod merge;
pub mod metrics;
mod request;
pub mod serve;

pub use self::request::{MergeRequest, Overlay};
