//! Tests of the apiserver double.

use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use testkit::client::Client;
use testkit::double::{Double, DoubleOptions, Fault, Preset, ServedResource, v1_20, v1_36};
use testkit::kubectl::Kubectl;
use testkit::pki::Pki;
use testkit::wait::eventually;

const SOON: Duration = Duration::from_secs(5);
const PODS: &str = "/api/v1/namespaces/default/pods";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

struct Fixture {
    dir: TempDir,
    pki: Pki,
    double: Double,
}

impl Fixture {
    async fn new(preset: Preset) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::new(&dir.path().join("pki"));
        let double = Double::start(DoubleOptions::new(pki.dir(), preset)).await;
        Self { dir, pki, double }
    }

    fn client(&self) -> Client {
        Client::new(self.double.addr(), &self.pki)
    }

    fn admin(&self) -> Client {
        self.client().cert("admin")
    }
}

#[tokio::test]
async fn authenticates_in_the_order_of_a_real_apiserver() {
    let fixture = Fixture::new(v1_36()).await;
    let zed = |client: Client| {
        client
            .header("X-Remote-User", "zed")
            .header("X-Remote-Group", "g")
    };
    let client = || fixture.client();
    for (what, client, user) in [
        ("nobody", client(), "system:anonymous"),
        ("forged headers", zed(client()), "system:anonymous"),
        (
            "front proxy",
            zed(client().cert("front-proxy-client")),
            "zed",
        ),
        (
            "front proxy, no user",
            client().cert("front-proxy-client"),
            "401",
        ),
        (
            "front proxy, token",
            client().cert("front-proxy-client").token("tok-bob"),
            "bob",
        ),
        ("other front proxy", zed(client().cert("not-a-peer")), "401"),
        ("user", client().cert("alice"), "alice"),
        (
            "user and token",
            client().cert("alice").token("tok-bob"),
            "alice",
        ),
        (
            "user with forged headers",
            zed(client().cert("alice")),
            "alice",
        ),
        ("token", client().token("tok-bob"), "bob"),
        ("wrong token", client().token("nonsense"), "401"),
        (
            "empty token",
            client().header("authorization", "Bearer "),
            "system:anonymous",
        ),
        ("unknown CA", client().cert("rogue"), "401"),
        (
            "unknown CA, token",
            client().cert("rogue").token("tok-bob"),
            "bob",
        ),
        ("expired", client().cert("expired"), "401"),
    ] {
        let answer = client.get("/_double/echo").await;
        let found = match answer.code() {
            200 => answer.json()["user"]["name"].as_str().unwrap().to_owned(),
            code => code.to_string(),
        };
        assert_eq!(found, user, "{what}");
    }
    let alice = client().cert("alice").get("/_double/echo").await.json();
    assert_eq!(
        alice["user"]["groups"],
        json!(["devs", "qa", "system:authenticated"])
    );
    let mallory = client().cert("blank").get("/").await;
    assert_eq!(mallory.code(), 403);
    assert!(
        mallory
            .text()
            .contains("forbidden: User \\\"mallory\\\" cannot get path \\\"/\\\"")
    );
}

#[tokio::test]
async fn unknown_things_are_404_in_the_forms_of_a_real_apiserver() {
    let fixture = Fixture::new(v1_20()).await;
    let admin = fixture.admin();
    let unknown_group = admin.get("/apis/nope.example.com/v1/things").await;
    assert_eq!(unknown_group.text(), "404 page not found\n");
    assert_eq!(
        unknown_group.header("content-type"),
        "text/plain; charset=utf-8"
    );
    for path in [
        "/apis/apps/v9/x",
        "/apis/apps/v1/nope",
        "/api/v1/namespaces/default/pods/x/nope",
    ] {
        let status = admin.get(path).await;
        assert_eq!(status.code(), 404, "{path}");
        assert_eq!(status.json()["details"], json!({}), "{path}");
    }
    let missing = admin
        .get("/apis/apps/v1/namespaces/default/deployments/x")
        .await
        .json();
    assert_eq!(
        missing["details"],
        json!({"name": "x", "group": "apps", "kind": "deployments"})
    );
    assert_eq!(missing["message"], "deployments.apps \"x\" not found");

    // Byte for byte what v1.20.2 sends.
    let protobuf = admin.header("accept", "application/vnd.kubernetes.protobuf");
    let status = protobuf.get("/apis/apps/v1/nope").await;
    let expected = [
        b"k8s\0\n\x0c\n\x02v1\x12\x06Status\x12\\\n\x06\n\0\x12\0\x1a\0\x12\x07Failure".as_slice(),
        b"\x1a\x30the server could not find the requested resource\"\x08NotFound",
        b"*\n\n\0\x12\0\x1a\0\x28\x00\x32\x00\x30\x94\x03\x1a\0\"\0",
    ]
    .concat();
    assert_eq!(status.body, expected);
}

#[tokio::test]
async fn discovery_is_aggregated_where_the_version_has_it() {
    let old = Fixture::new(v1_20()).await;
    let only = old.admin().header("accept", AGGREGATED);
    assert_eq!(only.get("/apis").await.code(), 406);
    let either = only.header("accept", "application/json");
    assert_eq!(either.get("/apis").await.json()["kind"], "APIGroupList");

    let new = Fixture::new(v1_36()).await;
    let answer = new.admin().header("accept", AGGREGATED).get("/apis").await;
    assert_eq!(answer.json()["kind"], "APIGroupDiscoveryList");
    assert_eq!(
        (answer.header("content-type"), answer.header("vary")),
        (AGGREGATED, "Accept")
    );
    let conditional = new
        .admin()
        .header("accept", &format!("{AGGREGATED};profile=nopeer"))
        .header("if-none-match", answer.header("etag"));
    assert_eq!(conditional.get("/apis").await.code(), 304);
    new.double.add_resource(ServedResource::custom(
        "example.com",
        "v1",
        "widgets",
        "Widget",
    ));
    assert_eq!(conditional.get("/apis").await.code(), 200);
    assert_eq!(new.admin().get("/apis/example.com/v1").await.code(), 200);
}

#[tokio::test]
async fn a_hidden_group_is_missing_from_the_list_and_nowhere_else() {
    let fixture = Fixture::new(v1_20()).await;
    fixture.double.hide_from_group_list("autoscaling");
    let admin = fixture.admin();
    assert!(!admin.get("/apis").await.text().contains("\"autoscaling\""));
    assert!(admin.get("/").await.text().contains("/apis/autoscaling/v1"));
    assert_eq!(admin.get("/apis/autoscaling/v1").await.code(), 200);
    fixture.double.remove_group("autoscaling");
    assert_eq!(admin.get("/apis/autoscaling/v1").await.code(), 404);
}

#[tokio::test]
async fn a_watch_has_its_header_at_once_and_every_change_at_once() {
    let fixture = Fixture::new(v1_20()).await;
    for admin in [fixture.admin().http1(), fixture.admin().http2()] {
        let from = fixture.double.store().revision();
        let query = format!("watch=true&allowWatchBookmarks=true&resourceVersion={from}");
        let mut watch = admin.open(&format!("{CONFIG_MAPS}?{query}")).await;
        assert_eq!(watch.status, 200);
        let one = format!("{CONFIG_MAPS}/one");
        let created = admin
            .request("POST", CONFIG_MAPS, r#"{"metadata":{"name":"one"}}"#)
            .await;
        assert_eq!(created.code(), 201);
        let patched = admin.request("PATCH", &one, r#"{"data":{"a":"b"}}"#).await;
        assert_eq!(patched.json()["data"]["a"], "b");
        assert_eq!(admin.request("DELETE", &one, "").await.code(), 200);
        for kind in ["ADDED", "MODIFIED", "DELETED"] {
            assert_eq!(watch.next_event(SOON).await.unwrap().unwrap()["type"], kind);
        }
        let revision = fixture.double.store().tick().to_string();
        fixture.double.bookmark_now();
        eventually("a bookmark at the newest revision", SOON, async || {
            let event = watch.next_event(SOON).await.unwrap().unwrap();
            fixture.double.bookmark_now();
            event["object"]["metadata"]["resourceVersion"] == json!(revision)
        })
        .await;
    }
}

#[tokio::test]
async fn a_restart_cuts_connections_and_forgets_the_watch_history() {
    let mut fixture = Fixture::new(v1_20()).await;
    let (admin, nobody) = (fixture.admin(), fixture.client());
    let from = fixture.double.store().revision();
    let mut watch = admin
        .open(&format!("{PODS}?watch=true&resourceVersion={from}"))
        .await;
    assert_eq!(nobody.get("/readyz").await.code(), 200);
    fixture.double.store().tick();

    fixture.double.restart().await;
    assert!(watch.next_chunk(SOON).await.is_err());
    assert_eq!(nobody.get("/readyz").await.code(), 403);
    fixture.double.set_ready(false);
    assert_eq!(nobody.get("/readyz").await.code(), 500);
    fixture.double.set_ready(true);
    assert_eq!(nobody.get("/readyz").await.code(), 200);
    let mut watch = admin
        .open(&format!("{PODS}?watch=true&resourceVersion={from}"))
        .await;
    let event = watch.next_event(SOON).await.unwrap().unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["code"]),
        (&json!("ERROR"), &json!(410))
    );

    fixture.double.stop().await;
    assert!(nobody.try_get("/readyz").await.is_err());
    assert_eq!(fixture.double.open_connections(), 0);
}

#[tokio::test]
async fn special_paths_do_what_their_table_says() {
    let fixture = Fixture::new(v1_20()).await;
    for client in [fixture.client().http1(), fixture.client().http2()] {
        let echo = client
            .header("X-Y", "z")
            .request("PUT", "/_double/echo?a=%2F", "12345")
            .await;
        assert_eq!(echo.json()["path"], "/_double/echo?a=%2F");
        assert_eq!(echo.json()["bodyLength"], 5);
        assert_eq!(
            client.get("/_double/big?bytes=200000").await.body.len(),
            200_000
        );
        let upload = client
            .request("POST", "/_double/upload", vec![b'x'; 300_000])
            .await;
        assert_eq!(upload.json()["bytes"], 300_000);
        assert!(client.try_get("/_double/reset").await.is_err());
        assert!(client.try_get("/_double/reset?after=10").await.is_err());
        let told = client.get("/_double/status?code=429&retryAfter=3").await;
        assert_eq!((told.code(), told.header("retry-after")), (429, "3"));
        let mut ticks = client.open("/_double/ticks?ms=1").await;
        assert_eq!(ticks.next_line(SOON).await.unwrap().unwrap(), "tick 0");
        let hang = client
            .timeout(Duration::from_millis(100))
            .try_get("/_double/hang")
            .await;
        assert!(hang.is_err());
    }
    let upgrade = fixture.admin().http1();
    let upgrade = upgrade
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1");
    let upgrade = upgrade
        .open("/api/v1/namespaces/default/pods/x/exec?command=sh")
        .await;
    assert_eq!(
        (upgrade.status.as_u16(), upgrade.header("upgrade")),
        (101, "SPDY/3.1")
    );
    let mut stream = upgrade.upgrade().await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut back = [0; 5];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"hello");
}

#[tokio::test]
async fn faults_and_records_are_there_for_tests_to_use() {
    let fixture = Fixture::new(v1_20()).await;
    let alice = fixture.client().cert("alice").http2();
    assert_eq!(alice.get(PODS).await.code(), 403);
    fixture.double.allow("devs", PODS);
    assert_eq!(alice.get(PODS).await.code(), 200);
    fixture
        .double
        .set_fault(PODS, Some(Fault::Status(503, Some(1))));
    assert_eq!(alice.get(PODS).await.header("retry-after"), "1");
    fixture.double.set_fault(PODS, None);
    fixture.double.drop_connections();
    eventually("an answer over a new connection", SOON, async || {
        alice.try_get(PODS).await
    })
    .await;

    let requests = fixture.double.take_requests();
    let first = requests.first().unwrap();
    assert_eq!((first.path.as_str(), first.user.as_str()), (PODS, "alice"));
    assert_eq!(first.peer_cert.as_deref(), Some("alice"));
    assert_eq!(first.protocol, "HTTP/2.0");
    assert!(requests.last().unwrap().connection_id > first.connection_id);
    assert_eq!(fixture.double.count("/"), 0);
}

#[tokio::test]
async fn kubectl_is_content_with_both_presets() {
    for preset in [v1_20(), v1_36()] {
        let fixture = Fixture::new(preset).await;
        let addr = fixture.double.addr();
        let kubectl =
            Kubectl::new(addr, &fixture.pki, fixture.dir.path()).cert(&fixture.pki, "admin");
        assert!(
            kubectl
                .run(&["get", "--raw", "/apis/apps/v1"])
                .await
                .contains("deployments/scale")
        );
        assert!(
            kubectl
                .run(&["api-resources"])
                .await
                .contains("horizontalpodautoscalers")
        );
        let object = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}"#;
        let created = kubectl
            .output_with_input(&["create", "-f", "-"], object)
            .await;
        assert!(created.success, "{}", created.stderr);
        assert!(
            kubectl
                .run(&["get", "configmaps", "-A"])
                .await
                .contains("one")
        );
        kubectl.run(&["get", "pods", "-A"]).await;
        kubectl.run(&["delete", "configmap", "one"]).await;
        let gone = kubectl.output(&["get", "configmap", "one"]).await;
        assert!(
            gone.stderr.contains("configmaps \"one\" not found"),
            "{}",
            gone.stderr
        );
    }
}
