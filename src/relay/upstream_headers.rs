//! Writes the headers of upstream requests: headers that only peers may send are removed, and the identity is written
//! last.

use http::HeaderValue;
use http::header::EXPECT;
use pingora_http::RequestHeader;

use super::shared::Shared;
use super::upstream::RequestKind;
use crate::config::settings::Settings;
use crate::relay::route::ServerKind;
use crate::request::caller::{Caller, ClientConnection};
use crate::request::headers::{
    FORWARDED_FOR, IF_READY, PEER_PROXIED, REROUTED, stamp_address, strip_hop_by_hop,
};

/// Writes the headers that are the same for every server. Returns whether the proxy client certificate is presented.
pub fn for_any_server(
    shared: &Shared,
    header: &mut RequestHeader,
    connection: &ClientConnection,
    caller: &Caller,
    kind: RequestKind,
    settings: &Settings,
) -> pingora_core::Result<bool> {
    if *caller != Caller::Peer {
        let forged = shared.privileged.strip(header);
        if forged > 0 {
            shared.metrics.rejected_headers.inc_by(forged as u64);
        }
    }
    if settings.if_ready.enabled && header.headers.contains_key(IF_READY) {
        header.remove_header(&IF_READY);
    }
    // Over HTTP/2 pingora drops the apiserver's own 100, and curl would wait a second for it: the proxy sends it.
    if header.headers.contains_key(EXPECT) {
        header.remove_header(&EXPECT);
    }
    strip_hop_by_hop(header, kind == RequestKind::Upgrade)?;
    // The identity comes last, so that `ClientConnection` cannot remove it.
    let certificate = match caller {
        Caller::User(user) => {
            shared.privileged.stamp(header, user)?;
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

/// Writes the marks that limit a request to one reroute.
pub fn for_server_kind(
    header: &mut RequestHeader,
    server_kind: ServerKind,
) -> pingora_core::Result<()> {
    match server_kind {
        ServerKind::Peer | ServerKind::Native => {
            header.insert_header(REROUTED, HeaderValue::from_static("true"))?;
            header.insert_header(PEER_PROXIED, HeaderValue::from_static("true"))
        }
        // The apiserver gets only its own mark. Without it a native apiserver would pass the request on again.
        ServerKind::Local if header.headers.contains_key(REROUTED) => {
            header.remove_header(&REROUTED);
            header.insert_header(PEER_PROXIED, HeaderValue::from_static("true"))
        }
        ServerKind::Local => Ok(()),
    }
}
