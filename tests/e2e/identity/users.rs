//! Users, as seen by the apiserver behind the proxy.

use serde_json::Value;

use testkit::client::Client;
use testkit::cluster::Single;
use testkit::double::Recorded;

const ECHO: &str = "/_double/echo";
const REJECTED: &str = "kube_interop_proxy_rejected_headers_total";

/// The one request that the double saw since the last time.
fn echoed(world: &Single) -> Recorded {
    let requests = world.double.take_requests();
    let mut echoes = requests
        .into_iter()
        .filter(|request| request.path.starts_with(ECHO));
    let first = echoes.next().expect("a request at the apiserver");
    assert!(echoes.next().is_none(), "more than one");
    first
}

#[tokio::test]
async fn users_are_who_they_are_directly_and_only_a_peer_says_who_somebody_is() {
    let world = &Single::new().await;
    certificate_users_tokens_and_nobody_are_who_they_are_directly(world).await;
    certificates_that_prove_nothing_are_a_401(world).await;
    privileged_headers_of_everybody_but_peers_are_removed_and_counted(world).await;
    what_a_peer_says_of_users_is_accepted(world).await;
    the_handshake_offers_what_clients_need(world).await;
}

async fn certificate_users_tokens_and_nobody_are_who_they_are_directly(world: &Single) {
    let token = |client: Client, token| client.token(token);
    for (client, user, groups, how) in [
        (
            world.client().cert("alice"),
            "alice",
            &["devs", "qa"][..],
            "requestheader",
        ),
        (
            world.client().cert("admin"),
            "kubernetes-admin",
            &["system:masters"],
            "requestheader",
        ),
        (token(world.client(), "tok-bob"), "bob", &["devs"], "token"),
        (world.client(), "system:anonymous", &[], "anonymous"),
        (
            token(world.client().cert("rogue"), "tok-bob"),
            "bob",
            &["devs"],
            "token",
        ),
        (
            token(world.client().cert("alice"), "tok-admin"),
            "alice",
            &["devs"],
            "requestheader",
        ),
    ] {
        for client in [client.http1(), client.http2()] {
            client.try_get(ECHO).await.unwrap();
            let seen = echoed(world);
            assert_eq!((seen.user.as_str(), seen.how), (user, how));
            for group in groups {
                assert!(
                    seen.groups.iter().any(|has| has == group),
                    "{user}: {:?}",
                    seen.groups
                );
            }
            let with_certificate = how == "requestheader";
            assert_eq!(
                seen.peer_cert.is_some(),
                with_certificate,
                "{user} over the wrong kind of connection"
            );
        }
    }
}

async fn certificates_that_prove_nothing_are_a_401(world: &Single) {
    for name in ["rogue", "not-a-peer", "blank", "expired"] {
        let answer = world.client().cert(name).get("/api/v1/pods").await;
        assert_eq!(answer.code(), 401, "{name}");
        assert_eq!(answer.json()["reason"], "Unauthorized", "{name}");
    }
    assert_eq!(world.double.count("/api/v1/pods"), 0);
}

async fn privileged_headers_of_everybody_but_peers_are_removed_and_counted(world: &Single) {
    let before = world.proxy.metric(REJECTED, &[]).await;
    let forging = |client: Client| {
        client
            .header("X-Remote-User", "kubernetes-admin")
            .header("X-Remote-Group", "system:masters")
            .header("x_remote_group", "system:masters")
            .header("X-Remote-Uid", "0")
            .header("X-Remote-Extra-Scopes", "all")
            .header("X-Kubernetes-APIServer-Rerouted", "true")
            .header("X-Kubernetes-Peer-Proxied", "true")
            .header("X-Forwarded-For", "10.1.2.3")
            .header("X-Real-Ip", "10.1.2.3")
            .header("Impersonate-User", "somebody")
    };
    for (client, user) in [
        (world.client().cert("alice"), "alice"),
        (world.client().token("tok-bob"), "bob"),
        (world.client(), "system:anonymous"),
    ] {
        for client in [client.http1(), client.http2()] {
            forging(client).try_get(ECHO).await.unwrap();
            let seen = echoed(world);
            assert_eq!(seen.user, user);
            for name in [
                "x_remote_group",
                "x-remote-uid",
                "x-remote-extra-scopes",
                "x-kubernetes-apiserver-rerouted",
                "x-kubernetes-peer-proxied",
            ] {
                assert!(!seen.headers.contains_key(name), "{user}: {name}");
            }
            assert!(
                !seen
                    .header_values("x-remote-group")
                    .contains(&"system:masters".to_owned())
            );
            let address = seen.header("x-forwarded-for");
            assert!(address.starts_with("127."), "{address}");
            assert_eq!(seen.header_values("x-real-ip"), [address]);
            assert_eq!(
                seen.header("impersonate-user"),
                "somebody",
                "impersonation passes"
            );
        }
    }
    assert!(world.proxy.metric(REJECTED, &[]).await >= before + 42.0);
}

#[tokio::test]
async fn headers_named_in_connection_cannot_take_the_identity_away() {
    let world = Single::new().await;
    let client = world.client().cert("alice").http1();
    let client = client.header("Connection", "X-Remote-User, X-Remote-Group, keep-alive");
    client.try_get(ECHO).await.unwrap();
    let seen = echoed(&world);
    assert_eq!(seen.user, "alice");
    assert!(seen.groups.contains(&"devs".to_owned()));
}

async fn what_a_peer_says_of_users_is_accepted(world: &Single) {
    let peer = world.client().cert("front-proxy-client");
    peer.header("X-Remote-User", "carol")
        .header("X-Remote-Group", "ops")
        .header("X-Remote-Extra-Scopes", "all")
        .header("X-Forwarded-For", "10.1.2.3")
        .try_get(ECHO)
        .await
        .unwrap();
    let seen = echoed(world);
    assert_eq!((seen.user.as_str(), seen.how), ("carol", "requestheader"));
    assert!(seen.groups.contains(&"ops".to_owned()));
    assert_eq!(seen.header("x-remote-extra-scopes"), "all");
    assert_eq!(seen.header("x-forwarded-for"), "10.1.2.3");

    peer.token("tok-bob").try_get(ECHO).await.unwrap();
    let seen = echoed(world);
    assert_eq!(
        (seen.user.as_str(), seen.how, seen.peer_cert),
        ("bob", "token", None)
    );
    peer.try_get(ECHO).await.unwrap();
    let seen = echoed(world);
    assert_eq!(
        (seen.user.as_str(), seen.peer_cert),
        ("system:anonymous", None)
    );
}

#[tokio::test]
async fn users_are_never_mixed_up_on_shared_connections() {
    let world = Single::new().await;
    let callers = [
        (world.client().cert("alice").http2(), "alice"),
        (world.client().cert("admin").http2(), "kubernetes-admin"),
        (world.client().token("tok-admin").http2(), "token-admin"),
        (world.client().token("tok-bob").http1(), "bob"),
        (world.client().http2(), "system:anonymous"),
    ];
    world.double.allow("*", ECHO);
    let mut tasks = tokio::task::JoinSet::new();
    for round in 0..40 {
        for (client, user) in &callers {
            let (client, user, path) = (
                client.clone(),
                *user,
                format!("{ECHO}?user={user}&round={round}"),
            );
            tasks.spawn(async move {
                client.try_get(&path).await.unwrap();
                user
            });
        }
    }
    while let Some(result) = tasks.join_next().await {
        result.unwrap();
    }
    let seen = world.double.take_requests();
    let echoed: Vec<_> = seen
        .iter()
        .filter(|request| request.path.starts_with(ECHO))
        .collect();
    assert_eq!(echoed.len(), 200);
    for request in echoed {
        assert!(
            request.path.contains(&format!("user={}&", request.user)),
            "{} as {}",
            request.path,
            request.user
        );
    }
}

async fn the_handshake_offers_what_clients_need(world: &Single) {
    let answer: Value = world
        .client()
        .cert("admin")
        .http1()
        .get("/version")
        .await
        .json();
    assert!(answer["gitVersion"].is_string());
    let negotiated = world
        .client()
        .connect_raw(&["h2", "http/1.1"])
        .await
        .unwrap();
    assert_eq!(negotiated.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let negotiated = world.client().connect_raw(&[]).await.unwrap();
    assert_eq!(negotiated.get_ref().1.alpn_protocol(), None);
}
