//! What answers of apiservers mean, before they are passed on. Pure: each file looks at the header of an answer, or at
//! the beginning of its body, and gives a verdict; the exchange reads, asks and waits.
//!
//! Answers that turn requests away ([`turned_away`]), "no such resource" ([`not_found`]) and when it is true
//! ([`denials`]), what only an older apiserver would say ([`not_understood`]), and what a peer's proxy says of its own answer ([`not_executed`]).

pub mod denials;
pub mod not_found;
pub mod not_understood;
pub mod turned_away;

use std::time::Duration;

use http::{Method, StatusCode};
use pingora_http::ResponseHeader;

use crate::request::headers::{NOT_EXECUTED, OF_RESOURCE};
use crate::request::info::RequestInfo;
use crate::routing::decide::NoSuchResource;
use crate::routing::table::ServerKind;

/// Longest body that is read for what a `Status` in it says. kube-apiserver's own are below 1 KiB.
pub const STATUS_LIMIT: usize = 16 << 10;
/// Time for it.
pub const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// Who was asked for what, and for whom.
pub struct Asking<'a> {
    pub method: &'a Method,
    pub info: &'a RequestInfo<'a>,
    pub server_kind: ServerKind,
    /// What becomes of "no such resource".
    pub no_such_resource: NoSuchResource,
    /// A peer's proxy has rerouted the request and gets the answer.
    pub for_peer: bool,
}

/// Whether a peer's proxy says that the request was not executed. `Some(true)`: because of the resource.
pub fn not_executed(server_kind: ServerKind, response: &ResponseHeader) -> Option<bool> {
    let may_be =
        server_kind == ServerKind::Proxied && response.status == StatusCode::SERVICE_UNAVAILABLE;
    let mark = may_be.then(|| response.headers.get(NOT_EXECUTED))?;
    mark.map(|mark| mark == OF_RESOURCE)
}
