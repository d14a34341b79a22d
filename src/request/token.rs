//! Bearer tokens, where kube-apiserver looks for them: `Authorization`, and the subprotocols of a WebSocket, because a
//! browser can set no other header there. Pure.

use http::header::{self, HeaderMap, HeaderValue};
use pingora_core::{ErrorType, OrErr};

use crate::net::listed;

/// Prefix of the subprotocol that carries a token.
const PREFIX: &[u8] = b"base64url.bearer.authorization.k8s.io.";

/// Whether a request has a token, valid or not: only the apiserver can verify it. `upgrade`: it is forwarded as an
/// upgrade.
pub fn is_there(headers: &HeaderMap, upgrade: bool) -> bool {
    of_header(headers).is_some() || (upgrade && is_in_protocols(headers))
}

/// Whether the subprotocols of a WebSocket have a token. The apiserver reads it only if the request is sent as an upgrade,
/// whether it upgrades or not, and only of WebSocket requests. An empty token counts as none.
pub fn is_in_protocols(headers: &HeaderMap) -> bool {
    let upgrade = headers.get(header::UPGRADE);
    let is_websocket = upgrade.is_some_and(|it| it.as_bytes().eq_ignore_ascii_case(b"websocket"));
    let mut tokens = protocols(headers).filter_map(|protocol| protocol.strip_prefix(PREFIX));
    is_websocket && tokens.any(|token| !token.is_empty())
}

/// Removes every token.
pub fn remove(headers: &mut HeaderMap) -> pingora_core::Result<()> {
    headers.remove(header::AUTHORIZATION);
    if !protocols(headers).any(|protocol| protocol.starts_with(PREFIX)) {
        return Ok(());
    }
    let others: Vec<_> = protocols(headers)
        .filter(|protocol| !protocol.starts_with(PREFIX))
        .map(<[u8]>::to_vec)
        .collect();
    headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
    if !others.is_empty() {
        let others = HeaderValue::try_from(others.join(&b", "[..]));
        let others = others.or_err(ErrorType::InvalidHTTPHeader, "subprotocols")?;
        let set = headers.try_insert(header::SEC_WEBSOCKET_PROTOCOL, others);
        set.or_err(ErrorType::InvalidHTTPHeader, "too many headers")?;
    }
    Ok(())
}

/// The token in `Authorization`, after `Bearer`. As in kube-apiserver, everything else counts as no credentials.
pub fn of_header(headers: &HeaderMap) -> Option<&[u8]> {
    let authorization = headers.get(header::AUTHORIZATION)?.as_bytes().trim_ascii();
    let mut words = authorization.split(|byte| *byte == b' ');
    let scheme = words.next()?;
    let token = words.next().filter(|token| !token.is_empty())?;
    scheme.eq_ignore_ascii_case(b"bearer").then_some(token)
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    listed(headers, header::SEC_WEBSOCKET_PROTOCOL)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&str, &str)]) -> HeaderMap {
        let field = |(name, value): &(&str, &str)| {
            let name = header::HeaderName::from_bytes(name.as_bytes()).unwrap();
            (name, HeaderValue::from_str(value).unwrap())
        };
        let mut request = HeaderMap::new();
        for (name, value) in headers.iter().map(field) {
            request.append(name, value);
        }
        request
    }

    #[test]
    fn a_bearer_token_is_one_that_kube_apiserver_would_look_at() {
        let is_there = |value| is_there(&request(&[("Authorization", value)]), false);
        for bearer in ["Bearer x", "bearer x", "BEARER x y", " Bearer x"] {
            assert!(is_there(bearer), "{bearer}");
        }
        for none in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer  x",
            "Basic eDp5",
            "Bearerx y",
        ] {
            assert!(!is_there(none), "{none}");
        }
        let second = request(&[("Authorization", "Basic x"), ("Authorization", "Bearer x")]);
        assert!(!super::is_there(&second, false), "only the first counts");
    }

    const TOKEN: &str = "base64url.bearer.authorization.k8s.io.dG9r";

    #[test]
    fn a_subprotocol_of_a_websocket_is_a_token_too() {
        let with = |upgrade: &str, protocols: &str| {
            request(&[("Upgrade", upgrade), ("Sec-WebSocket-Protocol", protocols)])
        };
        let both = format!("v4.channel.k8s.io, {TOKEN}");
        assert!(is_there(&with("websocket", &both), true));
        assert!(is_there(&with("WebSocket", TOKEN), true));
        let empty = "base64url.bearer.authorization.k8s.io.";
        for (upgrade, protocols, sent_on) in [
            ("websocket", both.as_str(), false),
            ("SPDY/3.1", &both, true),
            ("websocket", empty, true),
            ("websocket", "v4.channel.k8s.io", true),
        ] {
            let request = with(upgrade, protocols);
            assert!(!is_there(&request, sent_on), "{upgrade} {protocols}");
        }
        let apart = request(&[
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Protocol", "v4.channel.k8s.io"),
            ("Sec-WebSocket-Protocol", TOKEN),
        ]);
        assert!(is_there(&apart, true));
    }

    #[test]
    fn tokens_are_removed_and_other_subprotocols_stay() {
        let mut request = request(&[
            ("Authorization", "Bearer x"),
            ("Sec-WebSocket-Protocol", "v5.channel.k8s.io"),
            (
                "Sec-WebSocket-Protocol",
                &format!("{TOKEN},v4.channel.k8s.io"),
            ),
        ]);
        remove(&mut request).unwrap();
        assert!(!request.contains_key("authorization"));
        let left: Vec<_> = request.get_all("sec-websocket-protocol").iter().collect();
        assert_eq!(left, ["v5.channel.k8s.io, v4.channel.k8s.io"]);
    }

    #[test]
    fn a_request_without_tokens_stays_as_it_is() {
        let mut plain = request(&[
            ("Sec-WebSocket-Protocol", "a"),
            ("Sec-WebSocket-Protocol", "b,c"),
        ]);
        let before = plain.clone();
        remove(&mut plain).unwrap();
        assert_eq!(plain, before);
    }

    #[test]
    fn a_subprotocol_alone_leaves_none_behind() {
        let mut request = request(&[("Sec-WebSocket-Protocol", TOKEN)]);
        remove(&mut request).unwrap();
        assert!(!request.contains_key("sec-websocket-protocol"));
    }
}
