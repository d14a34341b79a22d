//! Metrics for other hosts: who may read them, and those who must not get in anybody's way.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::routing::real_apiservers::LONGER;
use testkit::addr::Loopback;
use testkit::client::Client;
use testkit::cluster::{Ground, LONG, Single};
use testkit::double::reviews::{ACCESS_REVIEWS, TOKEN_REVIEWS};
use testkit::double::{Fault, Phase};
use testkit::kube::KubeApiServer;
use testkit::pki::{LeafOptions, SERVER_NAME};
use testkit::proxy::ProxyOptions;
use testkit::wait::eventually;

const PORT: u16 = 6451;
const BUILD: &str = "kube_interop_proxy_build_info";

/// Holds the address of the secure port.
pub struct Secure {
    address: Loopback,
}

impl Secure {
    pub fn new() -> Self {
        Self {
            address: Loopback::new(),
        }
    }

    fn socket(&self) -> SocketAddr {
        self.address.socket(PORT)
    }

    pub fn set(&self, options: ProxyOptions) -> ProxyOptions {
        let address = format!("\"{}\"", self.socket());
        options.set("admin.secureBindAddress", &address)
    }

    fn client(&self, ground: &Ground) -> Client {
        Client::new(self.socket(), &ground.pki)
    }
}

async fn world() -> (Single, Secure) {
    let secure = Secure::new();
    let single = Single::with(|options| secure.set(options)).await;
    (single, secure)
}

/// At the secure port of a proxy before this server.
pub async fn a_real_apiserver_decides_who_may_read_metrics(
    ground: &Ground,
    server: &KubeApiServer,
    secure: &Secure,
) {
    ground.pki.leaf(
        "scraper",
        "ca",
        &LeafOptions::client("scraper").org("monitors"),
    );
    let admin = server.admin();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "scrape"},
        "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "scrape"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "scrape"},
        "subjects": [
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"},
            {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "monitors"},
        ],
    });
    for (path, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/{path}");
        let answer = admin.request("POST", &path, object.to_string()).await;
        assert_eq!(answer.code(), 201, "{}", answer.text());
    }
    let client = secure.client(ground);
    // RBAC takes a moment to know the binding, and a no is kept for ten seconds.
    for allowed in [client.token("tok-bob"), client.cert("scraper")] {
        eventually("it may read metrics", LONGER, async || {
            let answer = allowed.get("/metrics").await;
            (answer.code() == 200 && answer.text().contains(BUILD))
                .then_some(())
                .ok_or_else(|| answer.text())
        })
        .await;
    }
    for (who, code, said) in [
        (
            client.fresh(),
            401,
            "a bearer token or a client certificate",
        ),
        (client.token("tok-nobody"), 401, "does not know this token"),
        (
            client.cert("alice"),
            403,
            "user \"alice\" may not get /metrics",
        ),
        (client.cert("expired"), 401, "a bearer token or"),
        (client.cert("rogue"), 401, "a bearer token or"),
        (client.cert("blank"), 401, "a bearer token or"),
        (client.cert("front-proxy-client"), 401, "a bearer token or"),
        (client.cert("admin"), 200, BUILD),
        (client.token("tok-admin"), 200, BUILD),
    ] {
        let answer = who.get("/metrics").await;
        assert_eq!(answer.code(), code, "{}", answer.text());
        assert!(answer.text().contains(said), "{}", answer.text());
    }
}

#[tokio::test]
async fn health_is_for_everybody_and_the_status_page_for_nobody() {
    let (single, secure) = world().await;
    let client = secure.client(&single.ground);
    for path in ["/livez", "/readyz"] {
        assert_eq!(client.get(path).await.text(), "ok\n");
    }
    let admin = client.cert("admin");
    for path in [
        "/statusz",
        "/statusz?format=json",
        "/",
        "/metrics/",
        "/debug",
    ] {
        assert_eq!(admin.get(path).await.code(), 404, "{path}");
    }
    assert_eq!(admin.request("POST", "/metrics", "x").await.code(), 405);
    let head = admin.request("HEAD", "/metrics", "").await;
    assert_eq!((head.code(), head.text().as_str()), (200, ""));

    // Which checks fail is told, why is not.
    single.double.set_phase(Phase::NotReady);
    eventually("it is not ready", LONG, async || {
        client.get("/readyz").await.code() == 503
    })
    .await;
    let said = client.get("/readyz?verbose").await.text();
    assert!(said.contains(" failed: reason withheld\n"), "{said}");
    assert!(said.contains("[+]etcd-synced ok\n"), "{said}");
    let told = single.proxy.admin_get("/readyz").await.text();
    assert!(
        !told.contains("withheld") && told.contains(" failed: "),
        "{told}"
    );

    // Plain HTTP/1.1 and nothing else, with a name and certificate as at the front door.
    let tls = client.connect_raw(&["h2", "http/1.1"]).await.unwrap();
    assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    assert!(
        client
            .server_name("nobody.example.com")
            .try_get("/livez")
            .await
            .is_err()
    );
    assert_eq!(
        client.server_name(SERVER_NAME).get("/livez").await.code(),
        200
    );
}

#[tokio::test]
async fn verdicts_are_kept_and_without_the_apiserver_nobody_new_gets_in() {
    let (mut single, secure) = world().await;
    single.double.allow("bob", "/metrics");
    let client = secure.client(&single.ground);
    let (bob, alice) = (client.token("tok-bob"), client.cert("alice"));
    let before = Instant::now();
    assert_eq!(bob.get("/metrics").await.code(), 200);
    assert_eq!(alice.get("/metrics").await.code(), 403);
    assert_eq!(single.double.count(TOKEN_REVIEWS), 1);
    assert_eq!(single.double.count(ACCESS_REVIEWS), 2);
    for request in single.double.requests() {
        if [TOKEN_REVIEWS, ACCESS_REVIEWS].contains(&request.path.as_str()) {
            assert_eq!(request.user, "system:kube-interop-proxy");
            assert!(request.groups.contains(&"system:masters".to_owned()));
        }
    }
    single.double.stop().await;
    // As long as the verdict is kept, ten seconds from the review on, it counts.
    let outcomes = async |client: &Client| {
        let answer = client.fresh().get("/metrics").await;
        (answer.code(), answer.text())
    };
    let stranger = outcomes(&client.token("tok-admin")).await;
    assert_eq!(stranger.0, 503, "{}", stranger.1);
    assert!(
        stranger.1.starts_with("the apiserver does not say"),
        "{}",
        stranger.1
    );
    assert_eq!(outcomes(&bob).await.0, 200, "who was allowed stays so");
    eventually("a no is not kept longer", LONG, async || {
        outcomes(&alice).await.0 == 503
    })
    .await;
    assert!(before.elapsed() >= Duration::from_secs(10));
    assert_eq!(outcomes(&bob).await.0, 200, "after that, too");
    assert_eq!(client.get("/livez").await.code(), 200);

    // Before its RBAC is there it would say no to everybody.
    single.double.start_again().await;
    eventually("it is there, and not asked", LONG, async || {
        let (code, text) = outcomes(&alice).await;
        assert_eq!(code, 503, "{text}");
        text.ends_with(": it is not initialized\n")
    })
    .await;
    single.double.set_ready(true);
    eventually("it is asked again", LONG, async || {
        outcomes(&alice).await.0 == 403
    })
    .await;
}

#[tokio::test]
async fn an_apiserver_that_never_answers_costs_a_scrape_five_seconds() {
    let (single, secure) = world().await;
    let client = secure.client(&single.ground).timeout(LONG);
    single.double.allow("bob", "/metrics");
    for reviews in [TOKEN_REVIEWS, ACCESS_REVIEWS] {
        single.double.set_fault(reviews, Some(Fault::Hang));
        let before = single.double.count(reviews);
        let mut scrapes = JoinSet::new();
        for _ in 0..20 {
            let bob = client.token("tok-bob");
            scrapes.spawn(async move { bob.get("/metrics").await });
        }
        while let Some(answer) = scrapes.join_next().await {
            let answer = answer.unwrap();
            assert_eq!(answer.code(), 503);
            let said = "the apiserver does not say who may get /metrics: no answer within 5s\n";
            assert_eq!(answer.text(), said);
        }
        // Those who come while it is being asked wait for its answer; slow ones come later.
        let asked = single.double.count(reviews) - before;
        assert!((1..20).contains(&asked), "{asked}");
        single.double.set_fault(reviews, None);
    }
    assert_eq!(client.token("tok-bob").get("/metrics").await.code(), 200);
    let log = single.proxy.log_tail();
    assert!(log.contains("does not say who may read metrics"), "{log}");
    assert!(!log.contains("tok-bob"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn crowds_and_the_silent_keep_nobody_out() {
    let (single, secure) = world().await;
    single.double.allow("bob", "/metrics");
    let bob = secure.client(&single.ground).token("tok-bob").timeout(LONG);
    // Connections that say nothing, and half a request.
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(secure.socket()).await.unwrap());
    }
    let mut slow = bob.connect_raw(&["http/1.1"]).await.unwrap();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthoriz")
        .await
        .unwrap();
    assert_eq!(bob.fresh().get("/metrics").await.code(), 200);

    // Tokens that are all different, and many scrapes of one. There is room for all of them at once: a starved machine
    // would not finish a handshake before it has to make room for another.
    let mut crowd = JoinSet::new();
    for number in 0..60 {
        let (token, expected) = match number % 3 {
            0 => ("tok-bob".to_owned(), 200),
            _ => (format!("invented-{number}"), 401),
        };
        crowd.spawn(scrape_until(bob.token(&token), expected));
    }
    while let Some(done) = crowd.join_next().await {
        done.unwrap();
    }
    assert!(single.proxy.is_ready().await);
    let log = single.proxy.log_tail();
    assert!(
        !log.contains("invented-") && !log.contains("tok-bob"),
        "{log}"
    );
    drop((silent, slow));
}

/// One in a crowd may be closed for another; it comes back, as Prometheus does.
async fn scrape_until(client: Client, expected: u16) {
    let scraped = async {
        while !matches!(client.fresh().try_get("/metrics").await, Ok(answer) if answer.code() == expected)
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LONGER, scraped)
        .await
        .expect("an answer");
}

#[tokio::test]
async fn a_broken_header_with_a_token_is_not_logged() {
    let (single, secure) = world().await;
    let client = secure.client(&single.ground);
    for bytes in [
        &b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer s3cret-token\r\n\x01: y\r\n\r\n"[..],
        b"GET /metrics s3cret-token HTTP/9\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer s3cret-token\r\nContent-Length: 9\r\n\r\nx",
    ] {
        let mut tls = client.connect_raw(&["http/1.1"]).await.unwrap();
        tls.write_all(bytes).await.unwrap();
        tls.shutdown().await.unwrap();
        let mut rest = Vec::new();
        let read = tokio::io::AsyncReadExt::read_to_end(&mut tls, &mut rest);
        // An error is as good as an end.
        let _ = tokio::time::timeout(LONG, read).await.expect("an end");
    }
    assert_eq!(client.get("/livez").await.code(), 200);
    let log = single.proxy.log_tail();
    assert!(!log.contains("s3cret"), "{log}");
}
