//! The HTTP application of the TLS port. Each serving thread has one.
//!
//! `relay_service` is the way of a request: it is read (`http1`, `reading`), planned ([`crate::relay::plan`]), and
//! forwarded ([`crate::relay::forward`]) or answered (`refuse`).

mod http1;
mod reading;
mod refuse;
mod relay_service;

pub use self::http1::HEADER_TIMEOUT;
pub use self::relay_service::RelayService;
