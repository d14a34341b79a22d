//! Headers that have a meaning of their own for kube-apiserver, for servers before it, or for the connection: clients
//! may send them, and none of them can say who somebody is. Pure.

/// Names, in lower case.
pub const NAMES: &[&str] = &[
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "access-control-request-headers",
    "access-control-request-method",
    "audit-id",
    "authorization",
    "baggage",
    "cache-control",
    "connection",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "keep-alive",
    "origin",
    "pragma",
    "proxy-connection",
    "range",
    "referer",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-kubernetes-if-ready",
    "x-real-ip",
    "x-stream-protocol-version",
];

/// Prefixes of names.
pub const PREFIXES: &[&str] = &["impersonate-", "sec-websocket-"];

/// Whether clients need a header of this name, in lower case.
pub fn is_one(name: &str) -> bool {
    NAMES.binary_search(&name).is_ok() || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_sorted_and_only_exact_names_are_in_it() {
        assert!(NAMES.is_sorted());
        for name in [
            "authorization",
            "accept",
            "impersonate-user",
            "impersonate-extra-scopes",
            "sec-websocket-protocol",
            "upgrade",
            "content-type",
            "if-none-match",
            "user-agent",
        ] {
            assert!(is_one(name), "{name}");
        }
        for name in [
            "x-auth-group",
            "x-remote-user",
            "accept-group",
            "content-group",
            "impersonate_user",
            "accep",
            "",
        ] {
            assert!(!is_one(name), "{name}");
        }
    }
}
