//! Header names by which apiservers recognise users, and that this proxy's configuration does not name: nobody but a
//! peer can use them, and who may write the ConfigMap that publishes them takes nothing away from others. And names that are
//! configured otherwise than usual.

use std::time::Duration;

use serde_json::{Value, json};

use crate::routing::real_apiservers::LONGER;
use testkit::client::Client;
use testkit::cluster::{Ground, HPAS, LONG};
use testkit::double::auth::RequestHeaders;
use testkit::double::{Double, DoubleOptions, v1_20};
use testkit::kube::{KubeApiServer, KubeOptions};
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::registry::Registry;
use testkit::wait::{eventually, holds};

const MAP: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
const KEY: &str = "/registry/configmaps/kube-system/extension-apiserver-authentication";
const SECRETS: &str = "/api/v1/secrets";
const ECHO: &str = "/_double/echo";
/// Spellings of the header that only the apiserver names.
const FORGED: [&str; 2] = ["X-Auth-Group", "x_auth_group"];
/// Far shorter than any step of an apiserver's start.
const PAUSE: Duration = Duration::from_millis(20);

pub fn with_another_group_header(options: KubeOptions) -> KubeOptions {
    options
        .without("requestheader-group-headers")
        .arg("--requestheader-group-headers=X-Remote-Group,X-Auth-Group")
}

/// All names are others, and one of a group is unknown to the proxies that [`named`] configures.
fn with_other_names(options: KubeOptions) -> KubeOptions {
    options
        .without("requestheader-username-headers")
        .without("requestheader-group-headers")
        .without("requestheader-extra-headers-prefix")
        .arg("--requestheader-username-headers=X-Foo-User,X-Bar-User")
        .arg("--requestheader-group-headers=X-Foo-Group,X-Auth-Group")
        .arg("--requestheader-extra-headers-prefix=X-Foo-Extra-")
}

fn named(id: &str, apiserver: &KubeApiServer, ground: &Ground) -> ProxyOptions {
    let options = ground.proxy(id, apiserver.addr());
    options
        .set(
            "serving.requestHeaderUsernameHeaders",
            "[X-Bar-User, X-Foo-User]",
        )
        .set("serving.requestHeaderGroupHeaders", "[X-Foo-Group]")
        .set("serving.requestHeaderExtraHeaderPrefixes", "[X-Foo-Extra-]")
}

/// Somebody who claims to be an administrator.
fn climber(client: &Client) -> Client {
    let claim = |client: Client, name: &str| client.header(name, "system:masters");
    FORGED.into_iter().fold(client.clone(), claim)
}

/// The apiserver itself accepts the header, of somebody who has the proxy's certificate.
async fn accepts_it(apiserver: &KubeApiServer, user_header: &str, ground: &Ground) {
    let peer = Client::new(apiserver.addr(), &ground.pki).cert("front-proxy-client");
    let alice = climber(&peer.header(user_header, "alice"));
    assert_eq!(alice.get(SECRETS).await.code(), 200);
}

/// Asks until `end` says so. Nobody gets what only administrators may see; returns how often the apiserver said no.
async fn nobody_climbs(clients: &[Client], path: &str, end: impl AsyncFn() -> bool) -> usize {
    let mut forbidden = 0;
    while !end().await {
        for client in clients {
            let Ok(answer) = client.try_get(path).await else {
                continue;
            };
            assert_ne!(answer.code(), 200, "{}", answer.text());
            forbidden += usize::from(answer.code() == 403);
        }
        tokio::time::sleep(PAUSE).await;
    }
    forbidden
}

fn everybody(proxy: &Proxy, ground: &Ground) -> [Client; 4] {
    let client = proxy.client(&ground.pki).timeout(Duration::from_secs(5));
    let alice = climber(&client.cert("alice"));
    let bob = climber(&client.token("tok-bob"));
    [alice.http1(), alice.http2(), bob, climber(&client)]
}

/// What everybody could do before, whatever the names are.
async fn nobody_is_locked_out(proxy: &Proxy, ground: &Ground) {
    let client = proxy.client(&ground.pki);
    let admin = client.cert("admin");
    let told = async |client: &Client, code| {
        let answer = client.get(SECRETS).await;
        assert_eq!(answer.code(), code, "{}", answer.text());
        answer.text()
    };
    told(&admin.header("Accept", "application/json"), 200).await;
    told(&admin.header("Accept", "text/x"), 406).await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    assert!(
        told(&admin.header("Accept", table), 200)
            .await
            .contains("\"Table\"")
    );
    for client in [
        &client.token("tok-bob"),
        &admin.header("Impersonate-User", "bob"),
    ] {
        assert!(told(client, 403).await.contains("User \\\"bob\\\""));
    }
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "x-"}});
    let admin = admin.header("Content-Type", "application/json");
    let maps = "/api/v1/namespaces/default/configmaps";
    let created = admin.request("POST", maps, map.to_string()).await;
    assert_eq!(created.code(), 201, "{}", created.text());
}

/// As it is known by name, from what it may not do.
async fn name_of(client: &Client) -> String {
    let answer = client.get(SECRETS).await;
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
async fn header_names_are_compared_one_more_has_no_effect_and_their_writer_locks_nobody_out() {
    let ground = Ground::new().await;
    let kube = with_other_names(ground.kube("cp-a")).do_not_wait();
    let mut a = KubeApiServer::start(kube, &ground.pki).await;
    let proxy = Proxy::start(named("a", &a, &ground).until(Until::Live)).await;
    let clients = everybody(&proxy, &ground);
    one_more_has_no_effect_from_the_start_on(&a, &proxy, &clients, &ground).await;
    others_are_used(&proxy, &ground).await;
    let alice = proxy.client(&ground.pki).cert("alice");
    let alice = alice.header("X-Foo-User", "kubernetes-admin");
    assert_eq!(name_of(&alice).await, "alice");
    one_more_has_none_through_a_restart(&mut a, &proxy, &clients, &ground).await;
    // After it the proxy's credentials are accepted again.
    assert_eq!(name_of(&alice).await, "alice");
    they_are_compared(&a, &ground).await;
    whoever_writes_the_config_map_locks_nobody_out_and_keeps_no_node_from_being_ready(
        &mut a, &proxy, &ground,
    )
    .await;
}

async fn one_more_has_no_effect_from_the_start_on(
    a: &KubeApiServer,
    proxy: &Proxy,
    clients: &[Client],
    ground: &Ground,
) {
    nobody_climbs(clients, SECRETS, async || proxy.is_ready().await).await;
    accepts_it(a, "X-Foo-User", ground).await;
    let asked = std::cell::Cell::new(0);
    let ten_times = async || {
        asked.set(asked.get() + 1);
        asked.get() > 10
    };
    let forbidden = nobody_climbs(clients, SECRETS, ten_times).await;
    assert_eq!(forbidden, 10 * clients.len());
    nobody_is_locked_out(proxy, ground).await;
    let rejected = proxy.metric("kube_interop_proxy_rejected_headers_total", &[]);
    assert!(rejected.await >= 40.0);
}

/// The names are in etcd before the apiserver starts anew, and when the proxy does.
async fn one_more_has_none_through_a_restart(
    a: &mut KubeApiServer,
    proxy: &Proxy,
    clients: &[Client],
    ground: &Ground,
) {
    a.kill();
    nobody_climbs(clients, SECRETS, async || !proxy.is_ready().await).await;
    a.start_again();
    nobody_climbs(clients, SECRETS, async || proxy.is_ready().await).await;
    let other = Proxy::start(named("b", a, ground).until(Until::Live)).await;
    let clients = everybody(&other, ground);
    nobody_climbs(&clients, SECRETS, async || other.is_ready().await).await;
}

async fn others_are_used(proxy: &Proxy, ground: &Ground) {
    let client = proxy.client(&ground.pki);
    for (header, value) in [
        ("X-Foo-Group", "system:masters"),
        ("X-Foo-User", "kubernetes-admin"),
    ] {
        let alice = client.cert("alice").header(header, value);
        assert_eq!(name_of(&alice).await, "alice");
    }
    assert_eq!(client.cert("admin").get(SECRETS).await.code(), 200);
}

async fn they_are_compared(a: &KubeApiServer, ground: &Ground) {
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
        let options = named(&format!("wrong-{number}"), a, ground).set(key, value);
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
        let options = named(&format!("fewer-{number}"), a, ground).set(key, value);
        let proxy = Proxy::start(options.until(Until::Ready)).await;
        let alice = proxy.client(&ground.pki).cert("alice");
        let alice = alice.header("X-Bar-User", "kubernetes-admin");
        assert_eq!(name_of(&alice).await, "alice");
    }
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

/// B is another one, which A's proxy sends requests to.
pub async fn a_header_that_only_another_apiserver_names_has_no_effect_there(
    b: &KubeApiServer,
    proxy_a: &Proxy,
    ground: &Ground,
) {
    accepts_it(b, "X-Remote-User", ground).await;
    for client in everybody(proxy_a, ground) {
        let answer = client.get(HPAS).await;
        assert_eq!(answer.code(), 403, "{}", answer.text());
    }
}

/// Writes lists of the ConfigMap, over what is there.
async fn publish(admin: &Client, lists: Value) {
    let admin = admin.header("Content-Type", "application/merge-patch+json");
    let patch = json!({ "data": lists }).to_string();
    let answer = admin.request("PATCH", MAP, patch).await;
    assert_eq!(answer.code(), 200, "{}", answer.text());
}

/// `old`: a proxy from before.
async fn whoever_writes_the_config_map_locks_nobody_out_and_keeps_no_node_from_being_ready(
    a: &mut KubeApiServer,
    old: &Proxy,
    ground: &Ground,
) {
    let (user, group, extra) = (
        "requestheader-username-headers",
        "requestheader-group-headers",
        "requestheader-extra-headers-prefix",
    );
    let list = |names: &[&str]| json!(names).to_string();
    let needed = [
        "Accept",
        "Authorization",
        "Connection",
        "Content-Length",
        "Content-Type",
        "Host",
        "Impersonate-Group",
        "Impersonate-User",
        "Transfer-Encoding",
        "X-Forwarded-For",
    ];
    let with = |own: &str| list(&[&needed[..], &["X-Nobody", own]].concat());
    let many: Vec<_> = (0..50_000).map(|number| format!("X-{number}")).collect();
    for (number, lists) in [
        json!({user: with("X-Foo-User"), group: with("X-Foo-Group"), extra: list(&["", "Acc", "X-Foo-Extra-"])}),
        json!({group: json!(many).to_string()}),
        json!({extra: "[]", group: "[]"}),
        json!({group: "nonsense"}),
        json!({user: null, group: null, extra: null, "requestheader-client-ca-file": null}),
    ]
    .into_iter()
    .enumerate()
    {
        publish(a.admin(), lists).await;
        if number == 0 {
            a.restart().await;
        }
        let options = named(&format!("new-{number}"), a, ground);
        let new = Proxy::start(options.until(Until::Ready)).await;
        for proxy in [old, &new] {
            eventually("it is ready", LONGER, async || proxy.is_ready().await).await;
            nobody_is_locked_out(proxy, ground).await;
        }
    }
}

#[tokio::test]
async fn a_name_that_clients_need_and_the_apiserver_accepts_keeps_it_from_being_ready() {
    let ground = Ground::bootstrapped().await;
    let a = ground
        .kube("cp-a")
        .without("requestheader-username-headers")
        .without("requestheader-group-headers")
        .arg("--requestheader-username-headers=X-Remote-User,Impersonate-User")
        .arg("--requestheader-group-headers=X-Remote-Group,Accept");
    let a = KubeApiServer::start(a, &ground.pki).await;
    let words = ["takes impersonate-user", "takes accept for"];
    is_not_ready(ground.proxy("a", a.addr()), &words).await;
}

/// A double that takes `X-Auth-Group` for a group, and publishes nothing.
async fn silent(ground: &Ground) -> Double {
    let mut options = DoubleOptions::new(ground.pki.dir(), v1_20());
    let group = ["X-Remote-Group", "X-Auth-Group"].map(str::to_owned).into();
    options.request_headers = RequestHeaders {
        group,
        ..RequestHeaders::default()
    };
    let double = Double::start(options).await;
    let admin = Client::new(double.addr(), &ground.pki).cert("admin");
    assert_eq!(admin.request("DELETE", MAP, "").await.code(), 200);
    double
}

/// Which of the headers of a request arrive: that of an application, and the one that nobody may send.
async fn arrive(client: &Client) -> (bool, bool) {
    let client = climber(client).header("X-Custom", "1");
    let echo = client.get(ECHO).await.json();
    let groups = echo["user"]["groups"].as_array().unwrap();
    let headers = echo["headers"].to_string().to_lowercase();
    (
        headers.contains("x-custom"),
        groups.iter().any(|group| group == "system:masters"),
    )
}

#[tokio::test]
async fn while_names_are_unknown_a_users_own_headers_stay_here_and_etcd_tells_them() {
    let ground = Ground::new().await;
    let double = silent(&ground).await;
    let proxy = Proxy::start(ground.proxy("a", double.addr()).until(Until::Ready)).await;
    let client = proxy.client(&ground.pki);
    let (alice, bob) = (client.cert("alice"), client.token("tok-bob"));
    holds("nothing is known", Duration::from_secs(1), async || {
        arrive(&alice).await == (false, false)
    })
    .await;
    // Over a connection without certificate no name is accepted.
    assert_eq!(arrive(&bob).await, (true, false));

    let registry = Registry::new(ground.etcd.client().await, "/registry");
    let map = |group: &str| {
        let data = json!({
            "requestheader-username-headers": "[\"X-Remote-User\"]",
            "requestheader-group-headers": group,
        });
        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data}).to_string()
    };
    registry.put(KEY, "k8s:enc:aescbc:v1:key1:x").await;
    eventually("what cannot be read is named", LONG, async || {
        let facts = proxy.statusz().await["facts"]["undecodable"].to_string();
        match facts.contains("encrypted") {
            true => Ok(()),
            false => Err(facts),
        }
    })
    .await;
    assert_eq!(arrive(&alice).await, (false, false));

    registry
        .put(KEY, &map(r#"["X-Remote-Group","X-Auth-Group"]"#))
        .await;
    eventually("etcd tells the names", LONG, async || {
        arrive(&alice).await == (true, false)
    })
    .await;
    // For a moment somebody takes out what the apiserver accepts.
    registry.put(KEY, &map(r#"["X-Remote-Group"]"#)).await;
    let revision = registry.put(KEY, &map("garbage")).await;
    registry.delete(KEY).await;
    eventually("the proxy has seen that", LONG, async || {
        let topics = proxy.statusz().await["facts"]["topics"].clone();
        let topics = topics.as_array().unwrap().iter();
        let mut topics =
            topics.filter(|topic| topic["topic"] == "extension-apiserver-authentication");
        topics.any(|topic| topic["revision"].as_i64() > Some(revision))
    })
    .await;
    assert_eq!(arrive(&alice).await, (true, false));
    assert_eq!(arrive(&bob).await, (true, false));
}
