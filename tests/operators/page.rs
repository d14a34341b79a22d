//! The status page, in a real browser.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use testkit::chromium::Chromium;
use testkit::cluster::{Cluster, Ground, HPAS, LONG, Single};
use testkit::double::v1_20;
use testkit::proxy::{Proxy, ProxyOptions, admin_get};
use testkit::registry::Registry;
use testkit::wait::{eventually, holds};

mod big;

/// Where to look at what was seen.
fn screenshot(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page");
    std::fs::create_dir_all(&dir).unwrap();
    dir.join(format!("{name}.png"))
}

/// A browser that has the status page of a proxy open.
async fn browse(ground: &Ground, proxy: &Proxy) -> Chromium {
    let mut chromium = Chromium::start(ground.dir.path()).await;
    chromium.look(1280, "light").await;
    chromium
        .open(&format!("http://{}/statusz", proxy.admin()))
        .await;
    chromium
}

async fn says(chromium: &mut Chromium, selector: &str, words: &[&str]) {
    let what = format!("{selector} says {words:?}");
    eventually(&what, LONG, async || {
        let text = chromium.text(selector).await;
        match words.iter().all(|word| text.contains(word)) {
            true => Ok(()),
            false => Err(text),
        }
    })
    .await;
}

/// Waits until the page has asked for the status again, twice.
async fn refreshed(chromium: &mut Chromium) {
    let mut asked = 0;
    eventually("the page asks again", LONG, async || {
        asked += chromium.requests().await.len();
        asked >= 2
    })
    .await;
}

#[tokio::test]
async fn the_page_shows_what_is_so_and_follows_it_without_being_loaded_again() {
    // Long enough for a request to find B dead before its live key expires.
    let patient = |options: ProxyOptions| options.set("peer.leaseTTL", "10s");
    let mut cluster = Cluster::with(v1_20(), patient).await;
    let admin = cluster.client().cert("admin");
    let mut chromium = browse(&cluster.ground, &cluster.proxy_a).await;
    chromium.evaluate("window.loaded = 1").await;
    says(&mut chromium, "#state", &["Ready"]).await;
    says(&mut chromium, "#name", &["a"]).await;
    says(
        &mut chromium,
        "#peers",
        &[
            "b",
            &cluster.proxy_b.addr().to_string(),
            "target",
            "v1.20.2",
        ],
    )
    .await;
    says(
        &mut chromium,
        "#differences-note",
        &["1 group, not listed alike by 2 servers"],
    )
    .await;
    says(
        &mut chromium,
        "#differences tbody tr",
        &["autoscaling", "none", "all"],
    )
    .await;
    chromium.screenshot(&screenshot("light")).await;
    chromium.look(1280, "dark").await;
    chromium.screenshot(&screenshot("dark")).await;

    cluster.proxy_b.kill();
    admin.get(HPAS).await;
    says(&mut chromium, "#peers", &["absent"]).await;
    says(
        &mut chromium,
        "#differences tbody tr",
        &["autoscaling", "all"],
    )
    .await;
    says(&mut chromium, "#differences thead", &["absent"]).await;
    assert_eq!(chromium.complaints().await, [] as [Value; 0]);
    let page = chromium
        .evaluate("document.body.innerText")
        .await
        .to_string();
    assert!(!page.contains("secret"), "{page}");

    let asked = chromium.requests().await;
    let admin_port = format!("http://{}/statusz", cluster.proxy_a.admin());
    assert!(asked.len() > 2, "{asked:?}");
    for url in &asked {
        assert!(url.starts_with(&admin_port) || url == "data:,", "{asked:?}");
    }

    cluster.proxy_a.kill();
    says(&mut chromium, "#state", &["No answer", "is of"]).await;
    says(&mut chromium, "#refreshed", &["Stale"]).await;
    // What was known is still there.
    says(&mut chromium, "#peers", &["absent"]).await;
    chromium.screenshot(&screenshot("stale")).await;
    cluster.proxy_a.start_again().await;
    says(&mut chromium, "#refreshed", &["Live"]).await;
    assert_eq!(chromium.evaluate("window.loaded").await, 1);

    let hidden = "Object.defineProperty(document, 'hidden', { get: () => true })";
    chromium.evaluate(hidden).await;
    eventually("no question is open", LONG, async || {
        chromium.evaluate("asking").await == false
    })
    .await;
    chromium.requests().await;
    holds(
        "nothing is asked for in a hidden tab",
        Duration::from_secs(3),
        async || chromium.requests().await.is_empty(),
    )
    .await;
}

#[tokio::test]
async fn a_server_that_is_not_ready_says_why_and_what_is_not_known_is_no_difference() {
    let cluster = Cluster::new().await;
    let mut chromium = browse(&cluster.ground, &cluster.proxy_a).await;
    says(&mut chromium, "#state", &["Ready"]).await;
    cluster.a.set_ready(false);
    says(
        &mut chromium,
        "#state",
        &[
            "Not ready: ",
            "the last /readyz of the apiserver was not 200",
        ],
    )
    .await;
    says(
        &mut chromium,
        "#readiness",
        &["failed apiserver-ready", "ok etcd-synced"],
    )
    .await;
    let title = chromium.evaluate("document.title").await;
    assert_eq!(title, "Not ready – a – kube-interop-proxy");
    assert_eq!(chromium.complaints().await, [] as [Value; 0]);
}

#[tokio::test]
async fn what_strangers_write_is_shown_as_text() {
    let single = Single::new().await;
    let registry = Registry::new(single.ground.etcd.client().await, "/registry");
    let image = "<img src=x onerror=document.title='taken'>";
    let script = "<script>document.title='taken'<\\script>";
    let record = json!({
        "endpoint": "127.0.0.1:20001",
        "binaryVersion": format!("</script>{image}"),
        "resources": {format!("{image}/v1"): ["</script><script>", "__proto__"], "__proto__/v1": ["constructor"]},
    });
    for id in [image, script, "__proto__", "\" onmouseover=\"x"] {
        let revision = registry
            .put(&registry.server(id), &record.to_string())
            .await;
        registry.put_live(id, 20001, true, revision).await;
    }
    registry
        .put(&registry.server("<b>broken"), "</script><b>not JSON")
        .await;
    eventually("the proxy knows all of them", LONG, async || {
        let status = single.proxy.statusz().await;
        let undecodable = status["facts"]["undecodable"]
            .as_array()
            .map_or(0, Vec::len);
        match (status["peers"].as_array().map_or(0, Vec::len), undecodable) {
            (4, 1) => Ok(()),
            _ => Err(status.to_string()),
        }
    })
    .await;
    let mut chromium = browse(&single.ground, &single.proxy).await;
    says(
        &mut chromium,
        "#peers",
        &[
            image,
            script,
            "__proto__",
            "\" onmouseover=\"x",
            "</script>",
        ],
    )
    .await;
    says(&mut chromium, "#differences", &[image, "__proto__"]).await;
    says(&mut chromium, "#etcd", &["<b>broken"]).await;
    for button in [
        "button[data-group^='<img']",
        "button[data-group='__proto__']",
    ] {
        let click = format!("document.querySelector({}).click()", json!(button));
        chromium.evaluate(&click).await;
    }
    says(
        &mut chromium,
        "#differences",
        &["</script><script>", "constructor"],
    )
    .await;
    refreshed(&mut chromium).await;
    let seen = "['img', 'b', 'script', '[onerror]', '[onmouseover]', '[style]'] \
        .map((selector) => document.querySelectorAll(selector).length)";
    assert_eq!(chromium.evaluate(seen).await, json!([0, 0, 2, 0, 0, 0]));
    let title = chromium.evaluate("document.title").await;
    assert_eq!(title, "Ready – a – kube-interop-proxy");
    assert_eq!(chromium.complaints().await, [] as [Value; 0]);
    chromium.screenshot(&screenshot("hostile")).await;
}

/// The whole answer to a request that closes its connection.
async fn bytes(admin: SocketAddr, request: &str) -> String {
    let mut tcp = TcpStream::connect(admin).await.unwrap();
    tcp.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(LONG, tcp.read_to_end(&mut answer)).await;
    read.expect("an end").unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn programs_get_json_and_pages_of_strangers_get_nothing() {
    let single = Single::new().await;
    let admin = single.proxy.admin();
    let get = async |path: &str, accept: &str| admin_get(admin, path, accept).await.unwrap();
    for (path, accept, expected) in [
        ("/statusz", "*/*", "text/html; charset=utf-8"),
        (
            "/statusz",
            "text/html,*/*;q=0.8",
            "text/html; charset=utf-8",
        ),
        ("/statusz", "application/json", "application/json"),
        ("/statusz?format=json", "text/html", "application/json"),
        (
            "/statusz?format=html",
            "application/json",
            "text/html; charset=utf-8",
        ),
    ] {
        let answer = get(path, accept).await;
        assert_eq!(answer.code(), 200);
        assert_eq!(answer.header("content-type"), expected, "{path} {accept}");
        assert_eq!(answer.header("x-frame-options"), "DENY");
        let policy = answer.header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; script-src 'sha256-"),
            "{policy}"
        );
    }
    for (host, code) in [("rebound.example", "421"), ("localhost:6450", "200")] {
        let request = format!("GET /statusz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = bytes(admin, &request).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {code} ")),
            "{host}: {answer}"
        );
    }
    // Others may be asked under any name.
    let request = "GET /readyz HTTP/1.1\r\nHost: rebound.example\r\nConnection: close\r\n\r\n";
    let answer = bytes(admin, request).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
