//! Reading what kube-apiserver keeps in etcd: the envelope of a value, and why one cannot be read. Pure.
//!
//! A value is `k8s\0` and a protobuf `runtime.Unknown` around the object, or the object in plain JSON. Both come to the
//! same small form of an object, so that its rules are written once. The type must be named, as kube-apiserver always
//! does, and be the right one. No error repeats what a value contains, except its type.

mod endpoints;
mod lease;
mod storage_version;

use std::borrow::Cow;

use k8s_pb::apimachinery::pkg::runtime::{TypeMeta, Unknown};
use k8s_pb::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use prost::Message;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

pub use endpoints::{PeerEndpoint, encode_endpoints, endpoints};
pub use lease::{Lease, MANAGED_BY, RENEWAL, US, lease, micro_time, renewal};
pub use storage_version::{ServerVersions, storage_version, stored_resource};

use super::json::{self, Object, Unreadable};

/// What a value in Kubernetes' protobuf form begins with.
const PROTOBUF: &[u8] = b"k8s\0";

/// What a value begins with that kube-apiserver encrypted.
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
    /// Protobuf that does not parse. Why is not kept: the reason may quote the value.
    #[error("its protobuf cannot be read")]
    Protobuf,
    /// JSON that does not parse.
    #[error(transparent)]
    Json(#[from] Unreadable),
    /// Another object than the one asked for, or a version of it that is not known.
    #[error("expected {expected}, found {found:?}")]
    Kind {
        /// Kind of the object asked for.
        expected: &'static str,
        /// API version and kind of the object that is there.
        found: String,
    },
    /// A field that is missing, or has a value that cannot be used.
    #[error("{0} is missing or not usable")]
    Field(&'static str),
}

/// The type that an object must have.
struct Type {
    kind: &'static str,
    api_versions: &'static [&'static str],
}

impl Type {
    fn check(&self, api_version: &str, kind: &str) -> Result<(), Undecodable> {
        if kind == self.kind && self.api_versions.contains(&api_version) {
            return Ok(());
        }
        let found = format!("{api_version} {kind}");
        Err(Undecodable::Kind {
            expected: self.kind,
            found: found.trim().chars().take(QUOTED_CHARS).collect(),
        })
    }
}

/// An object without its envelope; its type is checked.
enum Body<'a> {
    Protobuf(Vec<u8>),
    Json(Cow<'a, [u8]>),
}

/// Reads an object into the form `T`, which JSON has at once and the protobuf message `P` is turned into.
fn decode<T, P>(value: &[u8], of: &Type) -> Result<T, Undecodable>
where
    T: DeserializeOwned + TryFrom<P, Error = Undecodable>,
    P: Message + Default,
{
    match open(value, of)? {
        Body::Protobuf(raw) => P::decode(raw.as_slice())
            .map_err(|_| Undecodable::Protobuf)?
            .try_into(),
        Body::Json(raw) => Ok(json::read(&raw)?),
    }
}

fn open<'a>(value: &'a [u8], of: &Type) -> Result<Body<'a>, Undecodable> {
    if value.starts_with(ENCRYPTED) {
        return Err(Undecodable::Encrypted);
    }
    if value.starts_with(b"{") {
        return plain(Cow::Borrowed(value), of);
    }
    let envelope = value
        .strip_prefix(PROTOBUF)
        .ok_or(Undecodable::NotKubernetes)?;
    let envelope = Unknown::decode(envelope).map_err(|_| Undecodable::Protobuf)?;
    if !envelope.content_encoding().is_empty() {
        return Err(Undecodable::Field("contentEncoding"));
    }
    let TypeMeta { api_version, kind } = envelope.type_meta.clone().unwrap_or_default();
    of.check(&api_version.unwrap_or_default(), &kind.unwrap_or_default())?;
    let raw = envelope.raw.clone().unwrap_or_default();
    match envelope.content_type() {
        "" | "application/vnd.kubernetes.protobuf" => Ok(Body::Protobuf(raw)),
        "application/json" => plain(Cow::Owned(raw), of),
        _ => Err(Undecodable::Field("contentType")),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JsonType {
    api_version: Option<String>,
    kind: Option<String>,
}

fn plain<'a>(raw: Cow<'a, [u8]>, of: &Type) -> Result<Body<'a>, Undecodable> {
    let JsonType { api_version, kind } = json::read(&raw)?;
    of.check(&api_version.unwrap_or_default(), &kind.unwrap_or_default())?;
    Ok(Body::Json(raw))
}

const API_SERVICE: Type = Type {
    kind: "APIService",
    api_versions: &[
        "apiregistration.k8s.io/v1",
        "apiregistration.k8s.io/v1beta1",
    ],
};

#[derive(Deserialize)]
struct ApiService {
    spec: Option<Object<ApiServiceSpec>>,
}

#[derive(Deserialize)]
struct ApiServiceSpec {
    service: Option<Object<IgnoredAny>>,
}

impl TryFrom<APIService> for ApiService {
    type Error = Undecodable;

    fn try_from(stored: APIService) -> Result<Self, Undecodable> {
        let spec = stored.spec.map(|spec| ApiServiceSpec {
            service: spec.service.map(|_| Object(IgnoredAny)),
        });
        Ok(Self {
            spec: spec.map(Object),
        })
    }
}

/// Whether a stored APIService is served by an aggregated apiserver, not by kube-apiserver itself.
pub fn is_aggregated(value: &[u8]) -> Result<bool, Undecodable> {
    let stored = decode::<ApiService, APIService>(value, &API_SERVICE)?;
    Ok(stored.spec.is_some_and(|spec| spec.0.service.is_some()))
}

#[cfg(test)]
mod tests;
