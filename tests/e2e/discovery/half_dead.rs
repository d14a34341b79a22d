//! A peer that alone serves a group is dead, or frozen: no command of kubectl waits for the group.

use std::time::{Duration, Instant};

use crate::routing::real_apiservers::LONGER;
use testkit::audit::AuditLog;
use testkit::cluster::{Ground, assert_refused_for_good};
use testkit::kube::{KubeApiServer, Need};
use testkit::kubectl::Kubectl;
use testkit::pair::Pair;
use testkit::process::Signal;
use testkit::proxy::Proxy;
use testkit::wait::eventually;

/// What only B serves.
const ABSENT: &str = "/apis/autoscaling/v1";
/// As often kubectl reads discovery for one command, at most.
const ROUNDS: usize = 8;
/// A busy machine takes its time for kubectl; a single document that a frozen peer is waited for takes 9 s or more.
const LONGER_THAN_DIRECTLY: Duration = Duration::from_secs(5);

struct World {
    a: KubeApiServer,
    b: KubeApiServer,
    proxy_a: Proxy,
    proxy_b: Proxy,
    audit: AuditLog,
    ground: Ground,
}

impl World {
    async fn new() -> Self {
        let ground = Ground::bootstrapped().await;
        let audit = AuditLog::new(ground.dir.path(), "a");
        let flags = audit.flags();
        let pair = Pair::options().without_group_at_a("autoscaling");
        let pair = pair.a(move |options| {
            flags
                .iter()
                .fold(options, |options, flag| options.arg(flag))
        });
        let Pair {
            a,
            b,
            proxy_a,
            proxy_b,
            ground,
        } = pair.start_on(ground).await;
        let admin = proxy_a.client(&ground.pki).cert("admin");
        eventually("A's proxy has what B has", LONGER, async || {
            admin.get(ABSENT).await.code() == 200
        })
        .await;
        Self {
            a,
            b,
            proxy_a,
            proxy_b,
            audit,
            ground,
        }
    }

    /// Lists ConfigMaps without a cache. Returns how long that took.
    async fn list(&self, server: std::net::SocketAddr) -> Duration {
        let cache = tempfile::tempdir_in(self.ground.dir.path()).unwrap();
        let kubectl = Kubectl::new(server, &self.ground.pki, cache.path());
        let kubectl = kubectl.cert(&self.ground.pki, "admin");
        let begun = Instant::now();
        let listed = kubectl
            .run(&["get", "configmaps", "-n", "kube-system"])
            .await;
        assert!(listed.contains("extension-apiserver"), "{listed}");
        begun.elapsed()
    }

    /// How often the administrator has asked A for the document that it does not have.
    fn asked(&self) -> usize {
        let events = self.audit.received(ABSENT);
        let by_admin = events.iter().filter(|event| {
            let uri = event["requestURI"].as_str().unwrap_or_default();
            let path = uri.split('?').next();
            path == Some(ABSENT) && event["user"]["username"] == "kubernetes-admin"
        });
        by_admin.count()
    }

    async fn nobody_waits(&self, what: &str) {
        let directly = self.list(self.a.addr()).await;
        for _ in 0..2 {
            let before = self.asked();
            let took = self.list(self.proxy_a.addr()).await;
            println!("{what}: {took:?}, directly {directly:?}");
            // Once in each of the few rounds of discovery, or never if kubectl reads the aggregated one. With `Retry-After`
            // it would be eleven times in each.
            let asked = self.asked() - before;
            let least = usize::from(self.a.abilities().meets(Need::Before(26)));
            assert!((least..=ROUNDS).contains(&asked), "{what}: {asked} times");
            assert!(
                took < directly + LONGER_THAN_DIRECTLY,
                "{what}: {took:?}, directly {directly:?}"
            );
        }
        let admin = self.proxy_a.client(&self.ground.pki).cert("admin");
        let refused = admin.get(ABSENT).await;
        assert_refused_for_good(&refused, "can be reached");
    }

    async fn until_it_is_back(&self) {
        let admin = self.proxy_a.client(&self.ground.pki).cert("admin");
        eventually("B's group is back", LONGER, async || {
            admin.get(ABSENT).await.code() == 200
        })
        .await;
    }
}

#[tokio::test]
async fn kubectl_does_not_wait_for_what_nobody_can_serve_now() {
    let mut world = World::new().await;
    world.proxy_b.process().signal(Signal::Stop);
    world.nobody_waits("B's proxy is frozen").await;
    world.proxy_b.process().signal(Signal::Cont);
    world.until_it_is_back().await;

    world.b.process().signal(Signal::Stop);
    world.nobody_waits("B's apiserver is frozen").await;
    world.b.process().signal(Signal::Cont);
    world.until_it_is_back().await;

    world.b.kill();
    world.proxy_b.kill();
    world.nobody_waits("B was killed").await;
    let admin = world.proxy_a.client(&world.ground.pki).cert("admin");
    eventually("B is known to be absent", LONGER, async || {
        let status = world.proxy_a.statusz().await;
        status["peers"][0]["target"] == false
    })
    .await;
    world.nobody_waits("B is absent").await;
    // A resource is another matter: it is asked for because it is needed.
    let resource = admin
        .get(&format!("{ABSENT}/horizontalpodautoscalers"))
        .await;
    testkit::cluster::assert_refused(&resource, "can be reached");
}
