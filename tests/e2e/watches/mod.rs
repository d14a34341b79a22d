//! Watches across restarts (KEP-1904): last bookmarks, resumption, storms.

pub mod bookmark_proofs;
pub mod bookmark_rounds;
pub mod bookmarks;
pub mod compaction;
pub mod expired;
pub mod guarantees;
mod half_dead;
pub mod hand_over;
pub mod progress;
pub mod quiet;
pub mod resources;
pub mod resume;
mod seam;
pub mod stampede;
pub mod stop_order;
pub mod writing;
