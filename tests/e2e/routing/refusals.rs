//! The proxy's own answers: a `Status` in the format that the client accepts, like kube-apiserver's.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use testkit::cluster::{Ground, LONG, Single, assert_refused, decode_status};
use testkit::double::{Double, DoubleOptions, Phase, v1_20};
use testkit::kcm::ControllerManager;
use testkit::kube::KubeApiServer;
use testkit::kubectl::Kubectl;
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const PODS: &str = "/api/v1/pods";

/// An apiserver that is not initialized, which everybody is told.
async fn starting() -> (Ground, Double, Proxy) {
    let ground = Ground::new().await;
    let options = DoubleOptions::new(ground.pki.dir(), v1_20()).phase(Phase::NotReady);
    let double = Double::start(options).await;
    let options = ground
        .proxy("a", double.addr())
        .set("ifReady.enforce", "Always")
        .set("ifReady.retryAfterSeconds", "1");
    let proxy = Proxy::start(options.until(Until::Live)).await;
    (ground, double, proxy)
}

#[tokio::test]
async fn who_wants_protobuf_gets_it() {
    let (ground, _double, proxy) = starting().await;
    let admin = proxy.client(&ground.pki).cert("admin");
    for client in [admin.http1(), admin.http2()] {
        for accept in [
            PROTOBUF.to_owned(),
            format!("{PROTOBUF},application/json"),
            format!("{PROTOBUF};stream=watch,application/json;stream=watch"),
        ] {
            let client = client.header("accept", &accept);
            let answer = client.get(PODS).await;
            let status = decode_status(&answer);
            assert_eq!(answer.code(), 503);
            assert_eq!(
                (status.code(), status.status(), status.reason()),
                (503, "Failure", "ServiceUnavailable")
            );
            assert!(status.message().contains("not initialized"));
            let seconds = status.details.unwrap().retry_after_seconds();
            assert_eq!(answer.header("retry-after"), seconds.to_string());

            let head = client.request("HEAD", PODS, "").await;
            assert_eq!(head.code(), 503);
            for name in ["content-type", "content-length", "retry-after"] {
                assert_eq!(head.header(name), answer.header(name), "{name}");
            }
            assert!(head.body.is_empty());
            // The connection is as good as before.
            assert_eq!(client.get(PODS).await.body, answer.body);
        }
        for accept in ["application/json", "*/*", "text/html", "application/yaml"] {
            let answer = client.header("accept", accept).get(PODS).await;
            assert_refused(&answer, "not initialized");
            assert_eq!(answer.header("content-type"), "application/json");
        }
    }
}

#[tokio::test]
async fn clients_of_kubernetes_understand_both_forms() {
    let (ground, mut double, proxy) = starting().await;
    let dir = ground.dir.path();
    double.set_ready(true);
    eventually("initialized", LONG, async || {
        proxy.statusz().await["server"]["initialized"] == true
    })
    .await;
    let controllers = ["endpoint"];
    let manager = ControllerManager::start(dir, &ground.pki, proxy.addr(), &controllers, &[]).await;
    eventually("it watches", LONG, async || {
        double.count("/api/v1/services") > 1
    })
    .await;
    double.start_again().await;

    let message = "the apiserver is starting and not initialized yet";
    // Both after the ten retries that they were asked for. JSON:
    let kubectl = Kubectl::new(proxy.addr(), &ground.pki, dir).cert(&ground.pki, "admin");
    let output = kubectl.output(&["get", "--raw", PODS]).await;
    assert!(!output.success);
    assert!(output.stderr.contains(message), "{}", output.stderr);
    // Protobuf:
    eventually("its log has what it was told", LONG * 2, async || {
        let log = manager.log_tail();
        let told = log.contains(&format!("*v1.Service: {message}"));
        told.then_some(()).ok_or(log)
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_read_as_a_request_is_told_so() {
    let world = Single::new().await;
    let many = format!(
        "GET /version HTTP/1.1\r\nHost: x\r\n{}a b: c\r\n\r\n",
        "a: b\r\n".repeat(300)
    );
    for request in [
        "nonsense\r\n\r\n",
        "GET /version HTTP/1.1\r\nHost x\r\n\r\n",
        "GET /version HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
        &many,
    ] {
        let mut client = world.client().connect_raw(&["http/1.1"]).await.unwrap();
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // A close without close_notify is an end too.
        let _ = tokio::time::timeout(LONG, client.read_to_end(&mut answer))
            .await
            .expect("an end");
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect(&answer);
        assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
        let head = head.to_ascii_lowercase();
        assert!(head.contains("connection: close"), "{head}");
        assert!(head.contains("content-type: application/json"), "{head}");
        let status: serde_json::Value = serde_json::from_str(body).expect(body);
        assert_eq!(
            (&status["kind"], &status["code"], &status["reason"]),
            (&"Status".into(), &400.into(), &"BadRequest".into())
        );
    }
    let reason = [("reason", "unreadable")];
    let counted = world
        .proxy
        .metric("kube_interop_proxy_refusals_total", &reason)
        .await;
    assert_eq!(counted, 4.0);
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed_without_a_word() {
    let world = Single::new().await;
    let mut client = world.client().connect_raw(&["http/1.1"]).await.unwrap();
    client.write_all(b"GET /ver").await.unwrap();
    client.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(LONG, client.read_to_end(&mut answer))
        .await
        .expect("an end");
    assert_eq!(String::from_utf8_lossy(&answer), "");
}

/// The same refusal, by the proxy and by kube-apiserver itself: a certificate that proves nothing.
pub async fn form_and_bytes_are_those_of_a_real_kube_apiserver(
    server: &KubeApiServer,
    proxy: &Proxy,
    ground: &Ground,
) {
    let through = proxy.client(&ground.pki).cert("rogue");
    let direct = testkit::client::Client::new(server.addr(), &ground.pki).cert("rogue");
    let with_table = format!("{PROTOBUF};as=Table;v=v1;g=meta.k8s.io");
    for accept in [
        "application/json",
        PROTOBUF,
        "*/*",
        "application/*",
        "text/html, */*;q=0.1",
        &format!("{PROTOBUF},application/json"),
        &format!("application/json;q=0.5,{PROTOBUF};q=0.7"),
        &format!("{PROTOBUF};q=0.5,*/*"),
        &format!("*/*,{PROTOBUF};q=0.5"),
        &format!("{PROTOBUF};q=0"),
        &format!("{PROTOBUF};stream=watch"),
        &format!("{PROTOBUF};type=watch"),
        &format!("{PROTOBUF};stream=other,application/json"),
        &format!("{with_table},application/json"),
        &format!("application/json;as=Table;v=v1;g=meta.k8s.io,{PROTOBUF}"),
    ] {
        for path in [PODS, "/api/v1/pods?watch=true"] {
            let told = direct.header("accept", accept).get(path).await;
            let ours = through.header("accept", accept).get(path).await;
            assert_eq!((told.code(), ours.code()), (401, 401), "{accept}");
            assert_eq!(
                (ours.header("content-type"), &ours.body),
                (told.header("content-type"), &told.body),
                "{accept}"
            );
        }
    }
    // In no form at all: indented there, but JSON.
    for accept in ["text/html", &with_table, "application/json;sv=v1"] {
        let told = direct.header("accept", accept).get(PODS).await;
        let ours = through.header("accept", accept).get(PODS).await;
        assert_eq!(ours.header("content-type"), told.header("content-type"));
        assert_eq!(ours.json(), told.json(), "{accept}");
    }
}
