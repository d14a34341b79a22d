//! B is the only server of a group. Whatever happens to B, A answers 503 for that group until it is certain that no
//! server has it: a false 404 makes garbage collectors and namespace controllers delete objects.

use std::time::Duration;

use testkit::client::Client;
use testkit::cluster::{Ground, HPAS, LONG};
use testkit::double::{Double, DoubleOptions, v1_20};
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

/// Longer than `peer.leaseTTL` and its grace, so that every state of B's keys comes by.
const WHILE: Duration = Duration::from_secs(8);

struct Pair {
    b: Option<Double>,
    proxy_a: Proxy,
    proxy_b: Proxy,
    _a: Double,
    ground: Ground,
}

/// `fixed`: B's server ID is configured; otherwise it has an own ID, new with each start, as beside kube-apiserver
/// 1.20.
async fn pair(fixed: bool) -> Pair {
    let ground = Ground::new().await;
    let a = ground.double(v1_20().without_group("autoscaling")).await;
    let b = ground.double(v1_20()).await;
    let id = |id| if fixed { id } else { "" };
    let (proxy_a, proxy_b) = tokio::join!(
        Proxy::start(ground.proxy(id("a"), a.addr()).until(Until::Ready)),
        Proxy::start(ground.proxy(id("b"), b.addr()).until(Until::Ready)),
    );
    let pair = Pair {
        b: Some(b),
        proxy_a,
        proxy_b,
        _a: a,
        ground,
    };
    pair.until_served().await;
    pair
}

impl Pair {
    fn admin(&self) -> Client {
        self.proxy_a.client(&self.ground.pki).cert("admin")
    }

    async fn until_served(&self) {
        let admin = self.admin();
        eventually("B's group is served", LONG, async || {
            admin.get(HPAS).await.code() == 200
        })
        .await;
    }

    /// Asks for a while: nothing but 503 with `Retry-After`.
    async fn absent_and_not_gone(&self, what: &str) {
        let admin = self.admin();
        let end = tokio::time::Instant::now() + WHILE;
        let mut asked = 0;
        while tokio::time::Instant::now() < end {
            let answer = admin.get(HPAS).await;
            assert_eq!(
                answer.code(),
                503,
                "{what}, number {asked}: {}",
                answer.text()
            );
            assert!(!answer.header("retry-after").is_empty(), "{what}");
            asked += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// B's apiserver, at the address that its proxy knows.
    async fn start_b(&mut self, address: std::net::SocketAddr, with_group: bool) {
        let preset = match with_group {
            true => v1_20(),
            false => v1_20().without_group("autoscaling"),
        };
        let mut options = DoubleOptions::new(self.ground.pki.dir(), preset);
        options.listen = Some(address);
        self.b = Some(Double::start(options).await);
    }

    async fn stop_b(&mut self) -> std::net::SocketAddr {
        let mut b = self.b.take().unwrap();
        let address = b.addr();
        b.stop().await;
        address
    }

    async fn until_gone(&self) {
        let admin = self.admin();
        eventually("nobody has the group", LONG, async || {
            let answer = admin.get(HPAS).await;
            assert!(matches!(answer.code(), 404 | 503), "{}", answer.text());
            answer.code() == 404
        })
        .await;
    }
}

async fn stops_cleanly(fixed: bool) {
    let mut pair = pair(fixed).await;
    let address = pair.stop_b().await;
    pair.proxy_b.terminate().await;
    pair.absent_and_not_gone("B stopped").await;
    pair.start_b(address, true).await;
    pair.proxy_b.start_again().await;
    pair.until_served().await;
}

async fn is_killed_and_a_restarts(fixed: bool) {
    let mut pair = pair(fixed).await;
    let address = pair.stop_b().await;
    pair.proxy_b.kill();
    pair.absent_and_not_gone("B was killed").await;
    pair.proxy_a.kill();
    pair.proxy_a.start_again().await;
    pair.absent_and_not_gone("A's proxy was restarted").await;
    pair.start_b(address, true).await;
    pair.proxy_b.start_again().await;
    pair.until_served().await;
}

async fn comes_back_without_the_group(fixed: bool) {
    let mut pair = pair(fixed).await;
    let address = pair.stop_b().await;
    pair.proxy_b.terminate().await;
    pair.start_b(address, false).await;
    pair.proxy_b.start_again().await;
    pair.until_gone().await;
}

#[tokio::test]
async fn a_server_that_stops_cleanly_is_absent_and_not_gone() {
    stops_cleanly(true).await;
}

#[tokio::test]
async fn a_server_that_stops_cleanly_and_changes_its_id_is_absent_and_not_gone() {
    stops_cleanly(false).await;
}

#[tokio::test]
async fn a_server_that_is_killed_is_absent_for_a_restarted_proxy_too() {
    is_killed_and_a_restarts(true).await;
}

#[tokio::test]
async fn a_server_that_is_killed_and_changes_its_id_is_absent_for_a_restarted_proxy_too() {
    is_killed_and_a_restarts(false).await;
}

#[tokio::test]
async fn a_server_that_comes_back_without_the_group_makes_it_a_404() {
    comes_back_without_the_group(true).await;
}

#[tokio::test]
async fn a_server_that_comes_back_under_a_new_id_without_the_group_makes_it_a_404() {
    comes_back_without_the_group(false).await;
}

#[tokio::test]
async fn only_the_apiserver_of_b_restarts_without_the_group() {
    let mut pair = pair(true).await;
    let address = pair.stop_b().await;
    pair.absent_and_not_gone("B's apiserver is down").await;
    pair.start_b(address, false).await;
    pair.until_gone().await;
}
