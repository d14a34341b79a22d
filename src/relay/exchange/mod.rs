//! One exchange with one apiserver: the request's body up and the answer's body down at the same time. Called by
//! [`crate::relay::forward`] for each server that is tried, and by [`crate::relay::service`] for the rest of a watch.
//!
//! The response header is passed on at once, and so is each piece of a body. No timeout ends an exchange: when either
//! side closes, the other is closed. An exchange that failed before anything was sent to the client returns an
//! [`ExchangeFailure`](crate::relay::outcome::ExchangeFailure), which says whether the request may have been executed.
//!
//! [`run()`] asks, looks at the header of the answer, and passes it on; `upload` writes the request for the server, and
//! `pump` streams both bodies. A plain request enters no other file. The others are about answers that are read first
//! (`read_first`), discovery documents (`merged`), a 410 that another server may avoid (`expired`), what is left of a watch
//! (`watch_rest`), and upgraded connections (`upgraded`).

mod expired;
mod merged;
mod pump;
mod read_first;
mod run;
mod upgraded;
mod upload;
mod watch_rest;

pub use self::expired::{Expiry, ResumedWatch, expired_event};
pub use self::pump::{Exchange, Leaving};
pub use self::run::{pass_event, pass_kept, run};
pub use self::upload::{Upload, for_any_server, for_server_kind};
pub use self::watch_rest::{Delivered, RestEnd, WatchRest};
