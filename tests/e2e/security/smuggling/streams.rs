//! Smuggling over HTTP/2 to an HTTP/1.1 apiserver: fields must not become additional lines. And ambiguous paths.

use super::Witnessed;
use testkit::raw::{self, Outcome};

type Field = (&'static [u8], &'static [u8]);

const METHOD: Field = (b":method", b"POST");
const SCHEME: Field = (b":scheme", b"https");
const AUTHORITY: Field = (b":authority", b"x");
const PATH: Field = (b":path", b"/told");
const USUAL: [Field; 4] = [METHOD, SCHEME, AUTHORITY, PATH];

fn usual(more: &[Field]) -> Vec<Field> {
    [&USUAL, more].concat()
}

#[tokio::test]
async fn a_stream_is_one_request_or_none() {
    let attacked = Witnessed::new().await;
    let smuggled: &[u8] = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
    let refused: [(&str, Vec<Field>, &[u8]); 33] = [
        (
            "h2.CL, less than there is",
            usual(&[(b"content-length", b"0")]),
            smuggled,
        ),
        (
            "h2.CL, more than there is",
            usual(&[(b"content-length", b"100")]),
            b"hello",
        ),
        (
            "h2.CL, no number",
            usual(&[(b"content-length", b"+5")]),
            b"hello",
        ),
        (
            "h2.CL.CL",
            usual(&[(b"content-length", b"5"), (b"content-length", b"0")]),
            b"hello",
        ),
        (
            "h2.CL, in a list",
            usual(&[(b"content-length", b"5, 0")]),
            b"hello",
        ),
        (
            "h2.TE",
            usual(&[(b"transfer-encoding", b"chunked")]),
            smuggled,
        ),
        (
            "h2.TE and CL",
            usual(&[
                (b"content-length", b"5"),
                (b"transfer-encoding", b"chunked"),
            ]),
            b"hello",
        ),
        (
            "connection",
            usual(&[(b"connection", b"x-remote-user")]),
            b"hello",
        ),
        ("upgrade", usual(&[(b"upgrade", b"websocket")]), b"hello"),
        ("keep-alive", usual(&[(b"keep-alive", b"5")]), b"hello"),
        ("te", usual(&[(b"te", b"gzip")]), b"hello"),
        (
            "upper case",
            usual(&[(b"X-Remote-User", b"kubernetes-admin")]),
            b"hello",
        ),
        (
            "CR and LF in a value",
            usual(&[(b"x", b"x\r\nX-Remote-User: kubernetes-admin")]),
            b"hello",
        ),
        (
            "LF in a value",
            usual(&[(b"x", b"x\ntransfer-encoding: chunked")]),
            smuggled,
        ),
        ("NUL in a value", usual(&[(b"x", b"a\0b")]), b"hello"),
        (
            "CR and LF in a name",
            usual(&[(b"x: x\r\nx-remote-user", b"kubernetes-admin")]),
            b"hello",
        ),
        (
            "a colon in a name",
            usual(&[(b"x-remote-user:", b"kubernetes-admin")]),
            b"hello",
        ),
        (
            "a blank in a name",
            usual(&[(b"x-remote-user ", b"kubernetes-admin")]),
            b"hello",
        ),
        (
            "CR and LF in the path",
            vec![
                METHOD,
                SCHEME,
                AUTHORITY,
                (b":path", b"/told HTTP/1.1\r\nX-Remote-User: a\r\nX: x"),
            ],
            b"hello",
        ),
        (
            "a request in the method",
            vec![
                (b":method", b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\nPOST"),
                SCHEME,
                AUTHORITY,
                PATH,
            ],
            b"hello",
        ),
        (
            "CR and LF in the authority",
            vec![
                METHOD,
                SCHEME,
                (b":authority", b"x\r\nX-Remote-User: a"),
                PATH,
            ],
            b"hello",
        ),
        ("two paths", usual(&[(b":path", b"/smuggled")]), b"hello"),
        ("two methods", usual(&[(b":method", b"GET")]), b"hello"),
        ("no method", vec![SCHEME, AUTHORITY, PATH], b"hello"),
        ("no path", vec![METHOD, SCHEME, AUTHORITY], b"hello"),
        (
            "no path, and a host",
            vec![METHOD, SCHEME, (b"host", b"x")],
            b"hello",
        ),
        (
            "a fragment for a path",
            vec![METHOD, SCHEME, (b"host", b"x"), (b":path", b"#x")],
            b"hello",
        ),
        (
            "a fragment for a path, and an authority",
            vec![METHOD, SCHEME, AUTHORITY, (b":path", b"#x")],
            b"hello",
        ),
        (
            "a query for a path",
            vec![METHOD, SCHEME, (b"host", b"x"), (b":path", b"?x")],
            b"hello",
        ),
        (
            "a query for a path, and an authority",
            vec![METHOD, SCHEME, AUTHORITY, (b":path", b"?x")],
            b"hello",
        ),
        (
            "an empty path",
            vec![METHOD, SCHEME, AUTHORITY, (b":path", b"")],
            b"hello",
        ),
        (
            "a pseudo-header behind others",
            vec![METHOD, SCHEME, AUTHORITY, (b"x", b"x"), PATH],
            b"hello",
        ),
        (
            "an unknown pseudo-header",
            usual(&[(b":user", b"kubernetes-admin")]),
            b"hello",
        ),
    ];
    for (name, fields, body) in refused {
        let outcome = raw::http2(&attacked.attacker(), &fields, Some(body)).await;
        let seen = attacked.seen(name).await;
        // The header of a body that turns out to be of another length may be on its way already.
        let whole = seen
            .iter()
            .any(|request| request != "POST /told [cut] as alice");
        assert!(!whole, "{name}: {seen:?}");
        let served = matches!(outcome, Outcome::Answered(code) if code != 400 && code != 503);
        assert!(!served, "{name}: {outcome:?}");
    }
    // And what is like these, and means one thing: another server's chunks are a body like any other.
    for (name, more, body) in [
        (
            "a length",
            vec![(&b"content-length"[..], &b"5"[..])],
            &b"hello"[..],
        ),
        ("no length", vec![], b"hello"),
        ("trailers are taken", vec![(b"te", b"trailers")], b"hello"),
        (
            "an underscore",
            vec![(b"transfer_encoding", b"chunked")],
            b"hello",
        ),
    ] {
        let outcome = raw::http2(&attacked.attacker(), &usual(&more), Some(body)).await;
        assert_eq!(outcome, Outcome::Answered(200), "{name}");
        assert_eq!(
            attacked.seen(name).await,
            ["POST /told [hello] as alice"],
            "{name}"
        );
    }
    let body = smuggled.escape_ascii();
    let outcome = raw::http2(&attacked.attacker(), &usual(&[]), Some(smuggled)).await;
    assert_eq!(outcome, Outcome::Answered(200));
    assert_eq!(
        attacked.seen("chunks").await,
        [format!("POST /told [{body}] as alice")]
    );
}

#[tokio::test]
async fn a_path_that_some_read_as_another_arrives_as_it_is_or_not_at_all() {
    let attacked = Witnessed::new().await;
    let alice = attacked.attacker();
    // Those with whom an apiserver, which knows no `/told`, would be somewhere else.
    for path in [
        "/told/../api/v1/secrets",
        "/told/..%2fapi%2Fv1/secrets",
        "/told/%2e%2E/api/v1/secrets",
        "/told;/../api/v1/secrets",
        "//told//api/v1/secrets",
        "/told/./api/v1/secrets",
        "/told%00/api/v1/secrets",
        "/told%0d%0aX-Remote-User:%20kubernetes-admin",
        "/told%3fwatch=true",
        "/told%23a",
        "/told\\..\\api",
        "/told%5c..%5capi",
        "/%74old/%61pi/v1",
        "/%2574old/%252e%252e/api",
        "/told/%c0%ae%c0%ae/api",
        "/apis/autoscaling/v1/../../../told",
        "/api/v1/namespaces/..%2f..%2ftold/pods",
        "/apis/apps%2Fv1/told",
        "/told?watch=true&watch=false",
        "/told?a=%0d%0ab",
    ] {
        let line = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let codes = raw::codes(&raw::http1(&alice, line.as_bytes()).await);
        let fields: [(&[u8], &[u8]); 4] = [
            (b":method", b"GET"),
            SCHEME,
            AUTHORITY,
            (b":path", path.as_bytes()),
        ];
        let outcome = raw::http2(&alice, &fields, None).await;
        let seen = attacked.seen(path).await;
        assert_eq!(
            (codes, outcome),
            (vec![200], Outcome::Answered(200)),
            "{path}"
        );
        let asked = format!("GET {path} [] as alice");
        assert_eq!(seen, [asked.clone(), asked], "{path}");
    }
}
