//! How requests that run for hours end: watches with a last bookmark, and all of them when their certificates no longer
//! count. Exchanges follow their answers here, and so does what is left of a watch.

mod final_bookmark;
mod revalidate;

pub use self::final_bookmark::{FinalBookmark, Watch};
pub use self::revalidate::{Revalidation, ends};
