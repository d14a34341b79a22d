//! Peer endpoints: where the native mixed version proxy of a server can be reached. Pure.
//!
//! kube-apiserver writes them if its native proxy is enabled. Otherwise our proxy writes them in the same format.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use k8s_pb::api::core::v1 as protobuf;
use k8s_pb::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::Deserialize;

use super::{JsonObject, Type, Undecodable, decode};
use crate::kube::envelope;

const ENDPOINTS: Type = Type {
    kind: "Endpoints",
    api_versions: &["v1"],
};
const IDENTITY: &str = "apiserverIdentity";
const PORT: &str = "https";

/// Where peers reach a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerEndpoint {
    /// ID of the server, the name of its identity Lease.
    pub server: String,
    /// Its address.
    pub address: SocketAddr,
}

#[derive(Deserialize)]
struct EndpointsFields {
    metadata: Option<JsonObject<Metadata>>,
    subsets: Option<Vec<JsonObject<Subset>>>,
}

#[derive(Deserialize)]
struct Metadata {
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Subset {
    addresses: Option<Vec<JsonObject<Address>>>,
    ports: Option<Vec<JsonObject<Port>>>,
}

#[derive(Deserialize)]
struct Address {
    ip: Option<String>,
}

#[derive(Deserialize)]
struct Port {
    name: Option<String>,
    port: Option<i32>,
}

impl TryFrom<protobuf::Endpoints> for EndpointsFields {
    type Error = Undecodable;

    fn try_from(stored: protobuf::Endpoints) -> Result<Self, Undecodable> {
        let address = |address: protobuf::EndpointAddress| JsonObject(Address { ip: address.ip });
        let port = |port: protobuf::EndpointPort| {
            JsonObject(Port {
                name: port.name,
                port: port.port,
            })
        };
        let subset = |subset: protobuf::EndpointSubset| {
            JsonObject(Subset {
                addresses: Some(subset.addresses.into_iter().map(address).collect()),
                ports: Some(subset.ports.into_iter().map(port).collect()),
            })
        };
        let metadata = stored.metadata.map(|metadata| Metadata {
            labels: Some(metadata.labels),
        });
        Ok(Self {
            metadata: metadata.map(JsonObject),
            subsets: Some(stored.subsets.into_iter().map(subset).collect()),
        })
    }
}

/// Reads the value of `peerserverleases/<server>`.
pub fn endpoints(value: &[u8]) -> Result<PeerEndpoint, Undecodable> {
    let form = decode::<EndpointsFields, protobuf::Endpoints>(value, &ENDPOINTS)?;
    let labels = form.metadata.and_then(|metadata| metadata.0.labels);
    let server = labels
        .and_then(|mut labels| labels.remove(IDENTITY))
        .filter(|server| !server.is_empty())
        .ok_or(Undecodable::Field("metadata.labels.apiserverIdentity"))?;
    let subset = form.subsets.unwrap_or_default().into_iter().next();
    let JsonObject(subset) = subset.ok_or(Undecodable::Field("subsets"))?;
    let ip = ip(&subset).ok_or(Undecodable::Field("subsets.addresses.ip"))?;
    let port = port(&subset).ok_or(Undecodable::Field("subsets.ports.port"))?;
    Ok(PeerEndpoint {
        server,
        address: SocketAddr::new(ip, port),
    })
}

/// Checks that a value is Endpoints.
pub fn is_endpoints(value: &[u8]) -> Result<(), Undecodable> {
    decode::<EndpointsFields, protobuf::Endpoints>(value, &ENDPOINTS).map(|_| ())
}

fn ip(subset: &Subset) -> Option<IpAddr> {
    let JsonObject(first) = subset.addresses.as_ref()?.first()?;
    let ip: IpAddr = first.ip.as_ref()?.parse().ok()?;
    let ip = ip.to_canonical();
    (!ip.is_unspecified() && !ip.is_multicast()).then_some(ip)
}

/// The port with this name, else the only port.
fn port(subset: &Subset) -> Option<u16> {
    let ports = subset.ports.as_deref()?;
    let named = ports
        .iter()
        .find(|port| port.0.name.as_deref() == Some(PORT));
    let port = match (named, ports) {
        (Some(port), _) | (None, [port]) => port,
        _ => return None,
    };
    u16::try_from(port.0.port?).ok().filter(|port| *port != 0)
}

/// The value of `peerserverleases/<server>`, as kube-apiserver writes it. `generation` increases with
/// each write, so that every write is a change.
pub fn encode_endpoints(endpoint: &PeerEndpoint, generation: i64) -> Vec<u8> {
    // Kubernetes' encoder also writes empty strings; this one omits them.
    let empty = || Some(String::new());
    let text = |text: &str| Some(text.to_owned());
    let object = protobuf::Endpoints {
        metadata: Some(ObjectMeta {
            name: empty(),
            generate_name: empty(),
            namespace: empty(),
            self_link: empty(),
            uid: empty(),
            resource_version: empty(),
            generation: Some(generation),
            creation_timestamp: Some(Time::default()),
            labels: [(IDENTITY.to_owned(), endpoint.server.clone())].into(),
            ..ObjectMeta::default()
        }),
        subsets: vec![protobuf::EndpointSubset {
            addresses: vec![protobuf::EndpointAddress {
                ip: Some(endpoint.address.ip().to_canonical().to_string()),
                hostname: empty(),
                ..protobuf::EndpointAddress::default()
            }],
            ports: vec![protobuf::EndpointPort {
                name: text(PORT),
                port: Some(endpoint.address.port().into()),
                protocol: text("TCP"),
                app_protocol: None,
            }],
            ..protobuf::EndpointSubset::default()
        }],
    };
    envelope::wrap_object("v1", ENDPOINTS.kind, &object)
}
