//! Merges into discovery documents what the apiserver itself does not list, and what other servers list (KEP-4020).
//!
//! The apiserver is asked for its document as the caller and in the caller's format, because the apiserver decides what
//! the caller may see. An answer that is not a document passes unchanged. Entries of other servers are added to the
//! whole document. The result is cached (`cache`); while the apiserver answers that its document has not changed, it
//! does not send it again. One [`Overlay`] goes from the plan, which says what is added to which document, to the exchange, which has
//! the answer made.

mod cache;
mod entity;
mod merge;
mod overlay;

pub use self::cache::{Cache, UNKEPT, Variant};
pub use self::entity::{Entity, EntityKey, remove_headers};
pub use self::merge::OverlayError;
pub use self::overlay::{DocumentMaker, Overlay};
