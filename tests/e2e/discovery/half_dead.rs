//! A peer that alone serves a group is dead, or frozen: no command of kubectl waits for the group.

use std::time::{Duration, Instant};

use crate::routing::real_apiservers::LONGER;
use testkit::audit::AuditLog;
use testkit::client::Client;
use testkit::cluster::{Ground, assert_refused_for_good};
use testkit::kube::Need;
use testkit::kubectl::Kubectl;
use testkit::pair::Pair;
use testkit::process::Signal;
use testkit::wait::eventually;

/// What only B serves.
const ABSENT: &str = "/apis/autoscaling/v1";
/// As often kubectl reads discovery for one command, at most.
const ROUNDS: usize = 8;
/// A busy machine takes its time for kubectl; a single document that a frozen peer is waited for takes 9 s or more.
const LONGER_THAN_DIRECTLY: Duration = Duration::from_secs(5);

async fn pair() -> (Pair, AuditLog) {
    let ground = Ground::bootstrapped().await;
    let audit = AuditLog::new(ground.dir.path(), "a");
    let flags = audit.flags();
    let pair = Pair::options().without_group_at_a("autoscaling");
    let pair = pair.a(move |options| {
        flags
            .iter()
            .fold(options, |options, flag| options.arg(flag))
    });
    let pair = pair.start_on(ground).await;
    until_a_has_it(&pair).await;
    (pair, audit)
}

/// Less patient than `Pair::admin`: nobody is to wait.
fn admin(pair: &Pair) -> Client {
    pair.proxy_a.client(&pair.ground.pki).cert("admin")
}

/// Lists ConfigMaps without a cache. Returns how long that took.
async fn list(ground: &Ground, server: std::net::SocketAddr) -> Duration {
    let cache = tempfile::tempdir_in(ground.dir.path()).unwrap();
    let kubectl = Kubectl::new(server, &ground.pki, cache.path());
    let kubectl = kubectl.cert(&ground.pki, "admin");
    let begun = Instant::now();
    let listed = kubectl
        .run(&["get", "configmaps", "-n", "kube-system"])
        .await;
    assert!(listed.contains("extension-apiserver"), "{listed}");
    begun.elapsed()
}

/// How often the administrator has asked A for the document that it does not have.
fn asked(audit: &AuditLog) -> usize {
    let events = audit.received(ABSENT);
    let by_admin = events.iter().filter(|event| {
        let uri = event["requestURI"].as_str().unwrap_or_default();
        let path = uri.split('?').next();
        path == Some(ABSENT) && event["user"]["username"] == "kubernetes-admin"
    });
    by_admin.count()
}

async fn nobody_waits(pair: &Pair, audit: &AuditLog, what: &str) {
    let directly = list(&pair.ground, pair.a.addr()).await;
    for _ in 0..2 {
        let before = asked(audit);
        let took = list(&pair.ground, pair.proxy_a.addr()).await;
        println!("{what}: {took:?}, directly {directly:?}");
        // Once in each of the few rounds of discovery, or never if kubectl reads the aggregated one. With `Retry-After`
        // it would be eleven times in each.
        let asked = asked(audit) - before;
        let least = usize::from(pair.a.abilities().meets(Need::Before(26)));
        assert!((least..=ROUNDS).contains(&asked), "{what}: {asked} times");
        assert!(
            took < directly + LONGER_THAN_DIRECTLY,
            "{what}: {took:?}, directly {directly:?}"
        );
    }
    let admin = admin(pair);
    let refused = admin.get(ABSENT).await;
    assert_refused_for_good(&refused, "can be reached");
}

async fn until_a_has_it(pair: &Pair) {
    let admin = admin(pair);
    eventually("A's proxy has what B has", LONGER, async || {
        admin.get(ABSENT).await.code() == 200
    })
    .await;
}

#[tokio::test]
async fn kubectl_does_not_wait_for_what_nobody_can_serve_now() {
    let (mut pair, audit) = pair().await;
    pair.proxy_b.process().signal(Signal::Stop);
    nobody_waits(&pair, &audit, "B's proxy is frozen").await;
    pair.proxy_b.process().signal(Signal::Cont);
    until_a_has_it(&pair).await;

    pair.b.process().signal(Signal::Stop);
    nobody_waits(&pair, &audit, "B's apiserver is frozen").await;
    pair.b.process().signal(Signal::Cont);
    until_a_has_it(&pair).await;

    pair.b.kill();
    pair.proxy_b.kill();
    nobody_waits(&pair, &audit, "B was killed").await;
    let admin = admin(&pair);
    eventually("B is known to be absent", LONGER, async || {
        let status = pair.proxy_a.statusz().await;
        status["peers"][0]["target"] == false
    })
    .await;
    nobody_waits(&pair, &audit, "B is absent").await;
    // A resource is another matter: it is asked for because it is needed.
    let resource = admin
        .get(&format!("{ABSENT}/horizontalpodautoscalers"))
        .await;
    testkit::cluster::assert_refused(&resource, "can be reached");
}
