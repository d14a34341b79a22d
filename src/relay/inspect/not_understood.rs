//! Recognises answers by which an apiserver says that it does not understand what a newer one may:
//!
//! | answer | requests | understood since |
//! |---|---|---|
//! | 400 "field label not supported", "is not a known field selector" | reads | by field: [`crate::request::since`] |
//! | 422 "resourceVersionMatch is forbidden for watch" | watches with `sendInitialEvents` | 1.27; 1.19 to 1.26 say so |
//! | 422 "sendInitialEvents is forbidden for watch unless …" | the same | where the gate `WatchList` is on: by default in 1.32 and since 1.34 |
//! | 400 or 422 "resourceVersionMatch: Unsupported value" | reads | a value that is newer |
//! | 406 | reads that accept media types only that a newer one writes, such as `application/cbor` | 1.32 |
//! | 415 "accepted media types include" | all, such as patches of `application/apply-patch+cbor` | 1.32 |
//!
//! Neither was executed. While versions differ, a newer server is asked before such an answer passes. A peer's proxy passes
//! it to the proxy that asked. Pure.

use http::StatusCode;
use pingora_http::ResponseHeader;

use super::Asking;
use super::not_found::contains;
use super::turned_away::is_apiservers_own;
use crate::request::info::Verb;
use crate::routing::table::Snapshot;

/// In the message of a `Status`, in any format.
const INVALID: [&str; 5] = [
    "field label not supported",
    "is not a known field selector",
    "sendInitialEvents is forbidden for watch",
    "resourceVersionMatch is forbidden for watch",
    "resourceVersionMatch: Unsupported value",
];
const MEDIA_TYPE: &str = "accepted media types include";

/// Whether the body of an answer is worth reading.
pub fn may_be(asking: &Asking<'_>, snapshot: &Snapshot, response: &ResponseHeader) -> bool {
    let is_read = || matches!(asking.info.verb, Verb::Get | Verb::List | Verb::Watch);
    let is_possible = match response.status.as_u16() {
        415 => true,
        400 | 406 | 422 => is_read(),
        _ => false,
    };
    is_possible
        && snapshot.window.is_some()
        && !asking.for_peer
        && is_apiservers_own(asking, snapshot)
}

/// Whether an answer says so, with its whole body. For one that [`may_be`] of that kind.
pub fn says_so(status: StatusCode, body: &[u8]) -> bool {
    match status {
        StatusCode::NOT_ACCEPTABLE => true,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => contains(body, MEDIA_TYPE.as_bytes()),
        _ => INVALID.iter().any(|text| contains(body, text.as_bytes())),
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::request::info;
    use crate::routing::decide::NoSuchResource;
    use crate::routing::table::ServerKind;
    use crate::routing::versions::VersionWindow;

    fn looked_at(method: &Method, target: &str, code: u16, mixed: bool, for_peer: bool) -> bool {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let versions = ["1.24", "1.36"].into_iter();
        let window = VersionWindow::of(versions.filter_map(|text| text.parse().ok()));
        let mut snapshot = Snapshot::default();
        snapshot.window = window.filter(|_| mixed);
        let asking = Asking {
            method,
            info: &info::read(method, path, Some(query)),
            server_kind: ServerKind::Local,
            no_such_resource: NoSuchResource::Doubt,
            for_peer,
        };
        may_be(
            &asking,
            &snapshot,
            &ResponseHeader::build(code, None).unwrap(),
        )
    }

    #[test]
    fn only_reads_are_looked_at_and_415_to_anything_while_versions_differ() {
        let pods = "/api/v1/namespaces/default/pods";
        for code in [400, 406, 415, 422] {
            for target in [
                pods,
                "/api/v1/pods?watch=1",
                "/api/v1/namespaces/default/pods/a",
            ] {
                assert!(
                    looked_at(&Method::GET, target, code, true, false),
                    "{code} {target}"
                );
                assert!(
                    !looked_at(&Method::GET, target, code, false, false),
                    "one version"
                );
                assert!(
                    !looked_at(&Method::GET, target, code, true, true),
                    "a peer asks others"
                );
            }
            for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
                assert_eq!(
                    looked_at(&method, pods, code, true, false),
                    code == 415,
                    "{method}"
                );
            }
            let proxied = "/api/v1/namespaces/default/pods/a/proxy/x";
            assert!(
                !looked_at(&Method::GET, proxied, code, true, false),
                "{code}"
            );
        }
        for code in [200, 401, 403, 404, 409, 410, 429, 500] {
            assert!(!looked_at(&Method::GET, pods, code, true, false), "{code}");
        }
    }

    #[test]
    fn the_words_are_those_of_kube_apiserver() {
        let says = |code: u16, text: &str| {
            let body = format!(r#"{{"kind":"Status","message":"{text}","code":{code}}}"#);
            says_so(StatusCode::from_u16(code).unwrap(), body.as_bytes())
        };
        let clusterip = r#"Unable to find \"/v1, Resource=services\" that match label selector \"\", field selector \"spec.clusterIP!=None\": \"spec.clusterIP\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""#;
        assert!(says(400, clusterip));
        assert!(says(400, "field label not supported: spec.hostNetwork"));
        let watch = r#"ListOptions.meta.k8s.io \"\" is invalid: "#;
        for message in [
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch",
            "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
        ] {
            assert!(says(422, &format!("{watch}{message}")));
        }
        let formats = "the body of the request was in an unknown format - accepted media types include: application/json";
        assert!(says(415, formats));
        assert!(says(
            406,
            "only the following media types are accepted: application/json"
        ));
        for (code, other) in [
            (400, "the object provided is unrecognized"),
            (
                422,
                r#"Pod \"a\" is invalid: spec.containers: Required value"#,
            ),
            (415, "a webhook does not like this"),
            (400, ""),
        ] {
            assert!(!says(code, other), "{code} {other}");
        }
    }
}
