//! Adding what others list to a discovery document, in whichever form the local server wrote it. Pure.

use super::aggregated::{self, Part};
use super::others::Others;
use super::{legacy, protobuf};

/// A discovery document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum What<'a> {
    /// Aggregated discovery; the local server's document is needed.
    Aggregated(Part),
    /// The legacy list of groups, `/apis`; the local server's document is needed.
    Groups,
    /// `/apis/<group>`
    Group(&'a str),
    /// `/apis/<group>/<version>`, or `/api/<version>` with an empty group.
    Resources {
        /// API group, empty for the core group.
        group: &'a str,
        /// API version.
        version: &'a str,
    },
}

/// How a document is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// `application/json`
    Json,
    /// `application/yaml`
    Yaml,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

impl Form {
    /// That of a `Content-Type`. `None` for what cannot be added to: CBOR, which kube-apiserver does not serve unless it is
    /// told to, and whatever else there may be.
    pub fn of(content_type: &str) -> Option<Self> {
        let media_type = content_type.split(';').next().unwrap_or("").trim();
        let known = [
            ("application/json", Self::Json),
            ("application/yaml", Self::Yaml),
            ("application/vnd.kubernetes.protobuf", Self::Protobuf),
        ];
        let known = known
            .into_iter()
            .find(|(name, _)| media_type.eq_ignore_ascii_case(name));
        known.map(|(_, form)| form)
    }
}

/// Why nothing can be added to a document.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not the JSON that is expected.
    #[error("the document cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// It is not the YAML that is expected.
    #[error("the document cannot be read: {0}")]
    Yaml(#[from] serde_yaml::Error),
    /// It is not the protobuf that is expected.
    #[error("the document cannot be read: {0}")]
    Protobuf(#[from] prost::DecodeError),
    /// It is protobuf of another kind, or without Kubernetes' envelope.
    #[error("not an {0}")]
    Kind(&'static str),
}

/// The local server's document with what it lacks; `None` where it lacks nothing, and the local bytes may pass as they
/// are. Without a local document ([`What::Group`], [`What::Resources`]) it is made from what others list fresh; `None`
/// where they do not.
pub fn merge(
    what: What<'_>,
    form: Form,
    body: Option<&[u8]>,
    others: &Others,
) -> Result<Option<Vec<u8>>, Error> {
    match form {
        Form::Json => Ok(json(what, body, others)?),
        Form::Yaml => {
            let body = body.map(from_yaml).transpose()?;
            let merged = json(what, body.as_deref(), others)?;
            Ok(merged.as_deref().map(to_yaml).transpose()?)
        }
        Form::Protobuf => protobuf::merge(what, body, others),
    }
}

fn json(
    what: What<'_>,
    body: Option<&[u8]>,
    others: &Others,
) -> Result<Option<Vec<u8>>, serde_json::Error> {
    match (what, body) {
        (What::Aggregated(part), Some(body)) => aggregated::merge(part, body, others),
        (What::Groups, Some(body)) => legacy::groups(body, others),
        (What::Group(name), body) => legacy::group(name, body, others),
        (What::Resources { group, version }, body) => {
            legacy::resources(group, version, body, others)
        }
        (What::Aggregated(_) | What::Groups, None) => Ok(None),
    }
}

fn from_yaml(body: &[u8]) -> Result<Vec<u8>, Error> {
    let value: serde_json::Value = serde_yaml::from_slice(body)?;
    Ok(serde_json::to_vec(&value)?)
}

/// In the order of names, as kube-apiserver writes YAML.
fn to_yaml(body: &[u8]) -> Result<Vec<u8>, Error> {
    let value: serde_json::Value = serde_json::from_slice(body)?;
    Ok(serde_yaml::to_string(&value)?.into_bytes())
}
