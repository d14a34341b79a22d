//! The contents of a large cluster's etcd: CustomResourceDefinitions as kube-apiserver stores them, and the keys of
//! many proxies.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use data_encoding::BASE64;
use etcd_client::{Client, Txn, TxnOp};
use kube_interop_proxy::cluster::codec::{PeerEndpoint, encode_endpoints};
use kube_interop_proxy::cluster::keys::{EtcdKeys, Topic};
use kube_interop_proxy::cluster::record::{LiveKey, Record, pack};
use kube_interop_proxy::kube::discovery::documents;
use kube_interop_proxy::kube::discovery::model::Document;
use kube_interop_proxy::kube::gvr::{Gvr, ServedSet};
use serde_json::{Value, json};

use testkit::addr::Loopback;

/// Puts of one transaction: etcd takes 128 at most, and 1.5 MiB.
const TOGETHER: usize = 64;

/// Writes `count` definitions of 3 to 8 KiB; the sum of their values' sizes.
pub async fn write_definitions(client: &mut Client, keys: &EtcdKeys, count: usize) -> usize {
    let prefix = keys.of(Topic::Definitions);
    let real = real_definition();
    let mut size = 0;
    let numbers: Vec<usize> = (0..count).collect();
    for numbers in numbers.chunks(TOGETHER) {
        let definitions = numbers.iter().map(|number| definition(&real, *number));
        let puts: Vec<_> = definitions
            .map(|(name, value)| {
                size += value.len();
                TxnOp::put(format!("{prefix}{name}"), value, None)
            })
            .collect();
        client
            .txn(Txn::new().and_then(puts))
            .await
            .expect("definitions are written");
    }
    size
}

/// One that a kube-apiserver v1.36 stored.
fn real_definition() -> Value {
    let stored = std::fs::read_to_string(data("etcd.jsonl")).expect("a recording of etcd");
    let named = "/apiextensions.k8s.io/customresourcedefinitions/";
    let line = stored.lines().find(|line| line.contains(named));
    let line: Value = serde_json::from_str(line.expect("a definition")).expect("JSON");
    let value = line["value"].as_str().expect("base64");
    let value = BASE64.decode(value.as_bytes()).expect("base64");
    serde_json::from_slice(&value).expect("a definition is stored as JSON")
}

/// Another name, and a schema of another size.
fn definition(real: &Value, number: usize) -> (String, Vec<u8>) {
    let group = format!("group-{}.example.com", number % 100);
    let plural = format!("things{number}");
    let name = format!("{plural}.{group}");
    let mut definition = real.clone();
    definition["metadata"]["name"] = json!(name);
    definition["spec"]["group"] = json!(group);
    definition["spec"]["names"]["plural"] = json!(plural);
    definition["status"]["acceptedNames"]["plural"] = json!(plural);
    let properties = (0..number % 50).map(|field| {
        let says = "What somebody wants of this thing, explained in a sentence or two.";
        let schema = json!({"type": "string", "description": says});
        (format!("field{field}"), schema)
    });
    definition["spec"]["validation"]["openAPIV3Schema"]["properties"] =
        Value::Object(properties.collect());
    let value = serde_json::to_vec(&definition).expect("JSON");
    (name, value)
}

/// What a kube-apiserver v1.36 serves, as if it served all of it in two older versions too: more than any does.
fn real_served() -> ServedSet {
    let documents = ["api.v2.json", "apis.v2.json"].map(|name| {
        let document = std::fs::read(data("discovery").join(name)).expect("a document");
        let groups = documents::aggregated(&document).expect("aggregated discovery");
        Document { groups }.served()
    });
    let in_older_versions = |gvr: Gvr| {
        let old = ["v1alpha1", "v1beta1"].map(|version| Gvr {
            version: version.to_owned(),
            ..gvr.clone()
        });
        old.into_iter().chain([gvr])
    };
    let served = documents.into_iter().flatten();
    served.flat_map(in_older_versions).collect()
}

fn data(name: &str) -> std::path::PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    data.join("kube-apiserver-v1.36").join(name)
}

/// A server of the cluster: what its proxy writes.
pub struct Peer {
    id: String,
    endpoint: SocketAddr,
    served: ServedSet,
    record_revision: i64,
    generation: i64,
    /// Nobody listens there, and nobody else will.
    _address: Loopback,
}

impl Peer {
    /// `version`: servers of one version serve the same.
    pub fn new(number: usize, version: usize) -> Self {
        let address = Loopback::new();
        let mut served = real_served();
        served.insert(thing(&format!("things-of-version-{version}")));
        Self {
            id: format!("server-{number}"),
            endpoint: address.socket(6443),
            served,
            record_revision: 0,
            generation: 0,
            _address: address,
        }
    }

    /// Where requests for what it serves go.
    pub fn endpoint(&self) -> SocketAddr {
        self.endpoint
    }

    /// How many resources it serves.
    pub fn serves(&self) -> usize {
        self.served.len()
    }

    /// Serves one resource more, or no longer.
    pub fn serve(&mut self, resource: &str, served: bool) {
        if served {
            self.served.insert(thing(resource));
        } else {
            self.served.remove(&thing(resource));
        }
    }

    /// First what is known, then that it lives and which record is true; when etcd had answered each.
    pub async fn write(&mut self, client: &mut Client, keys: &EtcdKeys) -> [Instant; 2] {
        let record = Record {
            endpoint: self.endpoint,
            binary_version: Some("v1.36.0".to_owned()),
            compatibility_version: Some("1.36".to_owned()),
            history_start: None,
            history_void: false,
            api_server_id: None,
            resources: pack(&self.served),
        };
        let record = serde_json::to_vec(&record).expect("JSON");
        self.record_revision = put(client, keys, Topic::Servers, &self.id, record).await;
        let recorded = Instant::now();
        let live = self.live();
        put(client, keys, Topic::Live, &self.id, live).await;
        [recorded, Instant::now()]
    }

    /// What is written again and again while nothing changes.
    pub async fn write_again(&mut self, client: &mut Client, keys: &EtcdKeys) {
        let live = self.live();
        put(client, keys, Topic::Live, &self.id, live).await;
        self.generation += 1;
        let endpoint = PeerEndpoint {
            server: self.id.clone(),
            address: self.endpoint,
        };
        let endpoint = encode_endpoints(&endpoint, self.generation);
        put(client, keys, Topic::PeerEndpoints, &self.id, endpoint).await;
    }

    fn live(&self) -> Vec<u8> {
        let live = LiveKey {
            endpoint: self.endpoint,
            api_server_id: None,
            initialized: true,
            ready: true,
            record_revision: Some(self.record_revision),
        };
        serde_json::to_vec(&live).expect("JSON")
    }
}

fn thing(resource: &str) -> Gvr {
    Gvr {
        group: "convergence.example".to_owned(),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        subresource: String::new(),
    }
}

/// The path of a request for a resource of [`Peer::serve`].
pub fn path(resource: &str) -> String {
    format!("/apis/convergence.example/v1/{resource}")
}

async fn put(client: &mut Client, keys: &EtcdKeys, topic: Topic, id: &str, value: Vec<u8>) -> i64 {
    let key = format!("{}{id}", keys.of(topic));
    let answer = client.put(key, value, None).await.expect("a put");
    answer.header().expect("a header").revision()
}
