//! Headers in both directions, over HTTP/1.1 and HTTP/2 on both sides.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use testkit::client::{Client, Response};
use testkit::cluster::{LONG, Single, of_each_version};
use testkit::double::{Fault, ScriptedAnswer};

const PATH: &str = "/told";

fn tell(world: &Single, scripted: ScriptedAnswer) {
    world
        .double
        .set_fault(PATH, Some(Fault::Answer(Box::new(scripted))));
}

fn values<'a>(answer: &'a Response, name: &str) -> Vec<&'a str> {
    let values = answer.headers.get_all(name).iter();
    values.map(|value| value.to_str().unwrap()).collect()
}

fn echoed(echo: &Value, name: &str) -> Vec<Value> {
    let pairs = echo["headers"].as_array().unwrap().iter();
    pairs
        .filter(|pair| pair[0] == name)
        .map(|pair| pair[1].clone())
        .collect()
}

/// Writes a request as it stands; what came until the connection was closed.
async fn raw(client: &Client, request: &str) -> String {
    let mut tls = client
        .cert("admin")
        .connect_raw(&["http/1.1"])
        .await
        .unwrap();
    tls.write_all(request.as_bytes()).await.unwrap();
    tls.flush().await.unwrap();
    let mut answer = Vec::new();
    // A close without close_notify is an end too.
    let _ = tokio::time::timeout(LONG, tls.read_to_end(&mut answer))
        .await
        .expect("an end");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn repeated_headers_are_kept_apart_in_both_directions() {
    for world in of_each_version().await {
        let scripted = ScriptedAnswer::new(200)
            .header("warning", "299 - \"one, with a comma\"")
            .header("warning", "299 - \"two\"")
            .header("set-cookie", "a=b; Path=/")
            .header("set-cookie", "c=d")
            .header("x-empty", "")
            .body("ok");
        tell(&world, scripted);
        for client in world.admins() {
            let answer = client.get(PATH).await;
            assert_eq!(
                values(&answer, "warning"),
                ["299 - \"one, with a comma\"", "299 - \"two\""]
            );
            assert_eq!(values(&answer, "set-cookie"), ["a=b; Path=/", "c=d"]);
            assert_eq!(values(&answer, "x-empty"), [""]);

            let twice = client
                .header("x-stream-protocol-version", "v4.channel.k8s.io")
                .header("x-stream-protocol-version", "v3.channel.k8s.io")
                .header("x-twice", "a, b")
                .header("x-twice", "")
                .header("x-twice", "a, b");
            let echo = twice.get("/_double/echo").await.json();
            assert_eq!(
                echoed(&echo, "x-stream-protocol-version"),
                ["v4.channel.k8s.io", "v3.channel.k8s.io"]
            );
            assert_eq!(echoed(&echo, "x-twice"), ["a, b", "", "a, b"]);
        }
    }
}

#[tokio::test]
async fn what_a_server_says_of_its_connection_ends_at_the_proxy() {
    let world = Single::speaking(&["http/1.1"]).await;
    let scripted = ScriptedAnswer::new(200)
        .header("connection", "X-Hop, x-other-hop")
        .header("connection", "keep-alive")
        .header("keep-alive", "timeout=5")
        .header("proxy-connection", "keep-alive")
        .header("x-hop", "one")
        .header("x-other-hop", "two")
        .header("x-kept", "three")
        .body("ok");
    tell(&world, scripted);
    for client in world.admins() {
        let answer = client.get(PATH).await;
        assert_eq!(values(&answer, "x-kept"), ["three"]);
        for name in ["x-hop", "x-other-hop", "keep-alive", "proxy-connection"] {
            assert_eq!(values(&answer, name), [""; 0], "{name}");
        }
        assert!(
            !answer.header("connection").contains("hop"),
            "{:?}",
            answer.headers
        );
    }
}

#[tokio::test]
async fn only_the_proxy_says_whether_its_apiserver_is_ready() {
    for world in of_each_version().await {
        let scripted = ScriptedAnswer::new(200)
            .header("x-kubernetes-ready", "of something else")
            .header("x-kubernetes-ready", "and again")
            .body("ok");
        tell(&world, scripted);
        for client in world.admins() {
            let answer = client.get(PATH).await;
            assert_eq!(values(&answer, "x-kubernetes-ready"), [""; 0]);
            let asking = client.header("x-kubernetes-if-ready", "1");
            let answer = asking.get(PATH).await;
            assert_eq!(values(&answer, "x-kubernetes-ready"), ["true"]);
        }
    }
}

#[tokio::test]
async fn switched_off_the_proxy_says_nothing_and_removes_nothing_about_readiness() {
    let world = Single::with(|options| options.set("ifReady.enabled", "false")).await;
    tell(
        &world,
        ScriptedAnswer::new(200)
            .header("x-kubernetes-ready", "true")
            .body("ok"),
    );
    for client in world.admins() {
        let answer = client.header("x-kubernetes-if-ready", "1").get(PATH).await;
        assert_eq!(values(&answer, "x-kubernetes-ready"), ["true"]);
    }
    let requests = world.double.requests();
    let received = requests.iter().filter(|request| request.path == PATH);
    assert!(received.clone().count() == 2);
    assert!(
        received
            .clone()
            .all(|request| request.header("x-kubernetes-if-ready") == "1")
    );
}

#[tokio::test]
async fn head_keeps_the_length_and_has_no_body() {
    for world in of_each_version().await {
        for code in [200, 304, 404] {
            let scripted = ScriptedAnswer::new(code)
                .header("content-length", "1234")
                .header("etag", "\"x\"");
            tell(&world, scripted);
            for client in world.admins() {
                for _ in 0..2 {
                    let answer = client.request("HEAD", PATH, "").await;
                    assert_eq!((answer.code(), answer.body.len()), (code, 0));
                    assert_eq!(values(&answer, "content-length"), ["1234"]);
                    assert_eq!(values(&answer, "etag"), ["\"x\""]);
                }
            }
        }
        let seen = world.double.requests();
        let heads = seen.iter().filter(|request| request.path == PATH);
        assert!(heads.clone().count() == 12);
        assert!(heads.clone().all(|request| request.method == "HEAD"));
    }
}

#[tokio::test]
async fn answers_without_a_body_leave_the_connection_usable() {
    for world in of_each_version().await {
        for code in [204, 304, 200] {
            tell(&world, ScriptedAnswer::new(code).header("x-kept", "yes"));
            let before = world.double.accepted_connections();
            for client in world.admins() {
                for _ in 0..3 {
                    let answer = client.get(PATH).await;
                    assert_eq!((answer.code(), answer.body.len()), (code, 0));
                    assert_eq!(values(&answer, "x-kept"), ["yes"]);
                }
            }
            let opened = world.double.accepted_connections() - before;
            assert!(opened <= 4, "{opened} connections for 6 requests");
        }
    }
}

#[tokio::test]
async fn health_checks_of_http_1_0_work_with_and_without_a_host() {
    for world in of_each_version().await {
        for host in ["", "Host: lb\r\n"] {
            for path in ["/livez", "/readyz", "/healthz"] {
                let request = format!("GET {path} HTTP/1.0\r\n{host}\r\n");
                let answer = raw(&world.client(), &request).await;
                assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
                assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
            }
        }
        // Without a length the end of the connection is the end of the body: HTTP/1.0 knows no chunks.
        let answer = raw(
            &world.client(),
            "GET /_double/big?bytes=200000 HTTP/1.0\r\n\r\n",
        )
        .await;
        let (header, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(!header.to_lowercase().contains("chunked"), "{header}");
        assert_eq!(body.len(), 200_000);
        assert!(body.bytes().all(|byte| byte == b'x'));
    }
}

#[tokio::test]
async fn a_whole_url_is_a_target_too() {
    for world in of_each_version().await {
        let request = "GET https://kubernetes.default.svc/_double/echo?a=b HTTP/1.1\r\nHost: kubernetes.default.svc\r\n\
                       Connection: close\r\n\r\n";
        let answer = raw(&world.client(), request).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(answer.contains("/_double/echo?a=b\""), "{answer}");
    }
}

#[tokio::test]
async fn targets_that_would_be_changed_on_the_way_are_refused() {
    for world in of_each_version().await {
        let pod = "/api/v1/namespaces/default/pods/a";
        for line in [
            format!("DELETE {pod}#b HTTP/1.1"),
            format!("DELETE {pod}?x#b HTTP/1.1"),
            "GET _double/echo HTTP/1.1".to_owned(),
            "GET x:y://z/_double/echo HTTP/1.1".to_owned(),
            "OPTIONS * HTTP/1.1".to_owned(),
        ] {
            let request = format!("{line}\r\nHost: x\r\nConnection: close\r\n\r\n");
            let answer = raw(&world.client(), &request).await;
            assert!(answer.starts_with("HTTP/1.1 400 "), "{line}: {answer}");
            // What pingora cannot read at all it refuses in its own words.
            assert!(answer.contains("\"BadRequest\""), "{line}: {answer}");
        }
        for path in [pod, "/_double", "*"] {
            assert_eq!(world.double.count(path), 0, "{path}");
        }
    }
}

#[tokio::test]
async fn every_legal_target_arrives_byte_for_byte() {
    for world in of_each_version().await {
        for client in world.admins() {
            let client = client.header("x-double-echo", "please");
            for target in [
                "/a%2Fb/..%2f/%2e%2e/x",
                "/a%2fB/%C3%A9%c3%a9/%00",
                "/./a/../b//c///",
                "//a",
                "/api/v1/namespaces/default/pods/a%20b/",
                "/x?a=b&a=c&&=&d",
                "/x?q=%2F%41%7e~",
                "/x?",
                "/x??/?a=?",
                "/x?x=%E2%82%AC&y=+&z='{}|^[]",
                "/~!$&'()*+,;=:@-._{}|\"",
            ] {
                let echo = client.get(target).await.json();
                assert_eq!(echo["path"], json!(target));
            }
            let long = format!("/x?{}", "0123456789".repeat(1500));
            assert_eq!(client.get(&long).await.json()["path"], json!(long));
        }
    }
}
