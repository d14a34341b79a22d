//! Writes the headers of upstream requests: headers that only peers may send are removed, and the identity is written
//! last.

use http::header::{EXPECT, HeaderMap, HeaderValue};
use http::request::Parts;

use super::shared::Shared;
use super::upstream::RequestKind;
use crate::config::settings::Settings;
use crate::relay::route::ServerKind;
use crate::request::caller::{Caller, ClientConnection};
use crate::request::headers::{
    FORWARDED_FOR, IF_READY, PEER_PROXIED, REROUTED, set, stamp_address, strip_hop_by_hop,
};

/// Writes the headers that are the same for every server. Returns whether the proxy client certificate is presented.
pub fn for_any_server(
    shared: &Shared,
    header: &mut Parts,
    connection: &ClientConnection,
    caller: &Caller,
    kind: RequestKind,
    settings: &Settings,
) -> pingora_core::Result<bool> {
    let headers = &mut header.headers;
    if *caller != Caller::Peer {
        let forged = shared.privileged.strip(headers);
        if forged > 0 {
            shared.metrics.rejected_headers.inc_by(forged as u64);
        }
    }
    if settings.if_ready.enabled {
        headers.remove(IF_READY);
    }
    // Over HTTP/2 pingora drops the apiserver's own 100, and curl would wait a second for it: the proxy sends it.
    headers.remove(EXPECT);
    strip_hop_by_hop(headers, header.version, kind == RequestKind::Upgrade)?;
    // The identity comes last, so that `ClientConnection` cannot remove it.
    let certificate = match caller {
        Caller::User(user) => {
            shared.privileged.stamp(headers, user)?;
            true
        }
        Caller::Peer => shared.privileged.named_user(headers).is_some(),
        Caller::Bearer | Caller::Anonymous | Caller::Unverifiable => false,
    };
    if *caller != Caller::Peer || !headers.contains_key(FORWARDED_FOR) {
        stamp_address(headers, &connection.address)?;
    }
    Ok(certificate)
}

/// Writes the marks that limit a request to one reroute.
pub fn for_server_kind(
    headers: &mut HeaderMap,
    server_kind: ServerKind,
) -> pingora_core::Result<()> {
    match server_kind {
        ServerKind::Peer | ServerKind::Native => {
            set(headers, REROUTED, HeaderValue::from_static("true"))?;
            set(headers, PEER_PROXIED, HeaderValue::from_static("true"))
        }
        // The apiserver gets only its own mark. Without it a native apiserver would pass the request on again.
        ServerKind::Local => match headers.remove(REROUTED) {
            Some(_) => set(headers, PEER_PROXIED, HeaderValue::from_static("true")),
            None => Ok(()),
        },
    }
}
