//! The client's side: its connection, one request of it as a session, and what HTTP/1 needs before and after a request.
//! The listeners make connections and sessions; the service reads requests, and exchanges write answers, within the
//! budget for those that clients do not read ([`unread`]).

mod connection;
pub mod header;
mod http1;
mod session;
pub mod unread;

pub use self::connection::{CountedStream, Downstream, Outflow, VerificationPermit};
pub use self::header::{Expectation, has_one_length, is_hosted, names_a_path};
pub use self::http1::{
    FIRST_REQUEST_TIMEOUT, Head, HeadError, IDLE_TIMEOUT, idle, linger, linger_unread, read_head,
};
pub use self::session::{ClientSession, ClientStream};
