//! The client's side: its connection, one request of it as a session, and what HTTP/1 needs before and after a request.
//! The listeners make connections and sessions; the service reads requests, and exchanges write answers, within the
//! budget for those that clients do not read ([`unread`]).

mod connection;
mod head;
mod keepalive;
pub mod large_headers;
mod request_form;
mod session;
pub mod unread;

pub use self::connection::{Downstream, VerificationPermit};
pub use self::head::{Head, HeadError, read_head};
pub use self::keepalive::{FIRST_REQUEST_TIMEOUT, IDLE_TIMEOUT, idle, linger, linger_unread};
pub use self::request_form::{Expectation, has_one_length, is_hosted, names_a_path};
pub use self::session::{ClientSession, ClientStream};
