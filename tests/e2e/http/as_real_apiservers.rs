//! What real kube-apiservers v1.20.2 answer, here and where requests are rerouted to, as they answer themselves.

use bytes::Bytes;
use kube_interop_proxy::relay::upstream::Tokens;
use testkit::client::Client;
use testkit::cluster::{Ground, HPAS_IN_DEFAULT, lists};
use testkit::kube::KubeApiServer;
use testkit::modern::ModernApiServer;
use testkit::pki::SERVER_NAME;
use testkit::proxy::{Proxy, Until};
use testkit::raw;
use testkit::wait::eventually;
use testkit::wire::{Pieces, Wire, request};

use crate::admin::secure::{Secure, a_real_apiserver_decides_who_may_read_metrics};
use crate::http::differential::a_real_apiserver_answers_the_same;
use crate::limits::large_headers::what_kube_apiserver_takes_is_taken;
use crate::routing::real_apiservers::{LONGER, without_autoscaling};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const ONE: &str = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}"#;

/// One apiserver, to which another comes in the end: each start of a real one takes seconds of a processor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_real_apiservers_answer_and_decide_holds_behind_proxies() {
    let ground = Ground::bootstrapped().await;
    let server = KubeApiServer::start(ground.kube("cp-b").arg(CORS), &ground.pki).await;
    no_answer_makes_a_token_known(&Client::new(server.addr(), &ground.pki)).await;

    let secure = Secure::new();
    let proxy = secure.set(ground.proxy("b", server.addr()));
    let proxy = Proxy::start(proxy.until(Until::Ready)).await;
    let through = proxy.client(&ground.pki).cert("admin");
    a_real_apiserver_answers_the_same(&server, &through).await;
    expectations_are_met_as_by_an_apiserver(&server, &through).await;
    what_kube_apiserver_takes_is_taken(&server, &through).await;
    a_real_apiserver_decides_who_may_read_metrics(&ground, &server, &secure).await;
    assert!(proxy.is_ready().await);

    names_that_are_dots_are_refused_as_by_the_apiserver_that_serves_them(&ground, &server).await;
}

async fn expectations_are_met_as_by_an_apiserver(server: &KubeApiServer, through: &Client) {
    let path = format!("{CONFIG_MAPS}?dryRun=All");
    let codes = async |client: &Client, value: &str, body: &str| {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\nExpect: {value}\r\n\
             Connection: close\r\n\r\n{body}",
            body.len()
        );
        let http1 = raw::codes(&raw::http1(client, head.as_bytes()).await);
        let mut post = request(
            "POST",
            &path,
            Pieces::measured(Bytes::from(body.to_owned())),
        );
        for (name, value) in [("content-type", "application/json"), ("expect", value)] {
            post.headers_mut().insert(name, value.parse().unwrap());
        }
        let http2 = Wire::http2(client).await.send(SERVER_NAME, post).await;
        (http1, http2.unwrap().code())
    };
    for (value, body, http1, http2) in [
        ("100-continue", ONE, &[100, 201][..], 201),
        ("a, 100-CONTINUE", ONE, &[100, 201], 201),
        ("100-continue", "", &[400], 400),
        ("nonsense", ONE, &[417], 201),
        ("nonsense", "", &[417], 400),
        ("100-continued", ONE, &[417], 201),
        ("", ONE, &[201], 201),
    ] {
        let expected = (http1.to_vec(), http2);
        assert_eq!(
            codes(server.admin(), value, body).await,
            expected,
            "{value:?}"
        );
        assert_eq!(codes(through, value, body).await, expected, "{value:?}");
    }
}

/// Beside `b`, which is there with its proxy, A comes, and lacks what B serves.
async fn names_that_are_dots_are_refused_as_by_the_apiserver_that_serves_them(
    ground: &Ground,
    b: &KubeApiServer,
) {
    let a = without_autoscaling(ground.kube("cp-a"));
    let a = KubeApiServer::start(a, &ground.pki).await;
    let proxy_a = ground.proxy("a", a.addr()).until(Until::Ready);
    let proxy_a = Proxy::start(proxy_a).await;
    eventually("A's proxy knows B", LONGER, async || {
        lists(&proxy_a.statusz().await, "b", "autoscaling")
    })
    .await;
    let through = proxy_a.client(&ground.pki).cert("admin");
    let ask = async |client: &Client, method: &str, path: &str| {
        let mut wire = Wire::http2(client).await;
        let answer = wire.send(SERVER_NAME, request(method, path, Pieces::default()));
        let answer = answer.await.unwrap();
        (answer.code(), answer.text())
    };
    for (below, server) in [(CONFIG_MAPS, &a), (HPAS_IN_DEFAULT, b)] {
        for name in [".", "..", "%2e%2e", "%2E.", "%2e"] {
            for (method, rest) in [("GET", ""), ("GET", "/status"), ("DELETE", "")] {
                let path = format!("{below}/{name}{rest}");
                let expected = ask(server.admin(), method, &path).await;
                let seen = ask(&through, method, &path).await;
                assert_eq!(seen, expected, "{method} {path}");
                let is_served = rest.is_empty() || below == HPAS_IN_DEFAULT;
                let code = if is_served { 400 } else { 404 };
                assert_eq!(seen.0, code, "{method} {path}: {}", seen.1);
            }
        }
        // These name something else, or nothing.
        for path in ["/../x", "/./..", "//.."] {
            let (code, text) = ask(&through, "GET", &format!("{below}{path}")).await;
            assert_ne!(code, 200, "{path}: {text}");
        }
    }
}

/// What an apiserver answers to somebody with an invented token, asked in all ways that may be answered before the token
/// is looked at.
async fn answers_to_an_invented_token(server: &Client) -> Vec<(&'static str, http::Method, u16)> {
    let stranger = server.fresh().http1();
    let stranger = stranger
        .token("invented")
        .header("Origin", "https://example.com");
    let asked = [
        ("OPTIONS", CONFIG_MAPS),
        ("OPTIONS", "/version"),
        ("GET", CONFIG_MAPS),
        ("HEAD", "/version"),
        ("GET", "/healthz"),
        ("GET", "/livez?verbose"),
        ("GET", "/metrics"),
        ("GET", "/nothing"),
        ("GET", "/apis/nothing.example/v1/things"),
        (
            "GET",
            "/api/v1/namespaces/default/configmaps?timeout=nonsense",
        ),
        (
            "GET",
            "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=x",
        ),
        ("GET", "/api/v1/watch"),
        ("GET", "/api/v1/namespaces/default/configmaps/%2e%2e"),
        ("POST", CONFIG_MAPS),
        ("PATCH", "/api/v1/namespaces/default/configmaps/one"),
        ("DELETE", "/api/v1/namespaces/default/configmaps/one"),
    ];
    let mut answers = Vec::new();
    for (method, path) in asked {
        let answer = stranger.fresh().request(method, path, "").await;
        answers.push((path, method.parse().unwrap(), answer.code()));
    }
    answers
}

/// Of an apiserver that answers preflights.
async fn no_answer_makes_a_token_known(server: &Client) {
    let answers = answers_to_an_invented_token(server).await;
    // Preflights are answered without a look at the token.
    assert_eq!((answers[0].2, answers[2].2), (204, 401), "{answers:?}");
    for (path, method, code) in answers {
        let tokens = Tokens::default();
        let header = (
            "authorization".parse().unwrap(),
            "Bearer invented".parse().unwrap(),
        );
        let token = tokens.of(&http::HeaderMap::from_iter([header])).unwrap();
        tokens.answered(token, &method, code);
        assert!(!tokens.is_known(token), "{method} {path}: {code}");
    }
}

const CORS: &str = "--cors-allowed-origins=https://example.com";

#[tokio::test]
async fn no_answer_of_today_to_an_invented_token_makes_it_known() {
    let ground = Ground::new().await;
    let Ground { dir, pki, etcd } = &ground;
    let server = ModernApiServer::start(dir.path(), pki, etcd, &[CORS]).await;
    no_answer_makes_a_token_known(&Client::new(server.addr(), pki)).await;
}
