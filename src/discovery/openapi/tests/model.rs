//! A document as plain data, written with readers' and writers' usual means.

use std::collections::BTreeMap;

use proptest::prelude::*;
use prost::Message;

use serde_json::Value as Json;

use super::super::{OpenApiFormat, group_version};

type Entries = BTreeMap<String, String>;

/// A document: names, and what is described of them.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Model {
    title: String,
    paths: Entries,
    definitions: Entries,
}

/// Documents that have much in common.
pub(super) fn documents() -> impl Strategy<Value = Model> {
    let paths: Vec<String> = [
        "api/v1",
        "apis/a",
        "apis/a/v1",
        "apis/b/v1",
        "apis/b/v2",
        "apis/c/v1",
    ]
    .iter()
    .flat_map(|place| {
        [
            format!("/{place}/"),
            format!("/{place}/namespaces/{{namespace}}/things"),
        ]
    })
    .chain(["/version/".to_owned(), "/apis/".to_owned()])
    .collect();
    let definitions: Vec<String> = (0..6)
        .map(|number| format!("io.example.v1.Kind{number}"))
        .collect();
    let entries = |names: Vec<String>| {
        let most = names.len();
        let some = prop::sample::subsequence(names, 0..=most).prop_shuffle();
        let described = some.prop_map(|names| {
            names
                .into_iter()
                .map(|name| ("[a-z\"\\\\{}]{0,150}", Just(name)))
                .collect::<Vec<_>>()
        });
        described
            .prop_flat_map(|named| named)
            .prop_map(|named| named.into_iter().map(|(text, name)| (name, text)).collect())
    };
    ("[a-z]{0,5}", entries(paths), entries(definitions)).prop_map(|(title, paths, definitions)| {
        Model {
            title,
            paths,
            definitions,
        }
    })
}

impl Model {
    /// With what it lacks; `None`: nothing.
    pub(super) fn with(
        &self,
        form: OpenApiFormat,
        peers: &[Self],
        groups: &[&str],
    ) -> Option<Self> {
        let mut all = self.clone();
        for peer in peers {
            let wanted = |path: &str| {
                group_version(path).is_some_and(|(group, version)| {
                    groups.contains(&group)
                        && (form != OpenApiFormat::V3Index || !version.is_empty())
                })
            };
            if add(&mut all.paths, &peer.paths, wanted) > 0 {
                add(&mut all.definitions, &peer.definitions, |_| true);
            }
        }
        if form == OpenApiFormat::V3Index {
            all.title.clear();
            all.definitions.clear();
        }
        (all.paths.len() > self.paths.len()).then_some(all)
    }

    /// What a reader finds in a document. The index has only paths.
    pub(super) fn read(form: OpenApiFormat, body: &[u8]) -> Self {
        if form == OpenApiFormat::V2Protobuf {
            let document = Document::decode(body).unwrap();
            let entries = |named: Vec<Named>| {
                let entry = |it: Named| (it.name, it.value.unwrap_or_default().description);
                named.into_iter().map(entry).collect()
            };
            return Self {
                title: document.title,
                paths: entries(document.paths.unwrap_or_default().path),
                definitions: entries(
                    document
                        .definitions
                        .unwrap_or_default()
                        .additional_properties,
                ),
            };
        }
        let document: Json = serde_json::from_slice(body).unwrap();
        let text = |it: &Json| it.as_str().unwrap_or_default().to_owned();
        let entries = |part: &str| {
            let members = document[part].as_object().into_iter().flatten();
            members
                .map(|(name, it)| (name.clone(), text(&it["description"])))
                .collect()
        };
        Self {
            title: text(&document["info"]),
            paths: entries("paths"),
            definitions: entries("definitions"),
        }
    }

    pub(super) fn write(&self, form: OpenApiFormat) -> Vec<u8> {
        match form {
            OpenApiFormat::V2Json => format!(
                r#"{{"swagger":"2.0","info":{},"paths":{},"definitions":{},"security":[]}}"#,
                quoted(&self.title),
                json(&self.paths),
                json(&self.definitions)
            )
            .into_bytes(),
            OpenApiFormat::V3Index => format!(r#"{{"paths":{}}}"#, json(&self.paths)).into_bytes(),
            OpenApiFormat::V2Protobuf => {
                let document = Document {
                    swagger: "2.0".to_owned(),
                    paths: Some(Paths {
                        path: named(&self.paths),
                    }),
                    definitions: Some(Definitions {
                        additional_properties: named(&self.definitions),
                    }),
                    title: self.title.clone(),
                };
                document.encode_to_vec()
            }
        }
    }
}

/// How many were added.
fn add(entries: &mut Entries, others: &Entries, wanted: impl Fn(&str) -> bool) -> usize {
    let before = entries.len();
    for (name, text) in others {
        if wanted(name) && !entries.contains_key(name) {
            entries.insert(name.clone(), text.clone());
        }
    }
    entries.len() - before
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

fn json(entries: &Entries) -> String {
    let members: Vec<_> = entries
        .iter()
        .map(|(name, text)| format!(r#"{}:{{"description":{}}}"#, quoted(name), quoted(text)))
        .collect();
    format!("{{{}}}", members.join(","))
}

fn named(entries: &Entries) -> Vec<Named> {
    let entry = |(name, text): (&String, &String)| Named {
        name: name.clone(),
        value: Some(Value {
            description: text.clone(),
        }),
    };
    entries.iter().map(entry).collect()
}

/// As gnostic's `OpenAPIv2.proto` has it; what is behind `definitions` here is another field there.
#[derive(Clone, PartialEq, Message)]
struct Document {
    #[prost(string, tag = "1")]
    swagger: String,
    #[prost(message, optional, tag = "8")]
    paths: Option<Paths>,
    #[prost(message, optional, tag = "9")]
    definitions: Option<Definitions>,
    #[prost(string, tag = "16")]
    title: String,
}

#[derive(Clone, PartialEq, Message)]
struct Paths {
    #[prost(message, repeated, tag = "2")]
    path: Vec<Named>,
}

#[derive(Clone, PartialEq, Message)]
struct Definitions {
    #[prost(message, repeated, tag = "1")]
    additional_properties: Vec<Named>,
}

#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "4")]
    description: String,
}
