//! Which discovery document is merged, in which format, and why it cannot be. Pure.

use crate::kube::discovery::model::{self, Document};
use crate::kube::media_type;

/// A discovery document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DiscoveryDocument<'a> {
    /// Aggregated discovery; the local server's document is needed.
    Aggregated(AggregatedDocument),
    /// The legacy list of groups, `/apis`; the local server's document is needed.
    Groups,
    /// `/apis/<group>`
    Group(&'a str),
    /// `/apis/<group>/<version>`, or `/api/<version>` with an empty group.
    Resources { group: &'a str, version: &'a str },
}

/// One of the two documents of aggregated discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AggregatedDocument {
    /// `/api`
    Core,
    /// `/apis`
    Groups,
}

impl AggregatedDocument {
    /// The groups of `document` that belong in it.
    pub(super) fn of(self, document: &Document) -> impl Iterator<Item = &model::Group> {
        let groups = document.groups.iter();
        groups.filter(move |group| group.name.is_empty() == (self == Self::Core))
    }
}

/// How a document is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DocumentFormat {
    Json,
    Yaml,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

impl DocumentFormat {
    /// By `Content-Type`. `None`: nothing can be added to documents in this format, for example CBOR, which kube-apiserver
    /// serves only if a feature gate is on.
    pub fn of(content_type: &str) -> Option<Self> {
        let essence = media_type::essence(content_type);
        let known = [
            (media_type::JSON, Self::Json),
            (media_type::YAML, Self::Yaml),
            (media_type::PROTOBUF, Self::Protobuf),
        ];
        let known = known
            .into_iter()
            .find(|(name, _)| essence.eq_ignore_ascii_case(name));
        known.map(|(_, format)| format)
    }
}

/// Why nothing can be added to a document.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    #[error("the document cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the document cannot be read: {0}")]
    Yaml(#[from] serde_yaml::Error),
    #[error("the document cannot be read: {0}")]
    Protobuf(#[from] prost::DecodeError),
    /// A CRD or an aggregated API has the name of a built-in resource that only servers without a target serve.
    #[error("a built-in resource of it cannot be asked for")]
    Stale,
    /// Protobuf of another kind, or without Kubernetes' envelope.
    #[error("not an {0}")]
    Kind(&'static str),
}
