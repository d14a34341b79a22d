//! Headers that only peers may send, and those that this proxy sets itself.
//!
//! The apiserver's requestheader names and prefixes and both reroute headers are privileged. The proxy removes them
//! from all other requests, in any spelling that another server could read as the same name: case (the `http` crate
//! lower-cases), `_` for `-`, repeated, or named in `Connection`.

use http::Version;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use pingora_core::{ErrorType, OrErr};

use super::caller::{Caller, UserHeaders};
use super::credential::{self, CredentialFeatures};
use super::header_names::HeaderNames;
use super::token;
use crate::config::RequestHeaders;
use crate::kube::version::{KubernetesVersion, MalformedVersion};
use crate::net::listed;

/// KEP-4020's mark of a rerouted request.
pub const REROUTED: HeaderName = HeaderName::from_static("x-kubernetes-apiserver-rerouted");
/// The mark that kube-apiserver's own mixed version proxy uses.
pub const PEER_PROXIED: HeaderName = HeaderName::from_static("x-kubernetes-peer-proxied");
/// KEP-3028: the client wants an answer only from an initialized apiserver.
pub const IF_READY: HeaderName = HeaderName::from_static("x-kubernetes-if-ready");
/// KEP-3028: whether the apiserver that answered was initialized.
pub const READY: HeaderName = HeaderName::from_static("x-kubernetes-ready");
/// Between proxies, on a 503: nothing was executed, so any request may be sent to another server. On a 404: it is not in
/// doubt.
pub const NOT_EXECUTED: HeaderName = HeaderName::from_static("x-kube-interop-proxy-not-executed");
/// Its value if only the requested resource is the reason; the server may execute other requests.
pub const OF_RESOURCE: HeaderValue = HeaderValue::from_static("resource");
/// Between proxies, in the trailers of a rerouted watch: it did not end by itself, and may go on at another server.
pub const GOES_ON: HeaderName = HeaderName::from_static("x-kube-interop-proxy-goes-on");
/// Between proxies, on answers to requests that were not rerouted: the ID of the server whose proxy answers.
pub const SERVER_ID: HeaderName = HeaderName::from_static("x-kube-interop-proxy-server-id");
/// The client's address, for the apiserver's audit log.
pub const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// Hop-by-hop, like `Connection`.
pub const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// Hop-by-hop; never standardized, but still sent.
pub const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const UPGRADE: &[u8] = b"upgrade";
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// The names that only peers may send.
#[derive(Debug, Clone)]
pub struct PrivilegedHeaders {
    all: HeaderNames,
    config: RequestHeaders,
    credential: Option<HeaderName>,
}

impl PrivilegedHeaders {
    /// `config`: the apiserver's requestheader names. The proxy writes the first user and the first group name.
    pub fn new(config: &RequestHeaders) -> Self {
        let names: Vec<_> = [&config.username, &config.uid, &config.group]
            .into_iter()
            .flatten()
            .chain(&[REROUTED, PEER_PROXIED])
            .map(|name| name.as_str().to_owned())
            .collect();
        let prefixes = config.extra_prefixes.clone();
        Self {
            config: config.clone(),
            credential: prefixes
                .first()
                .and_then(|prefix| credential::header(prefix)),
            all: HeaderNames::new(names, prefixes),
        }
    }

    /// The user that the proxy vouches for. Only an apiserver knows the user of a token.
    pub fn user<'h>(&self, caller: &'h Caller, headers: &'h HeaderMap) -> Option<&'h HeaderValue> {
        match caller {
            Caller::User(user) => Some(&user.user),
            Caller::Peer => self.named_user(headers),
            Caller::Bearer | Caller::Anonymous | Caller::Unverifiable => None,
        }
    }

    /// The remote user that `headers` name.
    pub fn named_user<'h>(&self, headers: &'h HeaderMap) -> Option<&'h HeaderValue> {
        let mut users = self
            .config
            .username
            .iter()
            .filter_map(|name| headers.get(name));
        users.find(|user| !user.as_bytes().trim_ascii().is_empty())
    }

    /// Whether `headers` name a user that apiservers take for unauthenticated: since 1.29 they end an HTTP/2 connection
    /// after the request of such a user.
    pub fn name_unauthenticated(&self, headers: &HeaderMap) -> bool {
        let is = |value: &HeaderValue, name: &[u8]| value.as_bytes().trim_ascii() == name;
        let groups = self.config.group.iter();
        let mut groups = groups.flat_map(|name| headers.get_all(name));
        self.named_user(headers)
            .is_some_and(|user| is(user, b"system:anonymous"))
            || groups.any(|group| is(group, b"system:unauthenticated"))
    }

    /// Removes every privileged header. Returns the number of names removed.
    pub fn strip(&self, headers: &mut HeaderMap) -> usize {
        self.all.strip(headers, |_| false)
    }

    /// Whether a header of this name is privileged.
    pub fn contains(&self, name: &str) -> bool {
        self.all.contains(name)
    }

    /// Whether a header of this name says who the user is: not a mark of a rerouted request.
    pub fn names_user(&self, name: &str) -> bool {
        self.contains(name) && name != REROUTED.as_str() && name != PEER_PROXIED.as_str()
    }

    /// Whether all headers whose names begin with `prefix` are privileged.
    pub fn takes_in(&self, prefix: &str) -> bool {
        self.all.takes_in(prefix)
    }

    /// Writes a certificate user as requestheader values.
    pub fn stamp(&self, headers: &mut HeaderMap, who: &UserHeaders) -> pingora_core::Result<()> {
        if let Some(user) = self.config.username.first() {
            set(headers, user.clone(), who.user.clone())?;
        }
        if let Some(group) = self.config.group.first() {
            for value in &who.groups {
                let added = headers.try_append(group.clone(), value.clone());
                added.or_err(ErrorType::InvalidHTTPHeader, TOO_MANY)?;
            }
        }
        // An apiserver that trusts the header ignores tokens. One that does not trust it must not use a token, or the
        // request would have another user.
        token::remove(headers)
    }

    /// Writes the further attributes that an apiserver gives certificate users ([`credential::details`]).
    pub fn stamp_details(
        &self,
        headers: &mut HeaderMap,
        who: &UserHeaders,
        details: CredentialFeatures,
    ) -> pingora_core::Result<()> {
        if details.credential_id
            && let Some(name) = &self.credential
        {
            set(headers, name.clone(), who.credential.clone())?;
        }
        if details.uid
            && let (Some(name), Some(uid)) = (self.config.uid.first(), &who.uid)
        {
            set(headers, name.clone(), uid.clone())?;
        }
        Ok(())
    }
}

/// The Kubernetes version that the client requests in the header `name`. Repeated headers must agree.
pub fn version_asked(
    headers: &HeaderMap,
    name: &HeaderName,
) -> Result<Option<KubernetesVersion>, MalformedVersion> {
    let mut asked = None;
    for value in headers.get_all(name) {
        let text = value.to_str().map_err(|_| MalformedVersion)?;
        let version = text.trim_ascii().parse()?;
        if *asked.get_or_insert(version) != version {
            return Err(MalformedVersion);
        }
    }
    Ok(asked)
}

const TOO_MANY: &str = "too many headers";

/// Sets a header to one value.
pub fn set(
    headers: &mut HeaderMap,
    name: HeaderName,
    value: HeaderValue,
) -> pingora_core::Result<()> {
    let set = headers.try_insert(name, value);
    set.or_err(ErrorType::InvalidHTTPHeader, TOO_MANY).map(drop)
}

/// The names of hop-by-hop headers, with those that `Connection` lists.
pub fn hop_by_hop(headers: &HeaderMap) -> Vec<HeaderName> {
    let listed = listed(headers, header::CONNECTION);
    let listed = listed.filter_map(|name| HeaderName::from_bytes(name).ok());
    let always = [header::CONNECTION, KEEP_ALIVE, PROXY_CONNECTION];
    listed.chain(always).collect()
}

/// Removes hop-by-hop headers (RFC 9110 §7.6.1), including the names listed in `Connection`. Keeps the upgrade headers
/// if `upgrade` is set.
pub fn strip_hop_by_hop(
    headers: &mut HeaderMap,
    version: Version,
    upgrade: bool,
) -> pingora_core::Result<()> {
    headers.remove(header::TE);
    headers.remove(HTTP2_SETTINGS);
    if version == Version::HTTP_2 {
        // The others are malformed there (RFC 9113 §8.2.2): h2 lets none through.
        return Ok(());
    }
    for name in hop_by_hop(headers) {
        if name != header::UPGRADE && !says_who(&name) {
            headers.remove(name);
        }
    }
    if upgrade {
        let upgrade = HeaderValue::from_static("Upgrade");
        set(headers, header::CONNECTION, upgrade)?;
    } else {
        headers.remove(header::UPGRADE);
    }
    Ok(())
}

/// Whether `Connection` names `Upgrade`, with kube-apiserver's rules: without it no other proxy on the path expects the
/// connection to change its protocol.
pub fn means_upgrade(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::CONNECTION).iter();
    values.any(|value| {
        let mut parts = value.as_bytes().windows(UPGRADE.len());
        parts.any(|part| part.eq_ignore_ascii_case(UPGRADE))
    })
}

/// Credentials and impersonation headers are always forwarded, even if `Connection` names them: without them the
/// request would have another user.
fn says_who(name: &HeaderName) -> bool {
    *name == header::AUTHORIZATION || name.as_str().starts_with("impersonate-")
}

/// Replaces the client's claims about its address by the real address: audit logs rely on it.
pub fn stamp_address(headers: &mut HeaderMap, address: &HeaderValue) -> pingora_core::Result<()> {
    set(headers, FORWARDED_FOR, address.clone())?;
    if headers.contains_key(REAL_IP) {
        set(headers, REAL_IP, address.clone())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
