//! One exchange with one apiserver: the request's body up and the answer's body down at the same time. Called by
//! [`crate::relay::forward`] for each server that is tried, and by [`crate::relay::service`] for the rest of a watch.
//!
//! The response header is passed on at once, and so is each piece of a body. No timeout ends an exchange: when either
//! side closes, the other is closed. An exchange that failed before anything was sent to the client returns an
//! [`ExchangeFailure`](crate::relay::outcome::ExchangeFailure), which says whether the request may have been executed.
//!
//! [`run()`] asks, looks at the header of the answer, and passes it on; `pump` streams both bodies, and `headers` writes
//! what is sent to the server and to the client. A plain request enters no other file. The others are about a body that
//! is sent again (`replay`), answers that are read first (`read_first`), discovery documents (`merged`), a 410 that another
//! server may avoid (`expired`), what is left of a watch (`watch_rest`), and upgraded connections (`upgraded`).

mod expired;
pub mod headers;
mod merged;
mod pump;
mod read_first;
mod replay;
mod run;
mod upgraded;
mod watch_rest;

pub use self::expired::{Expiry, ResumedWatch, expired_event};
pub use self::headers::{Exchange, Leaving};
pub use self::pump::Upload;
pub use self::read_first::{pass_event, pass_kept};
pub use self::run::run;
pub use self::watch_rest::Delivered;
