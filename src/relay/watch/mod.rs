//! What becomes of requests that run for hours: what the client of a watch has seen (`watched`), and how they end: watches with
//! a last bookmark, and all of them when their certificates no longer count. Exchanges follow their answers here, and so does
//! what is left of a watch.

mod asked;
mod final_bookmark;
mod revalidate;
mod watched;

pub use self::asked::{Again, AskedServers};
pub use self::final_bookmark::{FinalBookmark, stream_format};
pub use self::revalidate::{Dependencies, until_terminated};
pub use self::watched::{ServedBy, Watch, unchanged_through};
