//! The apiserver of a node is upgraded, downgraded and upgraded again behind its proxy, under load and through all
//! policies of `versionAwareness.default` (the test plans of KEP-4020 and KEP-1904).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{CONFIG_MAPS, NEW, OLD, config_map, create};
use crate::routing::real_apiservers::{LONGER, options};
use crate::watches::resources::kube_client_at;
use testkit::addr::Loopback;
use testkit::client::Client;
use testkit::cluster::{Ground, HPAS, LONG, patient};
use testkit::kube::KubeApiServer;
use testkit::modern::ModernApiServer;
use testkit::process::Process;
use testkit::proxy::{Proxy, Until};
use testkit::steady::Steady;
use testkit::wait::eventually;

const DELAY: &str = "--shutdown-delay-duration=2s";
/// v1.20 may run on for a minute after its port is closed.
const STOPPED: Duration = Duration::from_secs(8);
const PACE: Duration = Duration::from_millis(50);
const MOST: usize = 20_000;

/// What runs at the node whose version changes.
enum Running {
    Old(Box<KubeApiServer>),
    New(Box<ModernApiServer>),
}

impl Running {
    fn process(&mut self) -> &mut Process {
        match self {
            Self::Old(server) => server.process(),
            Self::New(server) => server.process(),
        }
    }
}

struct World {
    running: Running,
    /// At the node whose version changes, and at the other one, which stays at v1.20.2.
    proxies: [Proxy; 2],
    /// The other one's apiserver.
    _stays: KubeApiServer,
    /// Of the apiserver that changes.
    address: Loopback,
    ground: Ground,
}

impl World {
    async fn new() -> Self {
        let ground = Ground::new().await;
        let address = Loopback::new();
        let stays = options(&ground, "cp-stays").cached();
        let stays = KubeApiServer::start(stays, &ground.pki).await;
        let server = old(&ground, &address).await;
        let proxy = |id, addr: SocketAddr| {
            Proxy::start(patient(ground.proxy(id, addr)).until(Until::Ready))
        };
        let (changes, other) = tokio::join!(
            proxy("changes", server.addr()),
            proxy("stays", stays.addr())
        );
        let world = Self {
            running: Running::Old(server.into()),
            proxies: [changes, other],
            _stays: stays,
            address,
            ground,
        };
        world.until_version(OLD).await;
        world
    }

    fn admin(&self, at: usize) -> Client {
        self.proxies[at]
            .client(&self.ground.pki)
            .cert("admin")
            .timeout(LONGER)
    }

    /// Both proxies know the version of the apiserver that changes.
    async fn until_version(&self, version: &str) {
        eventually(&format!("all know {version}"), LONGER, async || {
            let status = self.proxies[0].statusz().await;
            let own = status["server"]["compatibilityVersion"] == version;
            let status = self.proxies[1].statusz().await;
            let peer = &status["peers"][0];
            let known = peer["target"] == true && peer["known"] == true;
            own && known && peer["compatibilityVersion"] == version
        })
        .await;
    }

    /// Replaces the apiserver, as an upgrade of the node does.
    async fn replace(&mut self, version: &str) {
        self.running.process().terminate(STOPPED).await;
        let ground = &self.ground;
        self.running = match version {
            OLD => Running::Old(old(ground, &self.address).await.into()),
            _ => {
                let (dir, ip) = (ground.dir.path(), self.address.ip());
                let server =
                    ModernApiServer::start_at(ip, dir, &ground.pki, &ground.etcd, &[DELAY]).await;
                Running::New(server.into())
            }
        };
        self.until_version(version).await;
    }

    async fn prefer(&mut self, policy: &str) {
        for proxy in &mut self.proxies {
            proxy.reconfigure("versionAwareness.default", policy);
            proxy
                .until_setting("versionAwareness.default", policy)
                .await;
        }
    }

    /// Writes a field that only the newer version knows, through each proxy; through which of them it was lost.
    async fn lost_fields(&self, name: &str) -> Vec<usize> {
        let mut lost = Vec::new();
        for at in 0..2 {
            let admin = self.admin(at);
            let name = format!("{name}-{at}");
            create(&admin, &name).await;
            let path = format!("{CONFIG_MAPS}/{name}");
            let mut object = admin.get(&path).await.json();
            object["metadata"]["managedFields"] = json!([{
                "manager": "test", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
                "time": "2026-11-26T00:00:00Z", "fieldsV1": {"f:data": {"f:value": {}}}, "subresource": "status",
            }]);
            let written = admin.request("PUT", &path, object.to_string()).await;
            assert_eq!(written.code(), 200, "{}", written.text());
            let read = admin.get(&path).await.json();
            let fields = read["metadata"]["managedFields"].as_array();
            let has_it = |field: &Value| field["subresource"] == "status";
            if !fields.into_iter().flatten().any(has_it) {
                lost.push(at);
            }
        }
        lost
    }

    /// Creates ConfigMaps and reads what only v1.20.2 serves, through both proxies in turn.
    fn load(&self) -> [Steady; 2] {
        let clients: Arc<[Client; 2]> = Arc::new([0, 1].map(|at| self.admin(at)));
        let count = Arc::new(AtomicUsize::new(0));
        let writers = clients.clone();
        let writes = Steady::start("writes", PACE, MOST, move || {
            let number = count.fetch_add(1, Ordering::Relaxed);
            let client = writers[number % 2].clone();
            async move {
                let body = config_map(&format!("written-{number}"), "x");
                let answer = client.try_request("POST", CONFIG_MAPS, body).await;
                let answer = answer.map_err(|error| format!("{error:#}"))?;
                let made = answer.code() == 201;
                made.then_some(()).ok_or_else(|| answer.text())
            }
        });
        let count = AtomicUsize::new(0);
        let reads = Steady::start("reads", PACE, MOST, move || {
            let client = clients[count.fetch_add(1, Ordering::Relaxed) % 2].clone();
            async move {
                let answer = client.try_get(HPAS).await;
                let answer = answer.map_err(|error| format!("{error:#}"))?;
                let served = answer.code() == 200;
                served.then_some(()).ok_or_else(|| answer.text())
            }
        });
        [writes, reads]
    }
}

async fn old(ground: &Ground, address: &Loopback) -> KubeApiServer {
    let options = options(ground, "cp-changes").cached().arg(DELAY);
    KubeApiServer::start(options.bind(address.ip()), &ground.pki).await
}

/// An informer of ConfigMaps: how often it has listed, and what it was told of.
struct Informer {
    lists: Arc<AtomicUsize>,
    names: Arc<Mutex<BTreeSet<String>>>,
    task: JoinHandle<()>,
}

impl Informer {
    fn start(client: kube::Client) -> Self {
        let (lists, names) = (Arc::new(AtomicUsize::new(0)), Arc::default());
        let told: (Arc<AtomicUsize>, Arc<Mutex<BTreeSet<String>>>) =
            (lists.clone(), Arc::clone(&names));
        let task = tokio::spawn(async move {
            let api: Api<ConfigMap> = Api::namespaced(client, "default");
            let events = watcher(api, watcher::Config::default()).default_backoff();
            let mut events = std::pin::pin!(events);
            while let Some(event) = events.next().await {
                match event {
                    Ok(watcher::Event::InitDone) => _ = told.0.fetch_add(1, Ordering::Relaxed),
                    Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                        told.1.lock().unwrap().insert(object.name_any());
                    }
                    _ => {}
                }
            }
        });
        Self { lists, names, task }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrade_downgrade_and_upgrade_lose_nothing_that_a_client_wrote() {
    let mut world = World::new().await;
    let [writes, reads] = world.load();
    let informers = [0, 1].map(|at| {
        let client = kube_client_at(world.proxies[at].addr(), &world.ground, "upgrades");
        Informer::start(client)
    });
    for informer in &informers {
        eventually("it has listed", LONG, async || {
            informer.lists.load(Ordering::Relaxed) == 1
        })
        .await;
    }

    world.replace(NEW).await;
    // What goes to the old server loses the field there: that is what the policies are for.
    assert_eq!(world.lost_fields("any").await, [1]);
    world.prefer("Newest").await;
    assert!(world.lost_fields("newest").await.is_empty());
    world.prefer("Oldest").await;
    assert_eq!(world.lost_fields("oldest").await, [0, 1]);
    world.replace(OLD).await;
    world.prefer("Newest").await;
    world.replace(NEW).await;
    assert!(world.lost_fields("newest-again").await.is_empty());

    let written = writes.stop().await;
    reads.stop().await;
    let list = world.admin(1).get(CONFIG_MAPS).await.json();
    let items = list["items"].as_array().unwrap().iter();
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    let names: BTreeSet<String> = items.map(name).collect();
    let missing = (0..written).map(|number| format!("written-{number}"));
    let missing: Vec<_> = missing.filter(|name| !names.contains(name)).collect();
    assert!(missing.is_empty(), "of {written}: {missing:?}");
    for informer in informers {
        eventually("it was told of all", LONG, async || {
            *informer.names.lock().unwrap() == names
        })
        .await;
        assert_eq!(informer.lists.load(Ordering::Relaxed), 1);
        informer.task.abort();
    }
}
