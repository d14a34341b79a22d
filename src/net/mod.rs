//! What connections and requests are made with, and what knows neither: sockets and their limit, pieces of HTTP/2 bodies,
//! writes that are put together, errors, and boxed futures. For `relay` and the listeners.

mod boxed;
mod destination;
mod dial;
mod errors;
pub mod files;
mod h2_body;
mod lengths;
mod write_batch;

pub use self::boxed::{Rare, boxed, rare};
pub use self::destination::Destination;
pub use self::dial::dial;
pub use self::errors::{RedactedError, is_unprocessed};
pub use self::h2_body::{poll_receive, poll_send, receive, release};
pub use self::lengths::{lengths_agree, single_length};
pub use self::write_batch::{Flush, WriteBatch, batched, buffered};
