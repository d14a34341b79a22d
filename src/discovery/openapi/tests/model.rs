//! A document as plain data, written with readers' and writers' usual means.

use proptest::prelude::*;
use prost::Message;

use super::super::{OpenApiFormat, OpenApiPath};

type Entries = Vec<(String, String)>;

/// A document: names, and what is described of them.
#[derive(Debug, Clone)]
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
                OpenApiPath::parse(path).is_some_and(|place| {
                    groups.contains(&place.group)
                        && (form != OpenApiFormat::V3Index || !place.version.is_empty())
                })
            };
            if add(&mut all.paths, &peer.paths, wanted) > 0 {
                add(&mut all.definitions, &peer.definitions, |_| true);
            }
        }
        (all.paths.len() > self.paths.len()).then_some(all)
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
        if wanted(name) && !entries.iter().any(|(own, _)| own == name) {
            entries.push((name.clone(), text.clone()));
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
    let entry = |(name, text): &(String, String)| Named {
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
