//! The headers that belong to where a request goes: what only peers may send is removed, the identity is written last.

use http::HeaderValue;
use http::header::EXPECT;
use pingora_http::RequestHeader;

use super::forward::Side;
use super::shared::Shared;
use super::upstream::Kind;
use crate::request::headers::{
    FORWARDED_FOR, IF_READY, PEER_PROXIED, REROUTED, stamp_address, strip_hop_by_hop,
};
use crate::request::who::{Caller, Connection};

/// Writes what is the same wherever the request goes; whether the proxy client certificate goes with it.
pub fn for_anybody(
    shared: &Shared,
    header: &mut RequestHeader,
    connection: &Connection,
    caller: &Caller,
    kind: Kind,
) -> pingora_core::Result<bool> {
    if *caller != Caller::Peer {
        let forged = shared.privileged.strip(header);
        if forged > 0 {
            shared.metrics.rejected_headers.inc_by(forged as u64);
        }
    }
    if shared.config.if_ready.enabled && header.headers.contains_key(IF_READY) {
        header.remove_header(&IF_READY);
    }
    // Over HTTP/2 pingora drops the apiserver's own 100, and curl would wait a second for it: we say it.
    if header.headers.contains_key(EXPECT) {
        header.remove_header(&EXPECT);
    }
    strip_hop_by_hop(header, kind == Kind::Upgrade)?;
    // Identity comes last: nothing that the client listed in `Connection` can take it away.
    let certificate = match caller {
        Caller::User(who) => {
            shared.privileged.stamp(header, who)?;
            true
        }
        Caller::Peer => shared.privileged.named_user(&header.headers).is_some(),
        Caller::Bearer | Caller::Anonymous | Caller::Unverifiable => false,
    };
    if *caller != Caller::Peer || !header.headers.contains_key(FORWARDED_FOR) {
        stamp_address(header, &connection.address)?;
    }
    Ok(certificate)
}

/// Writes the marks of the one hop that a request may take.
pub fn for_side(header: &mut RequestHeader, side: Side) -> pingora_core::Result<()> {
    match side {
        Side::Peer | Side::Native => {
            header.insert_header(REROUTED, HeaderValue::from_static("true"))?;
            header.insert_header(PEER_PROXIED, HeaderValue::from_static("true"))
        }
        // The apiserver is told in its own words only: a native one would else pass the request on for ever.
        Side::Local if header.headers.contains_key(REROUTED) => {
            header.remove_header(&REROUTED);
            header.insert_header(PEER_PROXIED, HeaderValue::from_static("true"))
        }
        Side::Local => Ok(()),
    }
}
