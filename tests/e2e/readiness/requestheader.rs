//! Whether the apiserver trusts the proxy's requestheaders, which `/readyz` requires.

use std::time::Duration;

use serde_json::Value;

use testkit::cluster::{Ground, LONG};
use testkit::double::auth::RequestHeaders;
use testkit::double::{Double, DoubleOptions, Recorded, v1_20, v1_36};
use testkit::pki::LeafOptions;
use testkit::proxy::Proxy;
use testkit::wait::{eventually, holds};

const MAP: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
const CHECK: &str = "kube_interop_proxy_readyz_check";
const ECHO: &str = "/_double/echo";

async fn double(ground: &Ground, change: impl FnOnce(&mut RequestHeaders)) -> Double {
    let mut options = DoubleOptions::new(ground.pki.dir(), v1_20());
    change(&mut options.request_headers);
    Double::start(options).await
}

/// Waits for a check that fails with these words; both ports say so.
async fn is_not_ready(proxy: &Proxy, ground: &Ground, words: &[&str]) {
    eventually("the reason is named", LONG, async || {
        let answer = proxy.admin_get("/readyz").await;
        let text = answer.text();
        let line = text
            .lines()
            .find(|line| line.starts_with("[-]requestheader failed: "));
        let told = line.is_some_and(|line| words.iter().all(|word| line.contains(word)));
        match answer.code() == 503 && told {
            true => Ok(()),
            false => Err(text),
        }
    })
    .await;
    let status = proxy.statusz().await;
    assert_eq!(status["server"]["ready"], false);
    let missing = status["server"]["missing"].as_array().unwrap().iter();
    let mut missing = missing.filter_map(|missing| missing.as_str());
    assert!(
        missing.any(|missing| missing.contains(words[0])),
        "{status}"
    );
    assert_eq!(
        proxy.metric(CHECK, &[("check", "requestheader")]).await,
        0.0
    );
    let on_tls = proxy.client(&ground.pki).get("/readyz").await;
    assert_eq!(on_tls.code(), 503);
    let message = on_tls.json()["message"].to_string();
    assert!(message.contains("[-]requestheader failed"), "{message}");
}

async fn is_ready(proxy: &Proxy, ground: &Ground) {
    eventually("it is ready", LONG, async || {
        let answer = proxy.admin_get("/readyz?verbose").await;
        match answer.code() {
            200 => Ok(()),
            _ => Err(answer.text()),
        }
    })
    .await;
    let verbose = proxy.admin_get("/readyz?verbose").await.text();
    assert!(verbose.contains("[+]requestheader ok"), "{verbose}");
    assert_eq!(
        proxy.metric(CHECK, &[("check", "requestheader")]).await,
        1.0
    );
    assert_eq!(proxy.client(&ground.pki).get("/readyz").await.code(), 200);
}

fn asked(double: &Double) -> Vec<Recorded> {
    let requests = double.requests().into_iter();
    requests.filter(|request| request.path == MAP).collect()
}

/// Each at an apiserver of its own. The last ones leave other certificates behind.
#[tokio::test]
async fn it_is_found_out_whether_requestheaders_are_trusted_and_under_which_names() {
    let ground = &Ground::new().await;
    an_invented_user_and_the_names_are_asked_for_once(ground).await;
    other_names_work_when_both_have_them(ground).await;
    names_that_only_the_apiserver_has_are_removed_and_told(ground).await;
    it_is_checked_anew_when_the_apiserver_was_restarted(ground).await;
    a_config_map_that_is_not_there_yet_is_read_when_it_is(ground).await;
    an_apiserver_that_lets_everybody_read_is_asked_once_more_without_a_user(ground).await;
    a_server_that_reads_uids_is_told_no_other(ground).await;
    a_certificate_that_is_rejected_is_noticed_when_it_comes_and_when_it_goes(ground).await;
    a_certificate_that_is_a_users_is_not_enough(ground).await;
}

async fn an_invented_user_and_the_names_are_asked_for_once(ground: &Ground) {
    let double = double(ground, |_| {}).await;
    let mut proxy = Proxy::start(ground.proxy("once", double.addr())).await;
    proxy.wait_ready().await;
    is_ready(&proxy, ground).await;
    holds(
        "nothing more is asked",
        Duration::from_secs(2),
        async || asked(&double).len() == 2,
    )
    .await;
    let requests = asked(&double);
    assert!(requests[0].user.starts_with("kube-interop-proxy-invented-"));
    assert_eq!(requests[1].user, "system:kube-interop-proxy");
    assert!(
        requests
            .iter()
            .all(|request| request.how == "requestheader")
    );

    // Another proxy invents another.
    let mut other = Proxy::start(ground.proxy("once-more", double.addr())).await;
    other.wait_ready().await;
    assert_ne!(asked(&double)[2].user, requests[0].user);
}

async fn other_names_work_when_both_have_them(ground: &Ground) {
    let double = double(ground, |headers| {
        headers.username = vec!["X-Foo-User".to_owned()];
        headers.group = vec!["X-Foo-Group".to_owned()];
        headers.extra_prefix = vec!["X-Foo-Extra-".to_owned()];
    })
    .await;
    let options = ground
        .proxy("other-names", double.addr())
        .set("serving.requestHeaderUsernameHeaders", "[x-foo-user]")
        .set("serving.requestHeaderGroupHeaders", "[X-FOO-GROUP]")
        .set("serving.requestHeaderExtraHeaderPrefixes", "[X-Foo-Extra-]");
    let proxy = Proxy::start(options).await;
    is_ready(&proxy, ground).await;
    let alice = proxy.client(&ground.pki).cert("alice");
    let alice = alice
        .header("X-Foo-Group", "system:masters")
        .header("X-Remote-User", "kubernetes-admin");
    let user: Value = alice.get(ECHO).await.json()["user"].clone();
    assert_eq!(user["name"], "alice");
    assert_eq!(
        user["groups"],
        serde_json::json!(["devs", "qa", "system:authenticated"])
    );
}

#[tokio::test]
async fn names_that_differ_keep_it_from_being_ready_and_the_list_is_named() {
    let foo = || vec!["X-Foo".to_owned()];
    let ground = Ground::new().await;
    let [user, group, needed] = [
        double(&ground, |headers| headers.username = foo()).await,
        double(&ground, |headers| headers.group = foo()).await,
        // What the apiserver accepts besides, and cannot be taken from clients.
        double(&ground, |headers| headers.group.push("Accept".to_owned())).await,
    ];
    for (double, words) in [
        (user, ["serving.requestHeaderUsernameHeaders", "401"]),
        (group, ["serving.requestHeaderGroupHeaders", "403"]),
        (needed, ["requestheader-group-headers", "takes accept for"]),
    ] {
        let proxy = Proxy::start(ground.proxy("a", double.addr())).await;
        is_not_ready(&proxy, &ground, &words).await;
        // Those whom it says nothing about are served all the same.
        let bob = proxy.client(&ground.pki).token("tok-bob");
        assert_eq!(bob.get(ECHO).await.json()["user"]["name"], "bob");
    }
}

async fn names_that_only_the_apiserver_has_are_removed_and_told(ground: &Ground) {
    let [group, extra] = [
        double(ground, |headers| headers.group.push("X-Foo".to_owned())).await,
        double(ground, |headers| {
            headers.extra_prefix = vec!["X-Foo".to_owned()]
        })
        .await,
    ];
    for (double, id, list) in [
        (group, "more-groups", "[x-foo, x-remote-group]"),
        (extra, "more-extras", "[x-foo]"),
    ] {
        let mut proxy = Proxy::start(ground.proxy(id, double.addr())).await;
        is_ready(&proxy, ground).await;
        let alice = proxy.client(&ground.pki).cert("alice");
        let alice = alice.header("X-Foo", "system:masters");
        let user: Value = alice.get(ECHO).await.json()["user"].clone();
        assert_eq!(user["groups"].as_array().unwrap().len(), 3, "{user}");
        assert_eq!(user["extra"], serde_json::json!({}));
        let log = std::fs::read_to_string(proxy.process().log()).unwrap();
        assert_eq!(log.matches(list).count(), 1, "{log}");
    }
}

async fn a_certificate_that_is_rejected_is_noticed_when_it_comes_and_when_it_goes(ground: &Ground) {
    let double = double(ground, |_| {}).await;
    let proxy = Proxy::start(ground.proxy("rejected", double.addr())).await;
    is_ready(&proxy, ground).await;
    let front_proxy = |cn: &str| {
        let leaf = LeafOptions::client(cn);
        ground
            .pki
            .leaf("front-proxy-client", "front-proxy-ca", &leaf);
    };
    front_proxy("stranger");
    is_not_ready(&proxy, ground, &["401", "apiServer.proxyClientCertFile"]).await;
    // Asked again and again, ever more seldom.
    let before = asked(&double).len();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(asked(&double).len() - before < 10);

    front_proxy("front-proxy-client");
    is_ready(&proxy, ground).await;
}

async fn it_is_checked_anew_when_the_apiserver_was_restarted(ground: &Ground) {
    let mut double = double(ground, |_| {}).await;
    let proxy = Proxy::start(ground.proxy("restarted", double.addr())).await;
    is_ready(&proxy, ground).await;
    double.stop().await;
    eventually("that is noticed", LONG, async || !proxy.is_ready().await).await;
    double.take_requests();
    double.start_again().await;
    double.set_ready(true);
    is_ready(&proxy, ground).await;
    assert_eq!(asked(&double).len(), 2);
}

async fn a_config_map_that_is_not_there_yet_is_read_when_it_is(ground: &Ground) {
    let double = double(ground, |_| {}).await;
    let admin = testkit::client::Client::new(double.addr(), &ground.pki).cert("admin");
    let map = admin.get(MAP).await.text();
    assert_eq!(admin.request("DELETE", MAP, "").await.code(), 200);
    let proxy = Proxy::start(ground.proxy("without-map", double.addr())).await;
    is_ready(&proxy, ground).await;
    let alice = proxy
        .client(&ground.pki)
        .cert("alice")
        .header("X-Custom", "1");
    let passes = async || {
        let echo = alice.get(ECHO).await.json();
        echo["headers"].to_string().contains("x-custom")
    };
    assert!(!passes().await, "it may be what the apiserver accepts");
    let maps = MAP.rsplit_once('/').unwrap().0;
    let created = admin.request("POST", maps, map).await;
    assert_eq!(created.code(), 201, "{}", created.text());
    eventually("the names are known", LONG, passes).await;
}

async fn an_apiserver_that_lets_everybody_read_is_asked_once_more_without_a_user(ground: &Ground) {
    let double = double(ground, |_| {}).await;
    double.allow("system:authenticated", MAP);
    let proxy = Proxy::start(ground.proxy("readable", double.addr())).await;
    is_ready(&proxy, ground).await;
    let requests = asked(&double);
    let users: Vec<_> = requests
        .iter()
        .map(|request| request.user.as_str())
        .collect();
    assert_eq!(users.len(), 3);
    assert_eq!(users[1..], ["", "system:kube-interop-proxy"]);
}

async fn a_certificate_that_is_a_users_is_not_enough(ground: &Ground) {
    let double = double(ground, |_| {}).await;
    // Signed by the wrong CA: a user of that name, whatever the header says.
    let leaf = LeafOptions::client("front-proxy-client");
    ground.pki.leaf("front-proxy-client", "ca", &leaf);
    let proxy = Proxy::start(ground.proxy("of-a-user", double.addr())).await;
    is_not_ready(&proxy, ground, &["for \"front-proxy-client\""]).await;
}

async fn a_server_that_reads_uids_is_told_no_other(ground: &Ground) {
    let modern = Double::start(DoubleOptions::new(ground.pki.dir(), v1_36())).await;
    let proxy_a = Proxy::start(ground.proxy("uids", modern.addr())).await;
    is_ready(&proxy_a, ground).await;
    let options = ground
        .proxy("no-uids", modern.addr())
        .set("serving.requestHeaderUidHeaders", "[]");
    let proxy_b = Proxy::start(options).await;
    is_ready(&proxy_b, ground).await;
    for proxy in [&proxy_a, &proxy_b] {
        let alice = proxy.client(&ground.pki).cert("alice");
        let alice = alice.header("X-Remote-Uid", "42");
        assert_eq!(alice.get(ECHO).await.json()["user"]["uid"], "");
    }
}
