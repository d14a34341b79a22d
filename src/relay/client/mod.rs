//! The client's side: its connection, and one request of it as a session. The listeners make connections and sessions; the
//! service reads requests, and exchanges write answers, within the budget for those that clients do not read ([`unread`]).

mod connection;
mod session;
pub mod unread;

pub use self::connection::{AnswerWriter, Downstream, Outflow, SEND_BUFFER, VerificationPermit};
pub use self::session::{
    ClientSession, ClientStream, Expectation, HEADER_FIELD, HEADERS_OF_A_CONNECTION,
    IncomingHeaderSlot, LargeHeaderPermit, READ_HEADER, has_one_length, is_hosted, names_a_path,
};
