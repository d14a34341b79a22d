//! Where a request goes: what is done with it at first, and to which server next when one cannot answer. Called by the
//! service, by the loop over servers, and by an exchange that could be given up.

mod documents;
mod if_ready;
mod planning;
mod route;

pub use self::if_ready::{Gate, gate};
pub use self::planning::{after_expiry, can_leave, is_nobodys, next, plan};
pub use self::route::{Action, Patience, Plan, Route, RouteRequest};
