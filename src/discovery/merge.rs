//! Adds what others list to a discovery document, in the form in which the local apiserver wrote it. Pure.
//!
//! A document is a tree of lists whose entries have names, whatever its form. The local server's entries stay, with all
//! their fields, and come first. There are two exceptions: an entry of aggregated discovery that stands only for
//! subresources is completed where others serve the resource itself, and a CRD's entry is replaced where it is named like a
//! built-in resource that only others serve. In protobuf, fields that [`model`] and [`legacy`] do not have are lost,
//! but only in documents that something is added to.

use std::collections::{BTreeSet, HashMap};

use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::kube::discovery::DiscoveryDocument;
use crate::kube::discovery::legacy;
use crate::kube::discovery::model::{self, Document, STALE};
use crate::kube::envelope::{self, EnvelopeError};
use crate::kube::media_type;

/// How a document is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum DocumentFormat {
    Json,
    Yaml,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

impl DocumentFormat {
    /// By `Content-Type`. `None`: nothing can be added to documents in this format, for example CBOR, which kube-apiserver
    /// serves only if a feature gate is on.
    pub(super) fn of(content_type: &str) -> Option<Self> {
        match &*media_type::essence(content_type).to_ascii_lowercase() {
            media_type::JSON => Some(Self::Json),
            media_type::YAML => Some(Self::Yaml),
            media_type::PROTOBUF => Some(Self::Protobuf),
            _ => None,
        }
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
    Protobuf(#[from] EnvelopeError),
    /// A CRD or an aggregated API has the name of a built-in resource that only servers without a target serve.
    #[error("a built-in resource of it cannot be asked for")]
    Stale,
    #[error("nothing can be added to the form {0:?}")]
    Form(String),
    #[error("not an {0}")]
    Kind(&'static str),
    #[error("the document has something else in place of a list or its entry")]
    Entry,
}

/// A kind of document to which something can be added.
struct Kind {
    name: &'static str,
    /// Its lists, each in the entries of the one before: the field, and where an entry has its name.
    lists: &'static [(&'static str, &'static str)],
    decode: fn(&[u8]) -> Result<Value, MergeError>,
    encode: fn(&Value) -> Result<Vec<u8>, MergeError>,
}

const AGGREGATED: Kind = Kind {
    name: "APIGroupDiscoveryList",
    lists: &[
        ("items", "/metadata/name"),
        ("versions", "/version"),
        ("resources", "/resource"),
        ("subresources", "/subresource"),
    ],
    decode: decode::<model::GroupList>,
    encode: encode::<model::GroupList>,
};

const GROUPS: Kind = Kind {
    name: "APIGroupList",
    lists: &[("groups", "/name"), ("versions", "/version")],
    decode: decode::<legacy::GroupList>,
    encode: encode::<legacy::GroupList>,
};

const GROUP: Kind = Kind {
    name: "APIGroup",
    lists: &[("versions", "/version")],
    decode: decode::<legacy::Group>,
    encode: encode::<legacy::Group>,
};

const RESOURCES: Kind = Kind {
    name: "APIResourceList",
    lists: &[("resources", "/name")],
    decode: decode::<legacy::ResourceList>,
    encode: encode::<legacy::ResourceList>,
};

/// The kind of an apiserver's answer; `None`: nothing is ever added to it. `/api` in the legacy form says the versions of
/// the core group, which has only one.
fn kind_of(document: &DiscoveryDocument, aggregated: bool) -> Option<&'static Kind> {
    Some(match document {
        DiscoveryDocument::Versions | DiscoveryDocument::Groups if aggregated => &AGGREGATED,
        DiscoveryDocument::Groups => &GROUPS,
        DiscoveryDocument::Group(_) => &GROUP,
        DiscoveryDocument::Resources(_) => &RESOURCES,
        _ => return None,
    })
}

/// What `others` list, as such a document; `None`: nothing.
fn listed_by(
    document: &DiscoveryDocument,
    kind: &Kind,
    others: &Document,
) -> Result<Option<Value>, MergeError> {
    let is_core = *document == DiscoveryDocument::Versions;
    let groups = others.groups.iter();
    let groups = groups.filter(|group| group.name().is_empty() == is_core);
    let listed = match document {
        DiscoveryDocument::Group(name) => match others.group(name) {
            Some(group) => serde_json::to_value(legacy::Group::from(group))?,
            None => return Ok(None),
        },
        DiscoveryDocument::Resources(of) => match others.version(&of.group, &of.version) {
            Some(version) => serde_json::to_value(legacy::ResourceList::new(&of.group, version))?,
            None => return Ok(None),
        },
        _ if kind.name == AGGREGATED.name => serde_json::to_value(model::GroupList {
            items: groups.cloned().collect(),
        })?,
        _ => serde_json::to_value(legacy::GroupList {
            groups: groups.map(Into::into).collect(),
        })?,
    };
    Ok(Some(listed))
}

/// The local server's document with what it lacks of `all`, one after the other; `None` where it lacks nothing, and the
/// local bytes may pass as they are. Without a local document, that of a group or of a version is made of what others list
/// fresh; `None` where they do not. Each of `all` comes with its `PeerDiscovery::replaces`.
/// [`MergeError::Stale`]: the local server lists a CRD's resource in place of a stale one.
pub fn merge<'a>(
    document: &DiscoveryDocument,
    content_type: &str,
    body: Option<&[u8]>,
    all: impl IntoIterator<Item = (&'a Document, bool)>,
) -> Result<Option<Vec<u8>>, MergeError> {
    let Some(kind) = kind_of(document, media_type::is_aggregated(content_type)) else {
        return Ok(None);
    };
    let format = DocumentFormat::of(content_type);
    let format = format.ok_or_else(|| MergeError::Form(content_type.to_owned()))?;
    let mut merged = None;
    let mut merging = Merging::default();
    for (others, replaces) in all {
        let Some(listed) = listed_by(document, kind, others)? else {
            continue;
        };
        let of = document.group_version();
        let version = of.and_then(|of| others.version(&of.group, &of.version));
        if merged.is_none() {
            merged = match body {
                Some(body) => Some(kind.read(format, body)?),
                None => kind.made(document, &listed, version),
            };
        }
        let Some(local) = &mut merged else {
            continue;
        };
        merging.replaces = replaces;
        if let Some(version) = version {
            merging.remove_replaced(local, version)?;
        }
        merging.add(kind.lists, local, &listed)?;
    }
    let changed = merged.filter(|_| merging.changed || body.is_none());
    changed.map(|it| kind.write(format, &it)).transpose()
}

impl Kind {
    fn read(&self, format: DocumentFormat, body: &[u8]) -> Result<Value, MergeError> {
        let document: Value = match format {
            DocumentFormat::Json => serde_json::from_slice(body)?,
            DocumentFormat::Yaml => serde_yaml::from_slice(body)?,
            DocumentFormat::Protobuf => (self.decode)(body)?,
        };
        match document.get("kind") == Some(&self.name.into()) {
            true => Ok(document),
            false => Err(MergeError::Kind(self.name)),
        }
    }

    /// A document that the local server does not have. `version`: what others list, if it is that of a version.
    fn made(
        &self,
        document: &DiscoveryDocument,
        listed: &Value,
        version: Option<&model::Version>,
    ) -> Option<Value> {
        let is_fresh = version.is_some_and(|version| !version.is_stale());
        let is_made = is_fresh || matches!(document, DiscoveryDocument::Group(_));
        let mut made = listed.clone();
        made["kind"] = self.name.into();
        made["apiVersion"] = "v1".into();
        is_made.then_some(made)
    }

    fn write(&self, format: DocumentFormat, document: &Value) -> Result<Vec<u8>, MergeError> {
        match format {
            DocumentFormat::Json => {
                let mut text = serde_json::to_vec(document)?;
                text.push(b'\n');
                Ok(text)
            }
            DocumentFormat::Yaml => Ok(serde_yaml::to_string(document)?.into_bytes()),
            DocumentFormat::Protobuf => (self.encode)(document),
        }
    }
}

fn decode<M: Message + Default + Serialize>(body: &[u8]) -> Result<Value, MergeError> {
    let envelope = envelope::unwrap(body)?;
    let message = M::decode(envelope.raw()).map_err(EnvelopeError::from)?;
    let mut document = serde_json::to_value(message)?;
    let type_meta = envelope.type_meta.unwrap_or_default();
    document["kind"] = type_meta.kind().into();
    document["apiVersion"] = type_meta.api_version().into();
    Ok(document)
}

fn encode<M: Message + DeserializeOwned>(document: &Value) -> Result<Vec<u8>, MergeError> {
    let message = M::deserialize(document)?;
    let (version, kind) = (text(document, "/apiVersion"), text(document, "/kind"));
    Ok(envelope::wrap_object(version, kind, &message))
}

/// How a document is changed.
#[derive(Default)]
struct Merging {
    /// See `PeerDiscovery::replaces`.
    replaces: bool,
    changed: bool,
    /// An entry took the place of a local one in the version at hand.
    replaced: bool,
}

impl Merging {
    /// Adds to the lists of `local` what those of `other` have besides.
    fn add(
        &mut self,
        lists: &[(&str, &str)],
        local: &mut Value,
        other: &Value,
    ) -> Result<(), MergeError> {
        let Some(((field, name), deeper)) = lists.split_first() else {
            return Ok(());
        };
        let Some(others @ [_, ..]) = other[*field].as_array().map(Vec::as_slice) else {
            return Ok(());
        };
        let entry = local.as_object_mut().ok_or(MergeError::Entry)?;
        let list = entry.entry(*field).or_insert(Value::Null);
        if list.is_null() {
            *list = json!([]);
        }
        let list = list.as_array_mut().ok_or(MergeError::Entry)?;
        let named = list.iter().enumerate();
        let named: HashMap<String, usize> = named
            .map(|(index, entry)| (text(entry, name).to_owned(), index))
            .collect();
        for other in others {
            let known = named.get(text(other, name));
            let Some(local) = known.and_then(|index| list.get_mut(*index)) else {
                list.push(other.clone());
                self.changed = true;
                continue;
            };
            if *field == "resources" && !deeper.is_empty() {
                self.replace(local, other);
            }
            self.add(deeper, local, other)?;
            let replaced = *field == "versions" && std::mem::take(&mut self.replaced);
            if replaced && other["freshness"] == STALE {
                local["freshness"] = STALE.into();
            }
        }
        Ok(())
    }

    /// Takes over the other entry of a resource of aggregated discovery, if it says more. What had only subresources keeps
    /// them.
    fn replace(&mut self, local: &mut Value, other: &Value) {
        let replaced = self.replaces && is_served(local) && is_served(other);
        let completed = !is_served(local) && !text(other, "/responseKind/kind").is_empty();
        if !replaced && !completed {
            return;
        }
        let before = std::mem::replace(local, other.clone());
        if completed {
            local["subresources"] = before["subresources"].clone();
        }
        self.replaced |= replaced;
        self.changed = true;
    }

    /// Removes resources from a legacy list that those of `other` take the place of, with all subresources.
    fn remove_replaced(
        &mut self,
        local: &mut Value,
        other: &model::Version,
    ) -> Result<(), MergeError> {
        let Value::Array(list) = &mut local["resources"] else {
            return Ok(());
        };
        // Of what only subresources are listed, they may be the local server's own.
        let listed: BTreeSet<&str> = list.iter().map(|entry| text(entry, "/name")).collect();
        let others = other.resources.iter();
        let others = others.filter(|it| self.replaces && it.is_served());
        let others = others.map(|it| it.name.as_str());
        let taken: BTreeSet<&str> = others.filter(|name| listed.contains(name)).collect();
        list.retain(|entry| {
            let name = text(entry, "/name");
            !taken.contains(name.split_once('/').map_or(name, |(resource, _)| resource))
        });
        self.changed |= !taken.is_empty();
        match !taken.is_empty() && other.is_stale() {
            true => Err(MergeError::Stale),
            false => Ok(()),
        }
    }
}

fn text<'a>(entry: &'a Value, pointer: &str) -> &'a str {
    let text = entry.pointer(pointer).and_then(Value::as_str);
    text.unwrap_or_default()
}

/// As [`model::Resource::is_served`].
fn is_served(resource: &Value) -> bool {
    let verbs = resource["verbs"].as_array();
    !text(resource, "/responseKind/kind").is_empty() || verbs.is_some_and(|it| !it.is_empty())
}
