//! The contents of a large cluster's etcd: CustomResourceDefinitions, and what the proxies of its servers write.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Client, Txn, TxnOp};
use serde_json::{Map, Value, json};
use testkit::addr::Loopback;
use testkit::double::ServedResource;
use testkit::double::resources::group_version;
use testkit::registry::Registry;
use tokio::time::{Instant, interval};

/// Puts of one transaction: etcd takes 128 at most, and 1.5 MiB.
const TOGETHER: usize = 64;
/// Of groups that definitions share.
const GROUPS: usize = 100;
const PORT: u16 = 6443;
/// A third of the default of `peer.leaseTTL`: how often proxies write that they live.
const RENEWAL: Duration = Duration::from_secs(5);

/// Asks for a list of groups with their resources.
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// An apiserver's groups, and those of so many definitions: a document of 10,000 resources takes the double too long.
pub fn with_custom_groups(mut document: Value, definitions: usize) -> Value {
    let groups = document["items"].as_array_mut().expect("groups");
    for group in 0..GROUPS.min(definitions) {
        let resources: Vec<_> = (group..definitions)
            .step_by(GROUPS)
            .map(custom_resource)
            .collect();
        let version = json!({"version": "v1", "freshness": "Current", "resources": resources});
        groups.push(json!({"metadata": {"name": names(group).0}, "versions": [version]}));
    }
    document
}

fn custom_resource(number: usize) -> Value {
    let (group, resource) = names(number);
    let kind = json!({"group": group, "version": "v1", "kind": format!("Thing{number}")});
    let verbs = [
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    ];
    json!({
        "resource": resource, "responseKind": kind, "scope": "Namespaced",
        "singularResource": format!("thing{number}"), "verbs": verbs,
        "subresources": [{"subresource": "status", "responseKind": kind, "verbs": ["get", "patch", "update"]}],
    })
}

fn names(number: usize) -> (String, String) {
    (
        format!("group-{}.example.com", number % GROUPS),
        format!("things{number}"),
    )
}

/// Of 3 to 4 KiB, as a small one of a real cluster.
pub async fn write_definitions(etcd: &mut Client, numbers: Range<usize>) {
    let numbers: Vec<_> = numbers.collect();
    for numbers in numbers.chunks(TOGETHER) {
        let puts: Vec<_> = numbers.iter().map(|number| definition(*number)).collect();
        etcd.txn(Txn::new().and_then(puts))
            .await
            .expect("definitions are written");
    }
}

fn definition(number: usize) -> TxnOp {
    let (group, resource) = names(number);
    let name = format!("{resource}.{group}");
    let properties: Map<String, Value> = (0..40)
        .map(|field| {
            (
                format!("field{field}"),
                json!({"type": "string", "description": "What it is for, in a sentence."}),
            )
        })
        .collect();
    let names = json!({"plural": resource, "kind": format!("Thing{number}")});
    let value = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {
            "group": group, "names": names, "scope": "Namespaced",
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
            }],
        },
        "status": {"acceptedNames": names, "storedVersions": ["v1"]},
    });
    let key = format!("/registry/apiextensions.k8s.io/customresourcedefinitions/{name}");
    TxnOp::put(key, value.to_string(), None)
}

/// The other servers, as far as etcd knows of them. Clones are the same servers.
#[derive(Clone)]
pub struct Others {
    registry: Registry,
    servers: Arc<Vec<Server>>,
    /// Group version to resources, which all of them serve.
    served: Arc<Map<String, Value>>,
    written: Arc<AtomicUsize>,
}

struct Server {
    id: String,
    address: Loopback,
}

impl Others {
    pub fn new(etcd: Client, count: usize, served: &[ServedResource]) -> Self {
        let servers = (0..count).map(|number| Server {
            id: format!("server-{number}"),
            address: Loopback::new(),
        });
        Self {
            registry: Registry::new(etcd, "/registry"),
            servers: Arc::new(servers.collect()),
            served: Arc::new(pack(served)),
            written: Arc::default(),
        }
    }

    /// Where their proxies are.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(Server::endpoint).collect()
    }

    /// How many writes there were.
    pub fn written(&self) -> usize {
        self.written.load(Ordering::Relaxed)
    }

    pub async fn write_all(&mut self) {
        let servers = Arc::clone(&self.servers);
        for server in servers.iter() {
            self.write(server, &self.served).await;
        }
    }

    /// The first of them serves something else.
    pub async fn change(&mut self, number: usize) {
        let servers = Arc::clone(&self.servers);
        let mut served = Map::clone(&self.served);
        served.insert(
            "change.example/v1".to_owned(),
            json!([format!("things-{number}")]),
        );
        self.write(&servers[0], &served).await;
    }

    /// First what is known, then that it lives and which record is true.
    async fn write(&self, server: &Server, served: &Map<String, Value>) {
        let record = json!({
            "endpoint": server.endpoint(), "binaryVersion": "v1.36.0", "compatibilityVersion": "1.36",
            "resources": served,
        });
        let revision = self.put(&self.registry.server(&server.id), &record).await;
        self.write_live(server, revision).await;
    }

    async fn write_live(&self, server: &Server, record: i64) {
        let live = json!({"endpoint": server.endpoint(), "initialized": true, "ready": true, "recordRevision": record});
        self.put(&self.registry.live(&server.id), &live).await;
        let entry = json!({
            "apiVersion": "v1", "kind": "Endpoints",
            "metadata": {"name": server.id, "labels": {"apiserverIdentity": server.id}},
            "subsets": [{
                "addresses": [{"ip": server.endpoint().ip()}],
                "ports": [{"name": "https", "port": PORT, "protocol": "TCP"}],
            }],
        });
        self.put(&format!("/registry/peerserverleases/{}", server.id), &entry)
            .await;
    }

    async fn put(&self, key: &str, value: &Value) -> i64 {
        self.written.fetch_add(1, Ordering::Relaxed);
        self.registry.put(key, &value.to_string()).await
    }

    /// All of them write that they live, as often as proxies do.
    pub async fn keep_writing(self, time: Duration) {
        let end = Instant::now() + time;
        let count = u32::try_from(self.servers.len()).expect("a small number");
        let mut ticks = interval(RENEWAL / count);
        for server in self.servers.iter().cycle() {
            ticks.tick().await;
            if Instant::now() >= end {
                return;
            }
            // A record that is older than this is true.
            self.write_live(server, 1).await;
        }
    }
}

impl Server {
    fn endpoint(&self) -> SocketAddr {
        self.address.socket(PORT)
    }
}

fn pack(served: &[ServedResource]) -> Map<String, Value> {
    let mut packed: Map<String, Value> = Map::new();
    for resource in served {
        let names = packed
            .entry(group_version(&resource.group, &resource.version))
            .or_insert_with(|| json!([]));
        let subresources = resource.subresources.iter();
        let subresources = subresources.map(|name| format!("{}/{name}", resource.resource));
        let all = [resource.resource.clone()].into_iter().chain(subresources);
        names
            .as_array_mut()
            .expect("a list")
            .extend(all.map(Value::from));
    }
    packed
}
