//! Header fields, methods and paths that mean something to somebody.

use arbitrary::Arbitrary;

/// Names in all spellings that mean something to somebody, in lower case for HTTP/2.
const NAMES: [&str; 38] = [
    "x-remote-user",
    "x_remote_user",
    "x-remote_user",
    "x-remote-group",
    "x_remote_group",
    "x-remote-uid",
    "x-remote-extra-scopes",
    "x_remote_extra_scopes",
    "x-remote-extra-authentication.kubernetes.io%2fcredential-id",
    "x-kubernetes-apiserver-rerouted",
    "x-kubernetes-peer-proxied",
    "x_kubernetes_peer_proxied",
    "x-kubernetes-if-ready",
    "x-kubernetes-compatibility-version",
    "x-kube-interop-proxy-not-executed",
    "x-kube-interop-proxy-server-id",
    "x-forwarded-for",
    "x-real-ip",
    "impersonate-user",
    "authorization",
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "content-length",
    "upgrade",
    "http2-settings",
    "expect",
    "host",
    "accept",
    "content-type",
    "if-none-match",
    "sec-websocket-protocol",
    "traceparent",
    "cookie",
    "accept-encoding",
];
const VALUES: [&str; 30] = [
    "",
    "true",
    "system:masters",
    "admin",
    "alice",
    " alice",
    "1",
    "0",
    "5",
    "+5",
    "1, 1",
    "1.20",
    "1.32",
    "x-remote-user",
    "X-Remote-User, close",
    "close",
    "keep-alive",
    "upgrade",
    "Upgrade, x-remote-group",
    "chunked",
    "gzip, chunked",
    "trailers",
    "websocket",
    "SPDY/3.1",
    "100-continue",
    "Bearer token",
    "Basic eDp5",
    "base64url.bearer.authorization.k8s.io.dG9rZW4",
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/vnd.kubernetes.protobuf",
];
const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "x",
];
const PATHS: [&str; 24] = [
    "/api/v1/namespaces/default/pods",
    "/api/v1/namespaces/default/pods?watch=true&resourceVersion=5&allowWatchBookmarks=1",
    "/api/v1/watch/pods",
    "/api/v1/namespaces/default/pods/a/exec?command=x",
    "/api/v1/namespaces/default/pods/a/log?follow=true",
    "/api/v1/namespaces/default/pods/a/proxy/b//c",
    "/apis/example.com/v1/things",
    "/apis/example.com/v1/things/a?watch=1&resourceVersion=200",
    "/apis/example.com/v1/namespaces/default/widgets/a",
    "/apis/apps/v1/namespaces/default/deployments",
    "/apis/nothing.example.com/v1/x",
    "/apis",
    "/api",
    "/apis/apps/v1",
    "/openapi/v2",
    "/openapi/v3",
    "/version",
    "/readyz",
    "/livez?verbose",
    "//api/v1/pods",
    "/api/v1/../v1/pods",
    "/api/v1/pods%2f",
    "*",
    "",
];

/// A header field.
#[derive(Debug, Arbitrary)]
pub enum Field {
    Known { name: u8, value: u8, upper: bool },
    Value { name: u8, value: Vec<u8> },
    Any { name: Vec<u8>, value: Vec<u8> },
}

/// A request's header.
#[derive(Debug, Arbitrary)]
pub struct Head {
    method: u8,
    path: u8,
    /// In place of that path.
    any_path: Option<Vec<u8>>,
    pub fields: Vec<Field>,
}
impl Field {
    pub fn parts(&self) -> (Vec<u8>, Vec<u8>) {
        let known = |name: &u8| NAMES[usize::from(*name) % NAMES.len()];
        match self {
            Self::Known { name, value, upper } => {
                let value = VALUES[usize::from(*value) % VALUES.len()].into();
                let name = known(name);
                let name = if *upper {
                    name.to_uppercase()
                } else {
                    name.to_owned()
                };
                (name.into(), value)
            }
            Self::Value { name, value } => (known(name).into(), value.clone()),
            Self::Any { name, value } => (name.clone(), value.clone()),
        }
    }

    /// Whether it says that the request was rerouted already.
    pub fn is_mark(&self) -> bool {
        let marks = [
            "x-kubernetes-apiserver-rerouted",
            "x-kubernetes-peer-proxied",
        ];
        let (name, _) = self.parts();
        marks
            .iter()
            .any(|mark| name.eq_ignore_ascii_case(mark.as_bytes()))
    }
}

impl Head {
    pub fn method(&self) -> &'static str {
        METHODS[usize::from(self.method) % METHODS.len()]
    }

    pub fn path(&self) -> Vec<u8> {
        let known = || PATHS[usize::from(self.path) % PATHS.len()].into();
        self.any_path.clone().unwrap_or_else(known)
    }
}
