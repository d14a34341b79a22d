//! What a request is while it is forwarded: the same for every server that it is sent to. [`crate::relay::service`] makes
//! it, and lends it to each exchange.

use crate::relay::client::Downstream;
use crate::relay::observe::RequestMeter;
use crate::relay::plan::RouteRequest;
use crate::relay::shared::Shared;
use crate::relay::upstream::{RequestKind, Tokens};

/// A request that is forwarded.
pub struct RequestContext<'a> {
    pub shared: &'a Shared,
    /// Tokens that apiservers have accepted.
    pub tokens: &'a Tokens,
    pub request: &'a RouteRequest<'a>,
    /// The client's connection.
    pub downstream: &'a Downstream,
    pub kind: RequestKind,
    /// Counts the request when its answer begins.
    pub meter: &'a RequestMeter<'a>,
}
