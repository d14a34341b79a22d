//! No spelling of a header that only peers may send gets through, from any client, over HTTP/1.1 or HTTP/2.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use testkit::client::Client;
use testkit::cluster::{Ground, LONG, Single};
use testkit::double::auth::RequestHeaders;
use testkit::double::{DoubleOptions, v1_36};
use testkit::pki::SERVER_NAME;
use testkit::wire::{Pieces, Wire, request};

const ECHO: &str = "/_double/echo";
/// In every value that must not arrive.
const FORGED: &str = "forged";

/// What only peers may send, by the configuration below.
const PRIVILEGED: [&str; 11] = [
    "X-Remote-User",
    "X-Who",
    "X-Remote-Uid",
    "X-Remote-Group",
    "X-Team",
    "X-Remote-Extra-Scopes",
    "X-Remote-Extra-",
    "X-More-Scopes",
    "X-Remote-Extra-Authentication.kubernetes.io%2Fcredential-id",
    "X-Kubernetes-APIServer-Rerouted",
    "X-Kubernetes-Peer-Proxied",
];

async fn world() -> Single {
    let ground = Ground::new().await;
    let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let mut double = DoubleOptions::new(ground.pki.dir(), v1_36());
    double.request_headers = RequestHeaders {
        username: list(&["X-Remote-User", "X-Who"]),
        group: list(&["X-Remote-Group", "X-Team"]),
        extra_prefix: list(&["X-Remote-Extra-", "X-More-"]),
        ..RequestHeaders::default()
    };
    Single::on(ground, double, |options| {
        options
            .set(
                "serving.requestHeaderUsernameHeaders",
                "[X-Remote-User, X-Who]",
            )
            .set(
                "serving.requestHeaderGroupHeaders",
                "[X-Remote-Group, X-Team]",
            )
            .set(
                "serving.requestHeaderExtraHeaderPrefixes",
                "[X-Remote-Extra-, X-More-]",
            )
    })
    .await
}

/// Everybody who is no peer, and the token that each of them sends.
fn callers(world: &Single) -> [(Client, &'static str, &'static str); 4] {
    let client = world.client();
    [
        (client.cert("alice"), "", "alice"),
        (client.clone(), "tok-bob", "bob"),
        (client.cert("rogue"), "tok-bob", "bob"),
        (client, "", "system:anonymous"),
    ]
}

/// Looks at what arrived since the last time, which is `count` requests of `user`.
fn nothing_forged_arrived(world: &Single, count: usize, user: &str, what: &str) {
    let seen = world.double.take_requests();
    let echoes: Vec<_> = seen
        .iter()
        .filter(|request| request.path.starts_with(ECHO))
        .collect();
    assert_eq!(echoes.len(), count, "{what}");
    for request in echoes {
        assert_eq!(request.user, user, "{what}");
        for (name, value) in &request.headers {
            let value = String::from_utf8_lossy(value.as_bytes());
            assert!(!value.contains(FORGED), "{what}: {name}: {value}");
        }
    }
}

/// A name as different programs may write what they take for the same.
fn spellings(name: &str) -> Vec<String> {
    let alternating = |(index, letter): (usize, char)| match index % 2 {
        0 => letter.to_ascii_lowercase(),
        _ => letter.to_ascii_uppercase(),
    };
    vec![
        name.to_owned(),
        name.to_lowercase(),
        name.to_uppercase(),
        name.chars().enumerate().map(alternating).collect(),
        name.replace('-', "_"),
        name.replacen('-', "_", 1),
        name.to_uppercase().replace('-', "_"),
    ]
}

fn authorization(token: &str) -> String {
    match token {
        "" => String::new(),
        token => format!("Authorization: Bearer {token}\r\n"),
    }
}

/// Writes a request's lines as they stand; the answer's code, and its body.
async fn raw(client: &Client, lines: &str) -> (u16, String) {
    // The lines' own `Connection`, if they have one, says `close` too.
    let close = match lines.contains("\r\nConnection:") {
        true => "",
        false => "Connection: close\r\n",
    };
    let head = format!("{lines}Host: {SERVER_NAME}\r\n{close}\r\n");
    let bytes = head.as_bytes();
    let mut tls = client.connect_raw(&["http/1.1"]).await.unwrap();
    tls.write_all(bytes).await.unwrap();
    tls.flush().await.unwrap();
    let mut answer = Vec::new();
    // A close without close_notify is an end too.
    let _ = tokio::time::timeout(LONG, tls.read_to_end(&mut answer))
        .await
        .expect("an end");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let code = answer.get(9..12).and_then(|code| code.parse().ok());
    let code = code.unwrap_or_else(|| panic!("no answer to {}: {answer}", bytes.escape_ascii()));
    (code, answer)
}

#[tokio::test]
async fn no_spelling_gets_through_over_http1() {
    let world = world().await;
    let rejected = async || {
        let name = "kube_interop_proxy_rejected_headers_total";
        world.proxy.metric(name, &[]).await
    };
    for (client, token, user) in callers(&world) {
        for name in PRIVILEGED {
            let before = rejected().await;
            let line = |name: String| format!("{name}: {FORGED}\r\n{name}:{FORGED} again\r\n");
            let forged: String = spellings(name).into_iter().map(line).collect();
            let token = authorization(token);
            // Among others, before and after them, and listed as the connection's own.
            for lines in [
                format!("{token}{forged}Accept: */*\r\n"),
                format!("Accept: */*\r\nConnection: {name}, close\r\n{forged}{token}"),
                format!(
                    "Connection: close, {}\r\n{token}{forged}",
                    name.to_lowercase()
                ),
            ] {
                let (code, _) = raw(&client, &format!("GET {ECHO} HTTP/1.1\r\n{lines}")).await;
                assert_eq!(code, 200, "{user}: {name}");
            }
            nothing_forged_arrived(&world, 3, user, name);
            assert!(rejected().await >= before + 3.0, "{name} is counted");
        }
    }
}

#[tokio::test]
async fn no_spelling_gets_through_over_http2() {
    let world = world().await;
    for (client, token, user) in callers(&world) {
        for name in PRIVILEGED {
            // Whoever is nobody has a connection for one request.
            let mut wire = Wire::http2(&client).await;
            let mut asked = request("GET", ECHO, Pieces::default());
            for spelling in spellings(name) {
                // HTTP/2 knows no upper case: what the library sends is lower.
                let spelling: HeaderName = spelling.parse().unwrap();
                for value in [FORGED, "forged again"] {
                    asked
                        .headers_mut()
                        .append(spelling.clone(), HeaderValue::from_static(value));
                }
            }
            if !token.is_empty() {
                let token = HeaderValue::try_from(format!("Bearer {token}")).unwrap();
                asked.headers_mut().insert("authorization", token);
            }
            let answer = wire.send(SERVER_NAME, asked).await.unwrap();
            assert_eq!(answer.code(), 200, "{user}: {name}");
            nothing_forged_arrived(&world, 1, user, name);
        }
    }
}

#[tokio::test]
async fn trailers_are_no_headers() {
    let world = world().await;
    for (client, token, user) in callers(&world) {
        for wire in Wire::each(&client) {
            let mut wire = wire.await;
            let mut trailers = HeaderMap::new();
            for name in PRIVILEGED {
                let name: HeaderName = name.parse().unwrap();
                trailers.append(name, HeaderValue::from_static(FORGED));
            }
            let names = PRIVILEGED.join(", ");
            let body = Pieces::of([Bytes::from_static(b"body")]).with_trailers(trailers);
            let mut asked = request("POST", ECHO, body);
            let headers = asked.headers_mut();
            headers.insert("trailer", names.parse().unwrap());
            if !token.is_empty() {
                let token = HeaderValue::try_from(format!("Bearer {token}")).unwrap();
                headers.insert("authorization", token);
            }
            let answer = wire.send(SERVER_NAME, asked).await.unwrap();
            assert_eq!(answer.code(), 200, "{}", answer.text());
            assert_eq!(answer.json()["trailers"], serde_json::json!({}));
            nothing_forged_arrived(&world, 1, user, "trailers");
        }
    }
}

#[tokio::test]
async fn lines_that_could_be_read_in_two_ways_are_refused() {
    let world = world().await;
    for (client, token, user) in callers(&world) {
        for line in [
            "X-Remote-User : forged",
            "X-Remote-User\t: forged",
            " X-Remote-User: forged",
            "X-Remote-User\0: forged",
            "X-Remote-User\x0b: forged",
            "X-Remote-User\u{a0}: forged",
            "X-Remote-User",
            ": forged",
            "X-Known: a\r\n X-Remote-User: forged",
            "X-Known: a\r\n\tX-Remote-User: forged",
            "X-Known: a\rX-Remote-User: forged",
            "X-Known: a\0X-Remote-User: forged",
        ] {
            let token = authorization(token);
            let lines = format!("GET {ECHO} HTTP/1.1\r\n{line}\r\n{token}");
            let (code, answer) = raw(&client, &lines).await;
            assert_eq!(code, 400, "{user}: {}: {answer}", line.escape_debug());
            nothing_forged_arrived(&world, 0, user, line);
        }
    }
}

#[tokio::test]
async fn a_bare_line_feed_hides_no_header() {
    let world = world().await;
    for (client, token, user) in callers(&world) {
        let token = authorization(token);
        let lines = format!("GET {ECHO} HTTP/1.1\r\nX-Known: a\nX-Remote-User: forged\r\n{token}");
        // Go takes it for the end of a line; so it is either that here too, or refused.
        let (code, answer) = raw(&client, &lines).await;
        assert!(matches!(code, 200 | 400), "{answer}");
        nothing_forged_arrived(&world, usize::from(code == 200), user, "LF");
    }
}

#[tokio::test]
async fn addresses_that_clients_invent_are_replaced() {
    let world = world().await;
    for (client, token, user) in callers(&world) {
        let token = authorization(token);
        for lines in [
            "X-Forwarded-For: 10.1.2.3\r\nX-Real-Ip: 10.1.2.3\r\n",
            "x-forwarded-for: 10.1.2.3, 10.1.2.4\r\nX-FORWARDED-FOR: 10.1.2.5\r\nx-real-ip: ::1\r\n",
            "Connection: X-Forwarded-For, X-Real-Ip, close\r\nX-Forwarded-For: 10.1.2.3\r\n",
            "X-Real-Ip: 10.1.2.3\r\n",
        ] {
            let (code, _) = raw(&client, &format!("GET {ECHO} HTTP/1.1\r\n{lines}{token}")).await;
            assert_eq!(code, 200);
            let seen = world.double.take_requests();
            let seen: Vec<_> = seen.iter().filter(|request| request.path == ECHO).collect();
            assert_eq!(seen.len(), 1);
            assert_eq!(seen[0].user, user);
            assert_eq!(seen[0].header_values("x-forwarded-for"), ["127.0.0.1"]);
            let real = seen[0].header_values("x-real-ip");
            assert!(
                real.iter().all(|address| address == "127.0.0.1"),
                "{real:?}"
            );
        }
    }
}
