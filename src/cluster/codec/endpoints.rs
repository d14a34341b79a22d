//! Peer endpoints: where the native mixed version proxy of a server can be reached. Pure.
//!
//! The native proxy writes them itself where it is on. Where it is not, a proxy writes them for it, in the same bytes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use k8s_pb::api::core::v1 as protobuf;
use k8s_pb::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_pb::apimachinery::pkg::runtime::{TypeMeta, Unknown};
use prost::Message;
use serde::Deserialize;

use super::{Object, PROTOBUF, Type, Undecodable, decode};

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
struct Form {
    metadata: Option<Object<Metadata>>,
    subsets: Option<Vec<Object<Subset>>>,
}

#[derive(Deserialize)]
struct Metadata {
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Subset {
    addresses: Option<Vec<Object<Address>>>,
    ports: Option<Vec<Object<Port>>>,
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

impl TryFrom<protobuf::Endpoints> for Form {
    type Error = Undecodable;

    fn try_from(stored: protobuf::Endpoints) -> Result<Self, Undecodable> {
        let address = |address: protobuf::EndpointAddress| Object(Address { ip: address.ip });
        let port = |port: protobuf::EndpointPort| {
            Object(Port {
                name: port.name,
                port: port.port,
            })
        };
        let subset = |subset: protobuf::EndpointSubset| {
            Object(Subset {
                addresses: Some(subset.addresses.into_iter().map(address).collect()),
                ports: Some(subset.ports.into_iter().map(port).collect()),
            })
        };
        let metadata = stored.metadata.map(|metadata| Metadata {
            labels: Some(metadata.labels),
        });
        Ok(Self {
            metadata: metadata.map(Object),
            subsets: Some(stored.subsets.into_iter().map(subset).collect()),
        })
    }
}

/// Reads the value of `peerserverleases/<server>`.
pub fn endpoints(value: &[u8]) -> Result<PeerEndpoint, Undecodable> {
    let form = decode::<Form, protobuf::Endpoints>(value, &ENDPOINTS)?;
    let labels = form.metadata.and_then(|metadata| metadata.0.labels);
    let server = labels
        .and_then(|mut labels| labels.remove(IDENTITY))
        .filter(|server| !server.is_empty())
        .ok_or(Undecodable::Field("metadata.labels.apiserverIdentity"))?;
    let subset = form.subsets.unwrap_or_default().into_iter().next();
    let Object(subset) = subset.ok_or(Undecodable::Field("subsets"))?;
    let ip = ip(&subset).ok_or(Undecodable::Field("subsets.addresses.ip"))?;
    let port = port(&subset).ok_or(Undecodable::Field("subsets.ports.port"))?;
    Ok(PeerEndpoint {
        server,
        address: SocketAddr::new(ip, port),
    })
}

fn ip(subset: &Subset) -> Option<IpAddr> {
    let Object(first) = subset.addresses.as_ref()?.first()?;
    let ip: IpAddr = first.ip.as_ref()?.parse().ok()?;
    let ip = ip.to_canonical();
    (!ip.is_unspecified() && !ip.is_multicast()).then_some(ip)
}

/// The port of that name, else the only one.
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

/// The value of `peerserverleases/<server>`, as kube-apiserver writes it. It counts `generation` up with each write, so
/// that none is left out for having changed nothing.
pub fn encode_endpoints(endpoint: &PeerEndpoint, generation: i64) -> Vec<u8> {
    // Kubernetes' own encoder writes empty texts too, this one only those that are set.
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
    let envelope = Unknown {
        type_meta: Some(TypeMeta {
            api_version: text("v1"),
            kind: text(ENDPOINTS.kind),
        }),
        raw: Some(object.encode_to_vec()),
        content_encoding: empty(),
        content_type: empty(),
    };
    let mut value = PROTOBUF.to_vec();
    value.extend(envelope.encode_to_vec());
    value
}
