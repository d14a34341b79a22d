//! Merges into discovery documents what the apiserver itself does not list, and what other servers list (KEP-4020).
//!
//! The apiserver is asked for its document as the caller and in the caller's format, because the apiserver decides what
//! the caller may see. An answer that is not a document passes unchanged. Entries of other servers are added to the
//! whole document. The result is cached (`cache`); while the apiserver answers that its document has not changed, it
//! does not send it again. The plan says what is added to which document; exchanges begin with a [`MergeRequest`] and have
//! the answer made.

mod cache;
mod entity;
mod merge;
mod metrics;
mod request;
mod serve;

pub use self::cache::{Cache, UNKEPT, Variant};
pub use self::entity::{Entity, EntityFormat, EntitySource, remove_headers};
pub use self::merge::{OverlayError, refuses};
pub use self::metrics::{DocumentMetrics, DocumentOutcome};
pub use self::request::{MergeRequest, Overlay};
pub use self::serve::DocumentMaker;
