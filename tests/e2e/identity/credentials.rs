//! Attributes of users: UID and extras from peers, credential-ids, WebSocket tokens.

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use serde_json::Value;

use testkit::client::Client;
use testkit::cluster::{Cluster, Ground, HPAS, LONG, Single};
use testkit::double::{Double, Preset, Recorded, v1_20, v1_26, v1_36};
use testkit::pki::LeafOptions;
use testkit::proxy::{Proxy, Until};
use testkit::raw;
use testkit::tls::certificates;
use testkit::upgraded::Upgraded;
use testkit::wait::eventually;

const ECHO: &str = "/_double/echo";
const UPGRADE: &str = "/_double/upgrade";
const CREDENTIAL: &str = "x-remote-extra-authentication.kubernetes.io%2fcredential-id";

/// As kube-apiserver 1.32 computes it.
fn credential_id(ground: &Ground, name: &str) -> String {
    let certificates = certificates(&ground.pki.path(&format!("{name}.crt")));
    let digest = ring::digest::digest(&ring::digest::SHA256, &certificates[0]);
    format!("X509SHA256={}", HEXLOWER.encode(digest.as_ref()))
}

async fn single(preset: Preset) -> Single {
    let ground = Ground::new().await;
    let double = ground.double(preset).await;
    let options = ground.proxy("a", double.addr()).until(Until::Ready);
    let proxy = Proxy::start(options).await;
    Single {
        double,
        proxy,
        ground,
    }
}

fn last(double: &Double, path: &str) -> Recorded {
    let seen = double.take_requests().into_iter();
    let mut seen: Vec<_> = seen.filter(|request| request.path == path).collect();
    seen.pop().expect("a request")
}

#[tokio::test]
async fn servers_are_told_of_certificates_what_their_version_knows() {
    let world = &single(v1_36()).await;
    servers_from_1_32_on_are_told_which_certificate_it_was(world).await;
    the_uid_is("3f2a-42", world).await;
    what_a_peer_says_of_a_user_arrives_whole(world).await;
    the_uid_is("", &single(v1_26()).await).await;
    let world = &single(v1_20()).await;
    the_uid_is("", world).await;
    older_servers_are_not(world).await;
    a_token_in_a_websockets_subprotocol_is_a_token(world).await;
    what_is_no_token_of_a_websocket_is_none(world).await;
}

async fn servers_from_1_32_on_are_told_which_certificate_it_was(world: &Single) {
    let expected = credential_id(&world.ground, "alice");
    let forging = world.client().header(CREDENTIAL, "X509SHA256=00");
    let alice = forging.cert("alice");
    for client in [alice.http1(), alice.http2(), alice.token("tok-bob")] {
        let echo = client.get(ECHO).await.json();
        let extra = &echo["user"]["extra"]["authentication.kubernetes.io/credential-id"];
        assert_eq!(extra, &Value::from(vec![expected.clone()]));
        let seen = last(&world.double, ECHO);
        assert_eq!(
            seen.header_values(CREDENTIAL),
            std::slice::from_ref(&expected)
        );
    }
    for client in [forging.token("tok-bob"), forging.clone()] {
        client.get(ECHO).await;
        let seen = last(&world.double, ECHO);
        assert!(!seen.headers.contains_key(CREDENTIAL), "{}", seen.user);
    }
}

/// From 1.34 on it is that in the certificate, and for older ones empty.
async fn the_uid_is(told: &str, world: &Single) {
    let alice = LeafOptions::client("alice").uid("3f2a-42");
    world.ground.pki.leaf("alice-uid", "ca", &alice);
    let alice = world.client().header("X-Remote-Uid", "0").cert("alice-uid");
    for client in [alice.http1(), alice.http2()] {
        let user = client.get(ECHO).await.json()["user"].clone();
        assert_eq!(
            (&user["name"], &user["uid"]),
            (&"alice".into(), &told.into())
        );
    }
}

async fn older_servers_are_not(world: &Single) {
    let alice = world.client().cert("alice");
    let echo = alice.header(CREDENTIAL, "X509SHA256=00").get(ECHO).await;
    assert_eq!(echo.json()["user"]["extra"], serde_json::json!({}));
    assert!(!last(&world.double, ECHO).headers.contains_key(CREDENTIAL));
}

#[tokio::test]
async fn the_version_of_the_server_that_gets_the_request_counts() {
    for (preset_a, preset_b, told) in [(v1_20(), v1_36(), true), (v1_36(), v1_20(), false)] {
        let ground = Ground::new().await;
        let a = ground.double(preset_a.without_group("autoscaling")).await;
        let b = ground.double(preset_b).await;
        let (proxy_a, proxy_b) = tokio::join!(
            Proxy::start(ground.proxy("a", a.addr()).until(Until::Ready)),
            Proxy::start(ground.proxy("b", b.addr()).until(Until::Ready)),
        );
        let cluster = Cluster {
            a,
            b,
            proxy_a,
            proxy_b,
            ground,
        };
        cluster.until_a_knows("b", "autoscaling").await;
        let answer = cluster.client().cert("admin").get(HPAS).await;
        assert_eq!(answer.code(), 200, "{}", answer.text());
        let seen = last(&cluster.b, HPAS);
        assert_eq!(seen.user, "kubernetes-admin");
        let expected = match told {
            true => vec![credential_id(&cluster.ground, "admin")],
            false => Vec::new(),
        };
        assert_eq!(seen.header_values(CREDENTIAL), expected);
    }
}

async fn what_a_peer_says_of_a_user_arrives_whole(world: &Single) {
    let peer = world.client().cert("front-proxy-client");
    let peer = peer
        .header("X-Remote-User", "carol")
        .header("X-Remote-Uid", "42")
        .header("X-Remote-Group", "ops")
        .header("X-Remote-Group", "qa")
        .header("X-Remote-Extra-Example.com%2fScopes", "all")
        .header("X-Remote-Extra-Example.com%2fScopes", "more")
        .header(CREDENTIAL, "X509SHA256=ab");
    for client in [peer.http1(), peer.http2()] {
        let user = client.get(ECHO).await.json()["user"].clone();
        assert_eq!(
            (&user["name"], &user["uid"]),
            (&"carol".into(), &"42".into())
        );
        assert_eq!(user["how"], "requestheader");
        let groups = user["groups"].as_array().unwrap();
        assert!(groups.contains(&"ops".into()) && groups.contains(&"qa".into()));
        assert_eq!(
            user["extra"],
            serde_json::json!({
                "example.com/scopes": ["all", "more"],
                "authentication.kubernetes.io/credential-id": ["X509SHA256=ab"],
            })
        );
    }
}

/// Opens a WebSocket with these subprotocols; whom the apiserver took the client for, and what it was told.
async fn websocket(world: &Single, client: &Client, protocols: &str) -> anyhow::Result<Recorded> {
    let request = format!(
        "GET {UPGRADE} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Sec-WebSocket-Protocol: {protocols}\r\n\r\n"
    );
    Upgraded::open(client, &request, b"").await?;
    Ok(last(&world.double, UPGRADE))
}

async fn a_token_in_a_websockets_subprotocol_is_a_token(world: &Single) {
    let token = |token: &str| {
        let token = BASE64URL_NOPAD.encode(token.as_bytes());
        format!("base64url.bearer.authorization.k8s.io.{token}")
    };
    let protocols = format!("v4.channel.k8s.io, {}", token("tok-bob"));
    for certificate in [None, Some("rogue"), Some("expired"), Some("blank")] {
        let client = world.client();
        let client = certificate.map_or(client.clone(), |name| client.cert(name));
        let seen = websocket(world, &client, &protocols).await.unwrap();
        assert_eq!(
            (seen.user.as_str(), seen.how),
            ("bob", "token"),
            "{certificate:?}"
        );
        assert_eq!(seen.header("sec-websocket-protocol"), protocols);
        assert_eq!(seen.peer_cert, None);
    }
    // The certificate comes first, and nobody else's token goes along with it.
    let alice = world.client().cert("alice");
    let seen = websocket(world, &alice, &protocols).await.unwrap();
    assert_eq!((seen.user.as_str(), seen.how), ("alice", "requestheader"));
    assert_eq!(seen.header("sec-websocket-protocol"), "v4.channel.k8s.io");
}

async fn what_is_no_token_of_a_websocket_is_none(world: &Single) {
    world.double.take_requests();
    let rogue = world.client().cert("rogue");
    for protocols in [
        "v4.channel.k8s.io",
        "base64url.bearer.authorization.k8s.io.",
        "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.",
    ] {
        let refused = websocket(world, &rogue, protocols).await;
        let refused = refused.expect_err("no upgrade").to_string();
        assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");
    }
    // Without an upgrade kube-apiserver does not look for it, and would take the client for nobody.
    let protocols = "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.dG9rLWJvYg";
    let plain = rogue.header("Sec-WebSocket-Protocol", protocols);
    for client in [plain.http1(), plain.http2()] {
        assert_eq!(client.get(ECHO).await.code(), 401);
    }
    assert_eq!(world.double.count("/_double"), 0);
}

#[tokio::test]
async fn access_lines_name_user_decision_and_reason_and_no_token() {
    let world = Single::with(|options| options.env("RUST_LOG", "info,access=info")).await;
    let client = world.client();
    let peer = client.cert("front-proxy-client");
    for (client, path) in [
        (client.cert("alice"), "/api/v1/pods?of=alice"),
        (client.token("tok-bob"), "/api/v1/pods?of=bob"),
        (client.cert("rogue"), "/api/v1/pods"),
        (peer.header("X-Remote-User", "carol"), "/version"),
        (client.cert("alice"), "/api/v1/%zz"),
    ] {
        client.get(path).await;
    }
    let lines = eventually("all lines are there", LONG, async || {
        let log = world.proxy.log_tail();
        let lines = log.lines().filter(|line| line.contains(" access: "));
        let lines: Vec<_> = lines.map(str::to_owned).collect();
        if lines.len() < 5 { Err(log) } else { Ok(lines) }
    })
    .await;
    for (line, words) in lines.iter().zip([
        ["caller=\"user\"", "user=\"alice\"", "decision=\"local\""],
        [
            "caller=\"bearer\"",
            "decision=\"local\"",
            "path=\"/api/v1/pods\"",
        ],
        [
            "caller=\"unverifiable\"",
            "refusal=\"unauthorized\"",
            "code: 401",
        ],
        [
            "caller=\"peer\"",
            "user=\"carol\"",
            "decision=\"not_a_resource\"",
        ],
        ["user=\"alice\"", "refusal=\"bad_target\"", "code: 400"],
    ]) {
        for word in words {
            assert!(line.contains(word), "{word}: {line}");
        }
        assert!(!line.contains("tok-bob") && !line.contains("of="), "{line}");
    }
}

#[tokio::test]
async fn a_request_that_cannot_be_read_is_not_quoted_in_the_log() {
    let debug = "info,kube_interop_proxy::relay=debug";
    let world = Single::with(|options| options.env("RUST_LOG", debug)).await;
    let request =
        b"GET /version HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer tok-bob\r\nBad Name: x\r\n\r\n";
    let answer = raw::http1(&world.client(), request).await;
    assert_eq!(raw::codes(&answer), [400]);
    let log = eventually("the log tells of it", LONG, async || {
        let log = world.proxy.log_tail();
        match log.contains("unreadable request") {
            true => Ok(log),
            false => Err(log),
        }
    })
    .await;
    assert!(!log.contains("tok-bob"), "{log}");
}
