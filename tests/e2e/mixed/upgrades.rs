//! The apiserver of a node is upgraded, downgraded and upgraded again behind its proxy, under load and through all
//! policies of `versionAwareness.default` (the test plans of KEP-4020 and KEP-1904): from v1.20.2 to today's machinery, or
//! from each version that [`VARIABLE`](kube::VARIABLE) names to the next one.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::kube::runtime::WatchStreamExt as _;
use ::kube::runtime::watcher::{self, watcher};
use ::kube::{Api, Client as KubeClient, ResourceExt as _};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{CONFIG_MAPS, NEW, config_map};
use crate::routing::real_apiservers::LONGER;
use crate::watches::resources::kube_client_at;
use testkit::addr::Loopback;
use testkit::client::Client;
use testkit::cluster::{Ground, HPAS, LONG, patient};
use testkit::kube::{self, Binary, KubeApiServer, Need};
use testkit::modern::ModernApiServer;
use testkit::nodes::HANDED_OVER;
use testkit::process::Process;
use testkit::proxy::{Proxy, Until};
use testkit::steady::Steady;
use testkit::wait::eventually;

const DELAY: &str = "--shutdown-delay-duration=2s";
/// v1.20 may run on for a minute after its port is closed.
const STOPPED: Duration = Duration::from_secs(5);
const PACE: Duration = Duration::from_millis(100);
const MOST: usize = 20_000;

/// What kube-apiserver no longer serves from 1.x on.
const REMOVED: [(u32, &str); 2] = [
    (22, "/apis/extensions/v1beta1/namespaces/default/ingresses"),
    (25, "/apis/batch/v1beta1/namespaces/default/cronjobs"),
];

/// What it serves from 1.x on, in group versions that were there before.
const ADDED: [(u32, &str); 2] = [
    (21, "/apis/batch/v1/namespaces/default/cronjobs"),
    (
        30,
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    ),
];

/// A field that only the newer version keeps.
struct Field {
    collection: &'static str,
    object: fn(name: &str) -> String,
    set: fn(&mut Value),
    is_set: fn(&Value) -> bool,
}

/// Also of ConfigMaps, which are all that today's machinery serves.
const SUBRESOURCE: Field = Field {
    collection: CONFIG_MAPS,
    object: |name| config_map(name, "x"),
    set: |object| {
        object["metadata"]["managedFields"] = json!([{
            "manager": "test", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
            "time": "2026-11-26T00:00:00Z", "fieldsV1": {"f:data": {"f:value": {}}}, "subresource": "status",
        }]);
    },
    is_set: |object| {
        let fields = object["metadata"]["managedFields"].as_array();
        let mut fields = fields.into_iter().flatten();
        fields.any(|field| field["subresource"] == "status")
    },
};

const INTERNAL_TRAFFIC: Field = Field {
    collection: SERVICES,
    object: service,
    set: |object| object["spec"]["internalTrafficPolicy"] = json!("Local"),
    is_set: |object| object["spec"]["internalTrafficPolicy"] == "Local",
};

const TRAFFIC_DISTRIBUTION: Field = Field {
    collection: SERVICES,
    object: service,
    set: |object| object["spec"]["trafficDistribution"] = json!("PreferClose"),
    is_set: |object| object["spec"]["trafficDistribution"] == "PreferClose",
};

/// From 1.x on.
const FIELDS: [(u32, Field); 2] = [(22, INTERNAL_TRAFFIC), (31, TRAFFIC_DISTRIBUTION)];

const SERVICES: &str = "/api/v1/namespaces/default/services";

/// Without an address: versions differ in where they keep which are taken.
fn service(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"clusterIP": "None", "ports": [{"port": 80}]}})
    .to_string()
}

/// An upgrade, and what tells both versions apart.
struct Upgrade {
    old: &'static Binary,
    /// `None`: today's machinery.
    new: Option<&'static Binary>,
    /// Only the old one serves it, if it lacks anything at all.
    only_old: &'static str,
    only_new: Option<&'static str>,
    field: Field,
}

impl Upgrade {
    fn all() -> Vec<Self> {
        let several = kube::several();
        match several.is_empty() {
            true => vec![Self {
                old: kube::cached(),
                new: None,
                only_old: HPAS,
                only_new: None,
                field: SUBRESOURCE,
            }],
            false => several
                .windows(2)
                .map(|pair| Self::between(pair[0], pair[1]))
                .collect(),
        }
    }

    fn between(old: &'static Binary, new: &'static Binary) -> Self {
        let differs = |&minor: &u32| {
            old.abilities().meets(Need::Before(minor)) && new.abilities().meets(Need::Since(minor))
        };
        let newest = |known: [(u32, &'static str); 2]| {
            let mut known = known.into_iter().rev();
            known
                .find(|(minor, _)| differs(minor))
                .map(|(_, path)| path)
        };
        let mut fields = FIELDS.into_iter().rev();
        let field = fields.find(|(minor, _)| differs(minor));
        Self {
            old,
            new: Some(new),
            only_old: newest(REMOVED).unwrap_or(HPAS),
            only_new: newest(ADDED),
            field: field.expect("a field that only the newer version has").1,
        }
    }

    /// Whether beta versions are among what tells both apart. Today's machinery has none.
    fn betas(&self) -> bool {
        self.new.is_some()
    }

    fn old_version(&self) -> String {
        self.old.abilities().compatibility_version()
    }

    fn new_version(&self) -> String {
        self.new.map_or(NEW.to_owned(), |new| {
            new.abilities().compatibility_version()
        })
    }
}

/// What runs at the node whose version changes.
enum Running {
    Kube(Box<KubeApiServer>),
    Modern(Box<ModernApiServer>),
}

impl Running {
    /// `betas`: whether a kube-apiserver serves them.
    async fn start(
        binary: Option<&'static Binary>,
        betas: bool,
        ground: &Ground,
        address: &Loopback,
    ) -> Self {
        let ip = address.ip();
        let Some(binary) = binary else {
            let dir = ground.dir.path();
            let server = ModernApiServer::start_at(ip, dir, &ground.pki, &ground.etcd, &[DELAY]);
            return Self::Modern(server.await.into());
        };
        let options = ground
            .kube("cp-changes")
            .betas(betas)
            .runs(binary)
            .arg(DELAY);
        let server = KubeApiServer::start(options.bind(ip), &ground.pki).await;
        Self::Kube(server.into())
    }

    fn addr(&self) -> SocketAddr {
        match self {
            Self::Kube(server) => server.addr(),
            Self::Modern(server) => server.addr(),
        }
    }

    fn process(&mut self) -> &mut Process {
        match self {
            Self::Kube(server) => server.process(),
            Self::Modern(server) => server.process(),
        }
    }
}

/// A node whose version changes, and another one.
struct TwoNodes {
    upgrade: Upgrade,
    running: Running,
    /// At the node whose version changes, and at the other one, which stays at the old version.
    proxies: [Proxy; 2],
    /// The other one's apiserver.
    _stays: KubeApiServer,
    /// Of the apiserver that changes.
    address: Loopback,
    ground: Ground,
}

impl TwoNodes {
    async fn new(upgrade: Upgrade) -> Self {
        let ground = Ground::bootstrapped().await;
        let address = Loopback::new();
        let betas = upgrade.betas();
        let stays = ground.kube("cp-stays").betas(betas).runs(upgrade.old);
        let stays = KubeApiServer::start(stays, &ground.pki).await;
        let running = Running::start(Some(upgrade.old), betas, &ground, &address).await;
        let proxy = |id, addr: SocketAddr| {
            Proxy::start(patient(ground.proxy(id, addr)).until(Until::Ready))
        };
        let (changes, other) = tokio::join!(
            proxy("changes", running.addr()),
            proxy("stays", stays.addr())
        );
        let nodes = Self {
            upgrade,
            running,
            proxies: [changes, other],
            _stays: stays,
            address,
            ground,
        };
        nodes.until_version(&nodes.upgrade.old_version()).await;
        nodes
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

    /// As an upgrade of the node does it: no stream ends.
    async fn upgrade(&mut self) {
        let ended = self.ended().await;
        self.replace(self.upgrade.new, &self.upgrade.new_version())
            .await;
        assert_eq!(self.ended().await, ended);
    }

    /// Watches end cleanly: no older version goes on with those of a newer one.
    async fn downgrade(&mut self) {
        self.replace(Some(self.upgrade.old), &self.upgrade.old_version())
            .await;
    }

    async fn replace(&mut self, binary: Option<&'static Binary>, version: &str) {
        self.running.process().terminate(STOPPED).await;
        let betas = self.upgrade.betas();
        self.running = Running::start(binary, betas, &self.ground, &self.address).await;
        self.until_version(version).await;
    }

    /// Streams that no other apiserver went on with.
    async fn ended(&self) -> f64 {
        let ended = [("result", "ended")];
        let [changes, stays] = &self.proxies;
        changes.metric(HANDED_OVER, &ended).await + stays.metric(HANDED_OVER, &ended).await
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
        let field = &self.upgrade.field;
        let mut lost = Vec::new();
        for at in 0..2 {
            let admin = self.admin(at);
            let name = format!("{name}-{at}");
            let object = (field.object)(&name);
            let made = admin.request("POST", field.collection, object).await;
            assert_eq!(made.code(), 201, "{name}: {}", made.text());
            let path = format!("{}/{name}", field.collection);
            let mut object = admin.get(&path).await.json();
            (field.set)(&mut object);
            let written = admin.request("PUT", &path, object.to_string()).await;
            assert_eq!(written.code(), 200, "{}", written.text());
            if !(field.is_set)(&admin.get(&path).await.json()) {
                lost.push(at);
            }
        }
        lost
    }

    /// Creates ConfigMaps.
    fn write(&self) -> Steady {
        self.in_turn("writes", 201, |number| {
            let body = config_map(&format!("written-{number}"), "x");
            ("POST", CONFIG_MAPS, body)
        })
    }

    /// Lists what only one version serves.
    fn read(&self, path: &'static str) -> Steady {
        self.in_turn(path, 200, move |_| ("GET", path, String::new()))
    }

    /// Sends these requests through both proxies in turn. `code`: of each answer.
    fn in_turn(
        &self,
        what: &str,
        code: u16,
        request: impl Fn(usize) -> (&'static str, &'static str, String) + Send + 'static,
    ) -> Steady {
        let clients = [0, 1].map(|at| self.admin(at));
        let mut numbers = 0..;
        Steady::start(what, PACE, MOST, move || {
            let number = numbers.next().unwrap();
            let client = clients[number % 2].clone();
            let (method, path, body) = request(number);
            async move {
                let answer = client.try_request(method, path, body).await;
                let answer = answer.map_err(|error| format!("{error:#}"))?;
                (answer.code() == code)
                    .then_some(())
                    .ok_or_else(|| answer.text())
            }
        })
    }
}

/// An informer of ConfigMaps: how often it has listed, and what it was told of.
struct Informer {
    lists: Arc<AtomicUsize>,
    names: Arc<Mutex<BTreeSet<String>>>,
    task: JoinHandle<()>,
}

impl Informer {
    fn start(client: KubeClient) -> Self {
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
    for upgrade in Upgrade::all() {
        println!("{} to {}", upgrade.old_version(), upgrade.new_version());
        nothing_is_lost(TwoNodes::new(upgrade).await).await;
    }
}

async fn nothing_is_lost(mut nodes: TwoNodes) {
    let writes = nodes.write();
    let of_old = nodes.read(nodes.upgrade.only_old);
    let informers = [0, 1].map(|at| {
        let client = kube_client_at(nodes.proxies[at].addr(), &nodes.ground, "upgrades");
        Informer::start(client)
    });
    for informer in &informers {
        eventually("it has listed", LONG, async || {
            informer.lists.load(Ordering::Relaxed) == 1
        })
        .await;
    }

    nodes.upgrade().await;
    let of_new = nodes.upgrade.only_new.map(|path| nodes.read(path));
    // What goes to the old server loses the field there: that is what the policies are for.
    assert_eq!(nodes.lost_fields("any").await, [1]);
    nodes.prefer("Newest").await;
    assert!(nodes.lost_fields("newest").await.is_empty());
    nodes.prefer("Oldest").await;
    assert_eq!(nodes.lost_fields("oldest").await, [0, 1]);
    if let Some(reads) = of_new {
        reads.stop().await;
    }
    nodes.downgrade().await;
    nodes.prefer("Newest").await;
    nodes.upgrade().await;
    assert!(nodes.lost_fields("newest-again").await.is_empty());

    let written = writes.stop().await;
    of_old.stop().await;
    let list = nodes.admin(1).get(CONFIG_MAPS).await.json();
    let items = list["items"].as_array().unwrap().iter();
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    let names: BTreeSet<String> = items.map(name).collect();
    let missing = (0..written).map(|number| format!("written-{number}"));
    let missing: Vec<_> = missing.filter(|name| !names.contains(name)).collect();
    assert!(missing.is_empty(), "of {written}: {missing:?}");
    println!("{written} writes");
    for informer in informers {
        eventually("it was told of all", LONG, async || {
            *informer.names.lock().unwrap() == names
        })
        .await;
        assert_eq!(informer.lists.load(Ordering::Relaxed), 1);
        informer.task.abort();
    }
}
