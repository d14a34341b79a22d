//! What answers of apiservers mean, before they are passed on. Pure: each file looks at the header of an answer, or at
//! the beginning of its body, and gives a verdict; the exchange reads, asks and waits.
//!
//! Answers that turn requests away ([`turned_away`]), "no such resource" ([`not_found`]) and when it is true
//! ([`denials`]), a watch that is too old for its server ([`expired`]), and what a peer's proxy says of its own answer
//! ([`not_executed`]).

mod asking;
pub mod denials;
pub mod expired;
pub mod not_found;
pub mod turned_away;

pub use self::asking::{Asking, not_executed};
