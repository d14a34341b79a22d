//! Users, as seen by real kube-apiservers v1.20.2.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::Value;

use crate::routing::real_apiservers::{LONGER, without_autoscaling};
use testkit::client::Client;
use testkit::cluster::{Ground, HPAS, LONG, lists};
use testkit::kube::{KubeApiServer, KubeOptions};
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::wait::eventually;

const POLICY: &str = "{\"apiVersion\": \"audit.k8s.io/v1\", \"kind\": \"Policy\", \"rules\": [{\"level\": \"Metadata\"}]}";

/// Where clients are in these tests; the proxies are elsewhere on 127.0.0.0/8.
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 77, 1, 2));

fn with_audit(ground: &Ground, options: KubeOptions) -> KubeOptions {
    let (policy, log) = (ground.dir.path().join("policy.yaml"), audit_log(ground));
    std::fs::write(&policy, POLICY).unwrap();
    options
        .arg(&format!("--audit-policy-file={}", policy.display()))
        .arg(&format!("--audit-log-path={}", log.display()))
}

fn audit_log(ground: &Ground) -> std::path::PathBuf {
    ground.dir.path().join("audit.log")
}

/// The audit event of the request with this in its URI.
async fn audited(ground: &Ground, mark: &str) -> Value {
    eventually("it is in the audit log", LONG, async || {
        let text = std::fs::read_to_string(audit_log(ground)).unwrap_or_default();
        text.lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|event| event["stage"] == "ResponseComplete")
            .find(|event| {
                event["requestURI"]
                    .as_str()
                    .is_some_and(|uri| uri.contains(mark))
            })
    })
    .await
}

#[tokio::test]
async fn the_audit_log_names_the_clients_address_and_user() {
    let ground = Ground::bootstrapped().await;
    let b_options = with_audit(&ground, ground.kube("cp-b"));
    let b = KubeApiServer::start(b_options, &ground.pki).await;
    let a_options = without_autoscaling(ground.kube("cp-a"));
    let a = KubeApiServer::start(a_options, &ground.pki).await;
    let (proxy_a, proxy_b) = tokio::join!(
        Proxy::start(ground.proxy("a", a.addr()).until(Until::Ready)),
        Proxy::start(ground.proxy("b", b.addr()).until(Until::Ready)),
    );
    eventually("A's proxy knows of B", LONGER, async || {
        lists(&proxy_a.statusz().await, "b", "autoscaling")
    })
    .await;
    let callers = |proxy: &Proxy| {
        let client = proxy.client(&ground.pki).from(CLIENT);
        let client = client
            .header("X-Forwarded-For", "10.1.2.3")
            .header("X-Real-Ip", "10.1.2.4")
            .header("X-Remote-User", "kubernetes-admin")
            .header("X-Remote-Group", "system:masters");
        [
            (
                client.cert("alice"),
                "alice",
                vec!["devs", "qa", "system:authenticated"],
            ),
            (
                client.token("tok-bob"),
                "bob",
                vec!["devs", "system:authenticated"],
            ),
            (client, "system:anonymous", vec!["system:unauthenticated"]),
        ]
    };
    // To B's own proxy, and through A's: a peer tells of its client.
    for (way, proxy) in [("own", &proxy_b), ("through", &proxy_a)] {
        for (client, user, groups) in callers(proxy) {
            for (number, client) in [client.http1(), client.http2()].into_iter().enumerate() {
                let mark = format!("{way}-{}-{number}", user.replace(':', "-"));
                let answer = client.get(&format!("{HPAS}?mark={mark}")).await;
                assert_eq!(answer.code(), 403, "{}", answer.text());
                assert!(answer.text().contains(&format!("User \\\"{user}\\\"")));
                let event = audited(&ground, &mark).await;
                assert_eq!(event["user"]["username"], user);
                assert_eq!(event["user"]["groups"], serde_json::json!(groups));
                let sources = event["sourceIPs"].as_array().unwrap();
                assert_eq!(sources[0], CLIENT.to_string().as_str(), "{sources:?}");
                assert!(
                    !sources
                        .iter()
                        .any(|ip| ip.as_str().unwrap().starts_with("10."))
                );
            }
        }
    }
}

/// As it is known by name, from what it may not do.
async fn name_of(client: &Client) -> String {
    let answer = client.get("/api/v1/secrets").await;
    assert_eq!(answer.code(), 403, "{}", answer.text());
    let message = answer.json()["message"].as_str().unwrap().to_owned();
    message.split('"').nth(1).unwrap().to_owned()
}

async fn is_not_ready(options: ProxyOptions, words: &[&str]) {
    let proxy = Proxy::start(options.until(Until::Live)).await;
    eventually("it says what differs", LONGER, async || {
        let text = proxy.admin_get("/readyz?verbose").await.text();
        let line = text
            .lines()
            .find(|line| line.starts_with("[-]requestheader failed: "));
        match line.is_some_and(|line| words.iter().all(|word| line.contains(word))) {
            true => Ok(()),
            false => Err(text),
        }
    })
    .await;
}

#[tokio::test]
async fn other_header_names_are_used_and_compared() {
    let ground = Ground::bootstrapped().await;
    let kube = ground
        .kube("cp-a")
        .without("requestheader-username-headers")
        .without("requestheader-group-headers")
        .without("requestheader-extra-headers-prefix")
        .arg("--requestheader-username-headers=X-Foo-User,X-Bar-User")
        .arg("--requestheader-group-headers=X-Foo-Group")
        .arg("--requestheader-extra-headers-prefix=X-Foo-Extra-");
    let mut a = KubeApiServer::start(kube, &ground.pki).await;
    let named = |id: &str| {
        ground
            .proxy(id, a.addr())
            .set(
                "serving.requestHeaderUsernameHeaders",
                "[X-Bar-User, X-Foo-User]",
            )
            .set("serving.requestHeaderGroupHeaders", "[X-Foo-Group]")
            .set("serving.requestHeaderExtraHeaderPrefixes", "[X-Foo-Extra-]")
    };
    let proxy = Proxy::start(named("a").until(Until::Ready)).await;
    let client = proxy.client(&ground.pki);
    let alice = client.cert("alice").header("X-Foo-Group", "system:masters");
    assert_eq!(name_of(&alice).await, "alice");
    let alice = client
        .cert("alice")
        .header("X-Foo-User", "kubernetes-admin");
    assert_eq!(name_of(&alice).await, "alice");
    assert_eq!(
        client.cert("admin").get("/api/v1/secrets").await.code(),
        200
    );

    // One list wrong at a time.
    let user = ("serving.requestHeaderUsernameHeaders", "[X-Remote-User]");
    let more = (
        "serving.requestHeaderUsernameHeaders",
        "[X-Foo-User, X-Bar-User, X-Other-User]",
    );
    let group = ("serving.requestHeaderGroupHeaders", "[X-Remote-Group]");
    for (number, ((key, value), told)) in [
        (user, "401"),
        (more, "ignores x-other-user"),
        (group, "403"),
    ]
    .into_iter()
    .enumerate()
    {
        let options = named(&format!("wrong-{number}")).set(key, value);
        is_not_ready(options, &[key, told]).await;
    }

    // What only the apiserver has is removed.
    for (number, (key, value)) in [
        ("serving.requestHeaderUsernameHeaders", "[X-Foo-User]"),
        (
            "serving.requestHeaderExtraHeaderPrefixes",
            "[X-Remote-Extra-]",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let options = named(&format!("fewer-{number}")).set(key, value);
        let proxy = Proxy::start(options.until(Until::Ready)).await;
        let alice = proxy.client(&ground.pki).cert("alice");
        let alice = alice.header("X-Bar-User", "kubernetes-admin");
        assert_eq!(name_of(&alice).await, "alice");
    }

    // After a restart its credentials are accepted again.
    a.restart().await;
    eventually("it is ready again", LONGER, async || proxy.is_ready().await).await;
    assert_eq!(name_of(&alice).await, "alice");
}

#[tokio::test]
async fn an_apiserver_without_requestheader_flags_accepts_no_credentials() {
    let ground = Ground::bootstrapped().await;
    let kube = ground.kube("cp-a").without("requestheader-");
    let a = KubeApiServer::start(kube, &ground.pki).await;
    is_not_ready(
        ground.proxy("a", a.addr()),
        &["401", "--requestheader-client-ca-file"],
    )
    .await;
}

#[tokio::test]
async fn an_apiserver_that_allows_everything_is_recognised_all_the_same() {
    let ground = Ground::bootstrapped().await;
    let kube = ground.kube("cp-a").authorization("AlwaysAllow");
    let a = KubeApiServer::start(kube, &ground.pki).await;
    let proxy = Proxy::start(ground.proxy("a", a.addr()).until(Until::Ready)).await;
    let verbose = proxy.admin_get("/readyz?verbose").await.text();
    assert!(verbose.contains("[+]requestheader ok"), "{verbose}");
}
