//! The users of client certificates: chains, purposes, names, sessions, and changes while a connection is open.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rcgen::{DnType, DnValue, ExtendedKeyUsagePurpose};
use rustls::{HandshakeKind, SupportedProtocolVersion};
use serde_json::Value;

use testkit::client::Client;
use testkit::cluster::{Ground, LONG, Single};
use testkit::double::{DoubleOptions, v1_20};
use testkit::pki::{LeafOptions, SERVER_NAME};
use testkit::wait::eventually;

const ECHO: &str = "/_double/echo";

/// Whom the apiserver took a client for; "401" if the proxy let nobody through.
async fn asks_as(client: &Client) -> String {
    let answer = client.get(ECHO).await;
    match answer.code() {
        200 => answer.json()["user"]["name"].as_str().unwrap().to_owned(),
        401 => {
            assert_eq!(answer.json()["reason"], "Unauthorized");
            "401".to_owned()
        }
        code => panic!("{code}: {}", answer.text()),
    }
}

/// `users`: what `clientCAFile` is put together from.
async fn world(users: &[&str], prepare: impl FnOnce(&mut Ground)) -> Single {
    let mut ground = Ground::new().await;
    prepare(&mut ground);
    ground.pki.join("users-ca.crt", users);
    let double = DoubleOptions::new(ground.pki.dir(), v1_20());
    let file = ground.pki.file("users-ca.crt");
    Single::on(ground, double, |options| {
        options.set("serving.clientCAFile", &file)
    })
    .await
}

#[tokio::test]
async fn chains_and_purposes_are_judged_as_gos_x509_judges_them() {
    let alice = || LeafOptions::client("alice").org("devs");
    let world = world(
        &["words.txt", "ca.crt", "words.txt", "second-ca.crt"],
        |ground| {
            let pki = &mut ground.pki;
            std::fs::write(
                pki.path("words.txt"),
                "# CN = somebody\n\nnot PEM: -- BEGIN\n",
            )
            .unwrap();
            pki.add_ca("second-ca", "another CA of users");
            pki.add_ca_under("ca", "between", "between");
            pki.leaf("gap", "between", &alice());
            pki.leaf("leaf", "between", &alice());
            pki.join("through.crt", &["leaf.crt", "between.crt"]);
            pki.join("through.key", &["leaf.key"]);
            pki.leaf("wrong-way", "rogue-ca", &alice());
            pki.join("beside.crt", &["wrong-way.crt", "between.crt"]);
            pki.join("beside.key", &["wrong-way.key"]);
            pki.leaf("second", "second-ca", &alice());
            pki.leaf(
                "peers-name",
                "ca",
                &LeafOptions::client("front-proxy-client"),
            );
            pki.leaf(
                "rogue-peer",
                "rogue-ca",
                &LeafOptions::client("front-proxy-client"),
            );
            for (name, usages) in [
                ("no-usage", vec![]),
                ("server-usage", vec![ExtendedKeyUsagePurpose::ServerAuth]),
                ("any-usage", vec![ExtendedKeyUsagePurpose::Any]),
                ("odd-usage", vec![ExtendedKeyUsagePurpose::CodeSigning]),
                (
                    "both-usages",
                    vec![
                        ExtendedKeyUsagePurpose::ServerAuth,
                        ExtendedKeyUsagePurpose::ClientAuth,
                    ],
                ),
            ] {
                let mut options = alice();
                options.usages = usages;
                pki.leaf(name, "ca", &options);
            }
            let mut server = LeafOptions::client("front-proxy-client");
            server.usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            pki.leaf("server-peer", "front-proxy-ca", &server);
        },
    )
    .await;
    for (name, user) in [
        ("through", "alice"),
        ("gap", "401"),
        ("beside", "401"),
        ("second", "alice"),
        ("no-usage", "alice"),
        ("server-usage", "401"),
        ("any-usage", "alice"),
        ("odd-usage", "401"),
        ("both-usages", "alice"),
        ("peers-name", "front-proxy-client"),
        ("rogue-peer", "401"),
        ("server-peer", "401"),
    ] {
        let client = world.client().cert(name);
        for client in [client.http1(), client.http2()] {
            // None of them is a peer: what they say of users is not accepted.
            let client = client.header("X-Remote-User", "kubernetes-admin");
            assert_eq!(asks_as(&client).await, user, "{name}");
        }
    }
}

#[tokio::test]
async fn many_certificates_of_one_name_cost_little() {
    let world = world(&["ca.crt"], |ground| {
        let pki = &mut ground.pki;
        let alice = LeafOptions::client("alice");
        let names: Vec<_> = (0..10).map(|number| format!("between-{number}")).collect();
        for name in &names {
            pki.add_ca_under("rogue-ca", name, "between");
        }
        pki.add_ca_under("rogue-ca", "hidden", "between");
        pki.leaf("leaf", "hidden", &alice);
        pki.leaf("past", "rogue-ca", &alice.expired());
        let files: Vec<_> = names.iter().map(|name| format!("{name}.crt")).collect();
        let mut chain = vec!["leaf.crt"];
        chain.extend(files.iter().map(String::as_str));
        chain.extend(["past.crt"; 100]);
        pki.join("many.crt", &chain);
        pki.join("many.key", &["leaf.key"]);
    })
    .await;
    let client = world.client();
    let many = client.cert("many");
    let asking = async {
        for client in [many.http1(), many.http2()] {
            for _ in 0..10 {
                assert_eq!(asks_as(&client).await, "401");
            }
        }
        assert_eq!(asks_as(&client.cert("alice")).await, "alice");
    };
    // Each is a minute if all ways through the chain are tried.
    let done = tokio::time::timeout(LONG, asking).await;
    assert!(done.is_ok(), "it takes too long");
}

#[tokio::test]
async fn names_that_are_no_plain_text_never_become_a_header() {
    let bmp = |text: &str| DnValue::BmpString(text.try_into().unwrap());
    let t61 = |text: &str| DnValue::TeletexString(text.try_into().unwrap());
    let universal = |text: &str| DnValue::UniversalString(text.try_into().unwrap());
    let plain = |text: &str| DnValue::Utf8String(text.to_owned());
    let cases = [
        (plain("mallory"), bmp("devs")),
        (plain("mallory"), t61("devs")),
        (plain("mallory"), universal("devs")),
        (bmp("mallory"), plain("devs")),
        (t61("mallory"), plain("devs")),
        (plain("mallory"), plain("")),
        (plain("mallory"), plain("system:masters ")),
        (plain("mallory"), plain("\tsystem:masters")),
        (
            plain("mallory"),
            plain("a\r\nX-Remote-Group: system:masters"),
        ),
        (plain("mallory"), plain("a\0b")),
        (plain("mallory"), plain("a\u{85}b")),
        (plain(" mallory"), plain("devs")),
        (plain("\u{2003}"), plain("devs")),
        (plain(""), plain("devs")),
    ];
    let world = Single::new().await;
    let pki = &world.ground.pki;
    for (cn, organization) in cases {
        let what = format!("{cn:?} {organization:?}");
        pki.leaf_with("odd", "ca", &LeafOptions::client("x"), |params| {
            params.distinguished_name = rcgen::DistinguishedName::new();
            params
                .distinguished_name
                .push(DnType::OrganizationName, organization);
            params.distinguished_name.push(DnType::CommonName, cn);
        });
        let client = world.client().cert("odd");
        assert_eq!(asks_as(&client).await, "401", "{what}");
        assert_eq!(asks_as(&client.token("tok-bob")).await, "bob", "{what}");
    }
    let nameless = LeafOptions {
        cn: None,
        ..LeafOptions::client("x").org("system:masters")
    };
    pki.leaf("nameless", "ca", &nameless);
    assert_eq!(asks_as(&world.client().cert("nameless")).await, "401");
}

#[tokio::test]
async fn without_allowed_names_every_certificate_of_the_peers_ca_is_a_peers() {
    let world =
        Single::with(|options| options.set("serving.requestHeaderAllowedNames", "[]")).await;
    let client = world.client().header("X-Remote-User", "carol");
    assert_eq!(asks_as(&client.cert("not-a-peer")).await, "carol");
    assert_eq!(asks_as(&client.cert("alice")).await, "alice");
}

/// A connection of HTTP/1.1, and how its handshake went.
async fn connect(client: &Client) -> (SendRequest<Full<Bytes>>, HandshakeKind) {
    let tls = client.connect_raw(&["http/1.1"]).await.unwrap();
    let kind = tls.get_ref().1.handshake_kind().unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(tls)).await.unwrap();
    tokio::spawn(connection);
    (sender, kind)
}

/// As [`asks_as`], over one connection.
async fn asks_over(connection: &mut SendRequest<Full<Bytes>>) -> String {
    connection.ready().await.unwrap();
    let request = http::Request::get(ECHO).header("host", SERVER_NAME);
    let request = request.body(Full::default()).unwrap();
    let answer = connection.send_request(request).await.unwrap();
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    match code {
        401 => "401".to_owned(),
        _ => serde_json::from_slice::<Value>(&body).unwrap()["user"]["name"]
            .as_str()
            .unwrap()
            .to_owned(),
    }
}

const VERSIONS: [&[&SupportedProtocolVersion]; 2] =
    [&[&rustls::version::TLS12], &[&rustls::version::TLS13]];

#[tokio::test]
async fn a_certificate_that_expires_counts_no_longer_on_open_connections_and_resumed_sessions() {
    let world = Single::new().await;
    let short = LeafOptions::client("alice").for_another(Duration::from_secs(8));
    world.ground.pki.leaf("short", "ca", &short);
    let mut open = Vec::new();
    for versions in VERSIONS {
        let client = world.client().cert("short").tls(versions);
        let (mut first, kind) = connect(&client).await;
        assert_eq!(kind, HandshakeKind::Full);
        assert_eq!(asks_over(&mut first).await, "alice");
        let (mut resumed, kind) = connect(&client).await;
        assert_eq!(kind, HandshakeKind::Resumed, "{versions:?}");
        assert_eq!(asks_over(&mut resumed).await, "alice", "{versions:?}");
        open.push((client, first, resumed));
    }
    for (client, mut first, mut resumed) in open {
        eventually("the certificate has expired", LONG, async || {
            asks_over(&mut first).await == "401"
        })
        .await;
        assert_eq!(asks_over(&mut resumed).await, "401");
        let (mut late, kind) = connect(&client).await;
        assert_eq!(kind, HandshakeKind::Resumed);
        assert_eq!(asks_over(&mut late).await, "401");
    }
}

#[tokio::test]
async fn a_ca_that_is_withdrawn_counts_no_longer_whatever_the_connection() {
    let world = world(&["ca.crt", "second-ca.crt"], |ground| {
        ground.pki.add_ca("second-ca", "another CA of users");
        let alice = LeafOptions::client("alice");
        ground.pki.leaf("second", "second-ca", &alice);
    })
    .await;
    let pki = &world.ground.pki;
    let mut open = Vec::new();
    for versions in VERSIONS {
        let client = world.client().cert("second").tls(versions);
        let (mut first, _) = connect(&client).await;
        assert_eq!(asks_over(&mut first).await, "alice");
        let (mut resumed, kind) = connect(&client).await;
        assert_eq!(kind, HandshakeKind::Resumed);
        assert_eq!(asks_over(&mut resumed).await, "alice");
        open.push((client, first, resumed));
    }
    let bystander = world.client().cert("alice");
    assert_eq!(asks_as(&bystander).await, "alice");

    pki.join("users-ca.crt", &["ca.crt"]);
    for (client, mut first, mut resumed) in open {
        eventually("the CA is withdrawn", LONG, async || {
            asks_over(&mut first).await == "401"
        })
        .await;
        assert_eq!(asks_over(&mut resumed).await, "401");
        let (mut late, _) = connect(&client).await;
        assert_eq!(asks_over(&mut late).await, "401");
        assert_eq!(asks_as(&client.token("tok-bob")).await, "bob");
    }
    assert_eq!(asks_as(&bystander).await, "alice", "of another CA");
}
