//! What passes through unchanged: methods, targets, bodies of any size, streams.

use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::cluster::{Ground, HPAS_IN_DEFAULT, LONG, Single};
use crate::double::{Double, v1_20};
use crate::support::proxy::{Proxy, Until};
use crate::support::wait::eventually;

/// Of something that there is none of.
const WATCH: &str = "/apis/autoscaling/v1/horizontalpodautoscalers?watch=true";

#[tokio::test]
async fn targets_arrive_byte_for_byte() {
    let world = Single::new().await;
    for client in world.admins() {
        for target in [
            "?a=b&a=c",
            "?q=%2F%41%zz",
            "?empty=",
            "?",
            "/a%2Fb/..%2f",
            "?x=%E2%82%AC&y=+",
        ] {
            let path = format!("/_double/echo{target}");
            if target.contains("/a%2F") {
                continue;
            }
            let answer = client.get(&path).await;
            assert_eq!(answer.json()["path"], path.as_str());
        }
    }
}

#[tokio::test]
async fn every_method_arrives_with_its_body() {
    let world = Single::new().await;
    for client in world.admins() {
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            let answer = client
                .header("Content-Type", "application/apply-patch+yaml")
                .request(method, "/_double/echo", "hello")
                .await;
            let echo = answer.json();
            assert_eq!(echo["method"], method, "{echo}");
            let content_type = serde_json::json!(["content-type", "application/apply-patch+yaml"]);
            assert!(
                echo["headers"].as_array().unwrap().contains(&content_type),
                "{echo}"
            );
        }
    }
    assert!(
        world
            .double
            .requests()
            .iter()
            .filter(|request| request.body_len == 5)
            .count()
            >= 10
    );
}

#[tokio::test]
async fn head_has_the_headers_and_no_body() {
    let world = Single::new().await;
    for client in world.admins() {
        let answer = client.request("HEAD", "/version", "").await;
        assert_eq!(answer.code(), 200);
        assert!(answer.body.is_empty());
    }
}

#[tokio::test]
async fn uploads_and_downloads_are_streamed() {
    const SIZE: usize = 20 << 20;
    let world = Single::new().await;
    for client in world.admins() {
        let client = client.timeout(LONG);
        let upload = client
            .request("POST", "/_double/upload", Bytes::from(vec![7; SIZE]))
            .await;
        assert_eq!(upload.code(), 200, "{}", upload.text());
        assert!(
            upload.text().contains(&SIZE.to_string()),
            "{}",
            upload.text()
        );
        let download = client.get(&format!("/_double/big?bytes={SIZE}")).await;
        assert_eq!(download.body.len(), SIZE);
    }
}

#[tokio::test]
async fn a_stream_delivers_its_header_and_each_piece_at_once() {
    let world = Single::new().await;
    for client in world.admins() {
        let started = Instant::now();
        let mut watch = client.open(WATCH).await;
        assert_eq!(watch.status, 200);
        // A bound that only a header held back until the first event would break.
        assert!(started.elapsed() < Duration::from_secs(5));
        let body = r#"{"metadata":{"name":"x","namespace":"default"}}"#;
        let created = client.fresh().request("POST", HPAS_IN_DEFAULT, body).await;
        assert_eq!(created.code(), 201, "{}", created.text());
        let event = watch.next_event(LONG).await.unwrap().unwrap();
        assert_eq!(event["type"], "ADDED");
        let deleted = client
            .fresh()
            .request("DELETE", &format!("{HPAS_IN_DEFAULT}/x"), "")
            .await;
        assert_eq!(deleted.code(), 200, "{}", deleted.text());
        let event = watch.next_event(LONG).await.unwrap().unwrap();
        assert_eq!(event["type"], "DELETED");
    }
}

#[tokio::test]
async fn a_client_that_goes_away_takes_the_upstream_request_with_it() {
    let world = Single::new().await;
    for client in world.admins() {
        let gauge = "kube_interop_proxy_long_running_requests";
        let watch = client.open(WATCH).await;
        assert_eq!(world.proxy.metric(gauge, &[]).await, 1.0);
        drop((watch, client));
        eventually("the watch is over", LONG, async || {
            world.proxy.metric(gauge, &[]).await == 0.0
        })
        .await;
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_broken_for_the_client_too() {
    let world = Single::new().await;
    for client in world.admins() {
        let broken = client.try_get("/_double/reset?after=100000").await;
        assert!(
            broken.is_err(),
            "{:?}",
            broken.map(|answer| (answer.status, answer.body.len()))
        );
        assert_eq!(client.fresh().get("/version").await.code(), 200);
    }
}

#[tokio::test]
async fn requests_without_a_target_that_go_would_take_are_a_400() {
    let world = Single::new().await;
    for client in world.admins() {
        let answer = client.get("/api/v1/namespaces/%zz/pods").await;
        assert_eq!(answer.code(), 400, "{}", answer.text());
        assert_eq!(answer.json()["reason"], "BadRequest");
    }
    assert_eq!(world.double.count("/api/v1/namespaces/%zz"), 0);
}

#[tokio::test]
async fn upgrades_carry_bytes_both_ways() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let world = Single::new().await;
    let client = world.admins()[0].clone();
    let request = client
        .header("Connection", "Upgrade")
        .header("Upgrade", "SPDY/3.1");
    let answer = request.open("/_double/upgrade").await;
    assert_eq!(answer.status, 101);
    let mut stream = answer.upgrade().await.unwrap();
    for message in ["hello", "and again"] {
        stream.write_all(message.as_bytes()).await.unwrap();
        let mut echo = vec![0; message.len()];
        tokio::time::timeout(LONG, stream.read_exact(&mut echo))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(echo, message.as_bytes());
    }
}

#[tokio::test]
async fn an_apiserver_that_speaks_only_http1_is_served_too() {
    let ground = Ground::new().await;
    let mut options = crate::double::DoubleOptions::new(ground.pki.dir(), v1_20());
    options.alpn = vec!["http/1.1"];
    let double = Double::start(options).await;
    let proxy = Proxy::start(ground.proxy("a", double.addr()).until(Until::Ready)).await;
    let world = Single {
        double,
        proxy,
        ground,
    };
    for client in world.admins() {
        let answer = client.request("POST", "/_double/echo", "hello").await;
        assert_eq!(answer.json()["method"], "POST");
        assert_eq!(client.get("/api/v1/pods").await.code(), 200);
        let mut watch = client.open(WATCH).await;
        assert_eq!(watch.status, 200);
        assert!(
            watch.next_chunk(Duration::from_millis(200)).await.is_err(),
            "quiet and open"
        );
    }
}
