//! Decodes kube-apiserver's values in etcd: the envelope, the type check, and the errors. Pure.
//!
//! A value is `k8s\0` and a protobuf `runtime.Unknown` around the object, or the object in plain JSON. One type with the
//! few fields that matter reads both, so that its rules are written once. The value must name the right type, as kube-apiserver's values
//! do. Errors repeat nothing of a value except its type.

mod endpoints;
mod lease;
mod storage_version;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_pb::apimachinery::pkg::runtime::TypeMeta;
use prost::Message;
use serde::Deserialize;
use serde::de::DeserializeOwned;

pub use endpoints::{PeerEndpoint, encode_endpoints, endpoints, is_endpoints};
pub use lease::{Lease, MANAGED_BY, MANAGER, RENEWAL, lease, micro_time, renewal};
pub use storage_version::{ServerVersions, storage_version, stored_resource};

use super::json::{self, JsonError};
use crate::kube::envelope::{self, EnvelopeError};
use crate::kube::gvr;
use crate::kube::media_type;
use crate::kube::nullable;
use crate::kube::requestheader::{ConfigMap, MalformedList, PublishedNames};

/// Prefix of the values that kube-apiserver encrypts.
const ENCRYPTED: &[u8] = b"k8s:enc:";

/// Longest type name that an error repeats, in characters.
const QUOTED_CHARS: usize = 100;

/// Why a value cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Undecodable {
    /// kube-apiserver encrypted it; only kube-apiserver has the key.
    #[error("it is encrypted")]
    Encrypted,
    /// It is neither protobuf with Kubernetes' prefix nor a JSON object.
    #[error("it is not in a form that Kubernetes stores")]
    NotKubernetes,
    /// Protobuf that does not parse. The reason is dropped because it may quote the value.
    #[error("its protobuf cannot be read")]
    Protobuf,
    /// JSON that does not parse.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// Another type than the expected one, or an unknown version of it.
    #[error("expected {expected}, found {found:?}")]
    Kind {
        /// The expected kind.
        expected: &'static str,
        /// API version and kind of the value.
        found: String,
    },
    /// A field is missing or invalid.
    #[error("{0} is missing or not usable")]
    Field(&'static str),
    /// A list of header names.
    #[error(transparent)]
    Names(#[from] MalformedList),
}

/// The type that an object must have: its kind, its group, and the versions in which it is stored.
struct Type(&'static str, &'static str, &'static [&'static str]);

impl Type {
    fn check(&self, api_version: &str, kind: &str) -> Result<(), Undecodable> {
        let Self(expected, group, versions) = self;
        let is_it = |version: &&str| gvr::api_version(group, version) == api_version;
        if kind == *expected && versions.iter().any(is_it) {
            return Ok(());
        }
        let found = format!("{api_version} {kind}");
        Err(Undecodable::Kind {
            expected,
            found: found.trim().chars().take(QUOTED_CHARS).collect(),
        })
    }
}

/// What is read of an object's metadata.
#[derive(Message, Deserialize)]
#[serde(default)]
struct Metadata {
    #[prost(string, tag = "5")]
    #[serde(deserialize_with = "nullable")]
    uid: String,
    #[prost(btree_map = "string, string", tag = "11")]
    #[serde(deserialize_with = "nullable")]
    labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    #[serde(deserialize_with = "nullable")]
    annotations: BTreeMap<String, String>,
}

/// Decodes an object of this type.
fn decode<T: Message + Default + DeserializeOwned>(
    value: &[u8],
    of: &Type,
) -> Result<T, Undecodable> {
    if value.starts_with(ENCRYPTED) {
        return Err(Undecodable::Encrypted);
    }
    if value.starts_with(b"{") {
        return plain(value, of);
    }
    let envelope = envelope::unwrap(value).map_err(|error| match error {
        EnvelopeError::Magic => Undecodable::NotKubernetes,
        EnvelopeError::Protobuf(_) => Undecodable::Protobuf,
    })?;
    if !envelope.content_encoding().is_empty() {
        return Err(Undecodable::Field("contentEncoding"));
    }
    let TypeMeta { api_version, kind } = envelope.type_meta.clone().unwrap_or_default();
    of.check(&api_version.unwrap_or_default(), &kind.unwrap_or_default())?;
    match envelope.content_type() {
        "" | media_type::PROTOBUF => T::decode(envelope.raw()).map_err(|_| Undecodable::Protobuf),
        media_type::JSON => plain(envelope.raw(), of),
        _ => Err(Undecodable::Field("contentType")),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JsonType {
    api_version: Option<String>,
    kind: Option<String>,
}

fn plain<T: DeserializeOwned>(raw: &[u8], of: &Type) -> Result<T, Undecodable> {
    let JsonType { api_version, kind } = json::read(raw)?;
    of.check(&api_version.unwrap_or_default(), &kind.unwrap_or_default())?;
    Ok(json::read(raw)?)
}

const API_SERVICE: Type = Type("APIService", "apiregistration.k8s.io", &["v1", "v1beta1"]);

#[derive(Message, Deserialize)]
#[serde(default)]
struct ApiService {
    #[prost(message, optional, tag = "2")]
    spec: Option<ApiServiceSpec>,
}

#[derive(Message, Deserialize)]
#[serde(default)]
struct ApiServiceSpec {
    #[prost(message, optional, tag = "1")]
    service: Option<Anything>,
}

/// An object of which only its presence counts.
#[derive(Message, Deserialize)]
struct Anything {}

/// Whether a stored APIService is served by an aggregated apiserver, not by kube-apiserver itself.
pub fn is_aggregated(value: &[u8]) -> Result<bool, Undecodable> {
    let stored: ApiService = decode(value, &API_SERVICE)?;
    Ok(stored.spec.is_some_and(|spec| spec.service.is_some()))
}

const CONFIG_MAP: Type = Type("ConfigMap", "", &["v1"]);

/// The header names that kube-apiservers have published in `kube-system/extension-apiserver-authentication`.
pub fn header_names(value: &[u8]) -> Result<PublishedNames, Undecodable> {
    let stored: ConfigMap = decode(value, &CONFIG_MAP)?;
    Ok(PublishedNames::read(&stored.data)?)
}

/// Most versions of a CustomResourceDefinition that are kept.
const MOST_VERSIONS: usize = 100;

const DEFINITION: Type = Type(
    "CustomResourceDefinition",
    "apiextensions.k8s.io",
    &["v1", "v1beta1"],
);

// In both versions the fields that are read here have the same numbers.
#[derive(Message, Deserialize)]
#[serde(default)]
struct CustomResourceDefinition {
    #[prost(message, optional, tag = "2")]
    spec: Option<DefinitionSpec>,
}

#[derive(Message, Deserialize)]
#[serde(default)]
struct DefinitionSpec {
    /// The only version, in objects of before Kubernetes 1.11.
    #[prost(string, optional, tag = "2")]
    version: Option<String>,
    #[prost(message, repeated, tag = "7")]
    #[serde(deserialize_with = "nullable")]
    versions: Vec<DefinitionVersion>,
}

#[derive(Message, Deserialize)]
struct DefinitionVersion {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(bool, tag = "2")]
    #[serde(default)]
    served: bool,
}

/// The versions that a stored CustomResourceDefinition serves.
pub fn served_versions(value: &[u8]) -> Result<Arc<[Box<str>]>, Undecodable> {
    let stored: CustomResourceDefinition = decode(value, &DEFINITION)?;
    let spec = stored.spec.ok_or(Undecodable::Field("spec"))?;
    let DefinitionSpec { version, versions } = spec;
    if versions.len() > MOST_VERSIONS {
        return Err(Undecodable::Field("spec.versions"));
    }
    let only = version.filter(|_| versions.is_empty());
    let served = versions.into_iter().filter(|version| version.served);
    let names = served.map(|version| version.name).chain(only);
    Ok(names.map(String::into_boxed_str).collect())
}

#[cfg(test)]
mod tests;
