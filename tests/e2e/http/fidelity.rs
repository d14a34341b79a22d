//! Traffic that passes unchanged, over each version of HTTP.

use std::time::{Duration, Instant};

use testkit::cluster::{HPAS_IN_DEFAULT, LONG, Single};

/// Of something that there is none of.
const WATCH: &str = "/apis/autoscaling/v1/horizontalpodautoscalers?watch=true";

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
async fn an_apiserver_that_speaks_only_http1_is_served_too() {
    let world = Single::speaking(&["http/1.1"]).await;
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
