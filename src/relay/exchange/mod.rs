//! One exchange with one apiserver: the request's body up and the answer's body down at the same time. Called by
//! [`crate::relay::forward`] for each server that is tried, and by [`crate::relay::service`] for the rest of a watch.
//!
//! The response header is passed on at once, and so is each piece of a body. No timeout ends an exchange: when either
//! side closes, the other is closed. An exchange that failed before anything was sent to the client returns an
//! [`ExchangeFailure`](crate::relay::outcome::ExchangeFailure), which says whether the request may have been executed.
//!
//! From top to bottom: [`run()`] asks (`ask`), looks at the header of the answer (`look`), and passes it on: answers
//! that are read first (`peek`), documents that are merged (`merged`), and all others (`stream`; `watch_rest` for
//! watches).
//! What these have in common is below: the parameters, the request on its way up (`upload`), the header that the client
//! gets (`answer_header`), whole answers (`whole`), and bodies (`answer`, `first_event`, `download`).

mod answer;
mod answer_header;
mod ask;
mod download;
mod expiry;
mod first_event;
mod framing;
pub mod headers;
mod look;
mod merged;
mod packed_header;
mod parameters;
mod peek;
mod run;
mod stream;
mod upgraded;
mod upload;
mod watch_rest;
mod whole;

pub use self::expiry::{Expiry, ResumedWatch};
pub use self::parameters::{Exchange, Leaving};
pub use self::run::run;
pub use self::upload::Upload;
pub use self::watch_rest::Delivered;
pub use self::whole::{pass_event, pass_kept};
