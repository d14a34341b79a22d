//! Two live proxies with one server ID: the second one publishes nothing, and no proxy may conclude that no server has
//! what only the second one serves.

use std::time::Duration;

use testkit::cluster::{Ground, LONG, assert_refused};
use testkit::double::{ServedResource, v1_20};
use testkit::proxy::{Proxy, Until};
use testkit::wait::{eventually, holds};

/// What only the twin serves.
const THINGS: &str = "/apis/only-twin.example/v1/things";
const NOBODYS: &str = "/apis/no.such.group/v1/things";
/// Longer than a claim lives without being written anew.
const WHILE: Duration = Duration::from_secs(5);

#[tokio::test]
async fn what_only_a_refused_twin_serves_is_a_503_until_the_twin_is_gone() {
    let ground = Ground::new().await;
    let plain = ground.double(v1_20()).await;
    let things = ServedResource::new("only-twin.example", "v1", "things", "Thing");
    let special = ground.double(v1_20().with(things)).await;
    let start = async |id, addr| Proxy::start(ground.proxy(id, addr).until(Until::Ready)).await;
    let (first, third) = tokio::join!(start("a", plain.addr()), start("c", plain.addr()));
    let clients = [&first, &third].map(|proxy| proxy.client(&ground.pki).cert("admin"));
    for client in &clients {
        eventually("nobody serves it", LONG, async || {
            client.get(THINGS).await.code() == 404
        })
        .await;
    }

    let mut twin = start("a", special.addr()).await;
    for client in &clients {
        eventually("it may be somebody's", LONG, async || {
            client.get(THINGS).await.code() == 503
        })
        .await;
    }
    holds("for as long as the twin lives", WHILE, async || {
        for client in &clients {
            for path in [THINGS, NOBODYS] {
                let answer = client.get(path).await;
                if answer.code() != 503 {
                    return Err(format!("{path}: {}", answer.text()));
                }
            }
        }
        Ok(())
    })
    .await;
    assert_refused(&clients[1].get(THINGS).await, "not known at the moment");
    let status = third.statusz().await;
    let claims = status["facts"]["claims"].as_array().unwrap();
    assert_eq!(claims, &[format!("a/{}", twin.addr())]);
    let at_twin = twin.client(&ground.pki).cert("admin");
    assert_eq!(at_twin.get(THINGS).await.code(), 200);

    twin.terminate().await;
    for client in &clients {
        eventually("it is nobody's again", LONG, async || {
            client.get(THINGS).await.code() == 404
        })
        .await;
    }
}
