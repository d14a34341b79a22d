//! Users, as seen by real kube-apiservers v1.20.2.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::Value;

use super::header_names::{
    a_header_that_only_another_apiserver_names_has_no_effect_there, with_another_group_header,
};
use crate::routing::real_apiservers::LONGER;
use testkit::cluster::{Ground, HPAS, LONG, lists};
use testkit::double::v1_20;
use testkit::kube::{KubeApiServer, KubeOptions};
use testkit::proxy::{Proxy, Until};
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

/// B has a group header of its own. A, a double, does not serve what is asked for.
#[tokio::test]
async fn the_audit_log_of_another_names_address_and_user_and_no_header_of_its_own_has_an_effect() {
    let ground = Ground::bootstrapped().await;
    let b_options = with_another_group_header(with_audit(&ground, ground.kube("cp-b")));
    let b = KubeApiServer::start(b_options, &ground.pki).await;
    let a = ground.double(v1_20().without_group("autoscaling")).await;
    let (proxy_a, proxy_b) = tokio::join!(
        Proxy::start(ground.proxy("a", a.addr()).until(Until::Ready)),
        Proxy::start(ground.proxy("b", b.addr()).until(Until::Ready)),
    );
    eventually("A's proxy knows of B", LONGER, async || {
        lists(&proxy_a.statusz().await, "b", "autoscaling")
    })
    .await;
    the_audit_log_names_the_clients_address_and_user(&proxy_a, &proxy_b, &ground).await;
    a_header_that_only_another_apiserver_names_has_no_effect_there(&b, &proxy_a, &ground).await;
}

async fn the_audit_log_names_the_clients_address_and_user(
    proxy_a: &Proxy,
    proxy_b: &Proxy,
    ground: &Ground,
) {
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
    for (way, proxy) in [("own", proxy_b), ("through", proxy_a)] {
        for (client, user, groups) in callers(proxy) {
            for (number, client) in [client.http1(), client.http2()].into_iter().enumerate() {
                let mark = format!("{way}-{}-{number}", user.replace(':', "-"));
                let answer = client.get(&format!("{HPAS}?mark={mark}")).await;
                assert_eq!(answer.code(), 403, "{}", answer.text());
                assert!(answer.text().contains(&format!("User \\\"{user}\\\"")));
                let event = audited(ground, &mark).await;
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

#[tokio::test]
async fn an_apiserver_that_allows_everything_is_recognised_all_the_same() {
    let ground = Ground::bootstrapped().await;
    let kube = ground.kube("cp-a").authorization("AlwaysAllow");
    let a = KubeApiServer::start(kube, &ground.pki).await;
    let proxy = Proxy::start(ground.proxy("a", a.addr()).until(Until::Ready)).await;
    let verbose = proxy.admin_get("/readyz?verbose").await.text();
    assert!(verbose.contains("[+]requestheader ok"), "{verbose}");
}
