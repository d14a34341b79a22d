//! Peer endpoints: where the native mixed version proxy of a server can be reached. Pure.
//!
//! kube-apiserver writes them if its native proxy is enabled. Otherwise our proxy writes them in the same format.

use std::net::{IpAddr, SocketAddr};

use k8s_pb::api::core::v1 as protobuf;
use k8s_pb::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use prost::Message;
use serde::Deserialize;

use super::{Metadata, Type, Undecodable, decode, nullable};
use crate::kube::envelope;

const ENDPOINTS: Type = Type("Endpoints", "", &["v1"]);
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

#[derive(Message, Deserialize)]
#[serde(default)]
struct Endpoints {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "nullable")]
    subsets: Vec<Subset>,
}

#[derive(Message, Deserialize)]
#[serde(default)]
struct Subset {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "nullable")]
    addresses: Vec<Address>,
    #[prost(message, repeated, tag = "3")]
    #[serde(deserialize_with = "nullable")]
    ports: Vec<Port>,
}

#[derive(Message, Deserialize)]
#[serde(default)]
struct Address {
    #[prost(string, optional, tag = "1")]
    ip: Option<String>,
}

#[derive(Message, Deserialize)]
#[serde(default)]
struct Port {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(int32, optional, tag = "2")]
    port: Option<i32>,
}

/// Reads the value of `peerserverleases/<server>`.
pub fn endpoints(value: &[u8]) -> Result<PeerEndpoint, Undecodable> {
    let stored: Endpoints = decode(value, &ENDPOINTS)?;
    let server = stored
        .metadata
        .and_then(|mut metadata| metadata.labels.remove(IDENTITY))
        .filter(|server| !server.is_empty())
        .ok_or(Undecodable::Field("metadata.labels.apiserverIdentity"))?;
    let subset = stored.subsets.first();
    let subset = subset.ok_or(Undecodable::Field("subsets"))?;
    let ip = ip(subset).ok_or(Undecodable::Field("subsets.addresses.ip"))?;
    let port = port(subset).ok_or(Undecodable::Field("subsets.ports.port"))?;
    Ok(PeerEndpoint {
        server,
        address: SocketAddr::new(ip, port),
    })
}

/// Checks that a value is Endpoints.
pub fn is_endpoints(value: &[u8]) -> Result<(), Undecodable> {
    decode::<Endpoints>(value, &ENDPOINTS).map(drop)
}

fn ip(subset: &Subset) -> Option<IpAddr> {
    let ip: IpAddr = subset.addresses.first()?.ip.as_ref()?.parse().ok()?;
    let ip = ip.to_canonical();
    (!ip.is_unspecified() && !ip.is_multicast()).then_some(ip)
}

/// The port with this name, else the only port.
fn port(subset: &Subset) -> Option<u16> {
    let mut ports = subset.ports.iter();
    let named = ports.find(|port| port.name.as_deref() == Some(PORT));
    let port = match (named, &subset.ports[..]) {
        (Some(port), _) | (None, [port]) => port,
        _ => return None,
    };
    u16::try_from(port.port?).ok().filter(|port| *port != 0)
}

/// The value of `peerserverleases/<server>`, as kube-apiserver writes it. `generation` increases with
/// each write, so that every write is a change.
pub fn encode_endpoints(endpoint: &PeerEndpoint, generation: i64) -> Vec<u8> {
    // Kubernetes' encoder also writes empty strings; this one omits them.
    let empty = || Some(String::new());
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
                name: Some(PORT.to_owned()),
                port: Some(endpoint.address.port().into()),
                protocol: Some("TCP".to_owned()),
                app_protocol: None,
            }],
            ..protobuf::EndpointSubset::default()
        }],
    };
    envelope::wrap_object("v1", ENDPOINTS.0, &object)
}
