//! Writes the headers of upstream requests: headers that only peers may send are removed, and the identity is written
//! last.

use http::header::{EXPECT, HeaderMap, HeaderValue};
use http::request::Parts;

use crate::config::settings::Settings;
use crate::relay::shared::Shared;
use crate::relay::upstream::RequestKind;
use crate::request::caller::{Caller, ClientConnection};
use crate::request::headers::{
    FORWARDED_FOR, IF_READY, PEER_PROXIED, REROUTED, set, stamp_address, strip_hop_by_hop,
};
use crate::request::surplus::keep_client_headers;
use crate::routing::table::ServerKind;

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
        let forged = shared.callers.privileged.strip(headers);
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
            shared.callers.privileged.stamp(headers, user)?;
            true
        }
        Caller::Peer => shared.callers.privileged.named_user(headers).is_some(),
        Caller::Bearer | Caller::Anonymous | Caller::Unverifiable => false,
    };
    if *caller != Caller::Peer || !headers.contains_key(FORWARDED_FOR) {
        stamp_address(headers, &connection.address)?;
    }
    Ok(certificate)
}

/// Removes headers that the server may believe and the configuration does not name, and writes the marks that limit a
/// request to one reroute.
pub fn for_server_kind(
    shared: &Shared,
    headers: &mut HeaderMap,
    caller: &Caller,
    server_kind: ServerKind,
) -> pingora_core::Result<()> {
    if *caller != Caller::Peer {
        remove_surplus(shared, headers, caller, server_kind);
    }
    match server_kind {
        ServerKind::Proxied | ServerKind::Native | ServerKind::Bare => {
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

/// As long as it is not known which headers the server believes over a connection that presents the proxy client
/// certificate, only those that clients need go over one.
fn remove_surplus(
    shared: &Shared,
    headers: &mut HeaderMap,
    caller: &Caller,
    server_kind: ServerKind,
) {
    let surplus = shared.local.surplus_headers();
    let certificate = matches!(caller, Caller::User(_)) || server_kind == ServerKind::Proxied;
    // An apiserver publishes its names after it has started.
    let starting = server_kind == ServerKind::Local && !shared.local.is_initialized();
    if certificate && (starting || !surplus.is_known()) {
        return keep_client_headers(headers, &shared.callers.privileged);
    }
    let forged = surplus.strip(headers, &shared.callers.privileged);
    if forged > 0 {
        shared.metrics.rejected_headers.inc_by(forged as u64);
    }
}
