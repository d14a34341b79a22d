//! What is added to a document, by what it is and the form it came in. Pure.

use http::HeaderValue;

use super::entity::{self, Entity, Source};
use crate::discovery::aggregated::Part;
use crate::discovery::forms::{self, Form, What};
use crate::discovery::gathered::{Gathered, Gathering, Listed};
use crate::discovery::openapi::{self, Place};
use crate::routing::documents::Document;

/// Why a document cannot be added to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its form is not one that kube-apiserver gives discovery in by default.
    #[error("discovery in the form {0:?}")]
    Form(HeaderValue),
    /// It cannot be read.
    #[error(transparent)]
    Discovery(#[from] forms::Error),
    /// It cannot be read.
    #[error(transparent)]
    OpenApi(#[from] openapi::Error),
    /// Nobody who can be asked has it.
    #[error("listed only by servers that cannot be asked")]
    Nobody,
    /// It is longer than any that was ever seen, or broke off.
    #[error("cannot be read whole")]
    Incomplete,
    /// It is encoded, although that was not asked for.
    #[error("in the encoding {0:?}")]
    Encoding(HeaderValue),
    /// The work was given up.
    #[error("given up")]
    GivenUp,
}

/// A document as an apiserver gave it.
pub struct Given {
    /// Which.
    pub document: Document,
    /// Its form.
    pub form: entity::Form,
    /// Its ETag.
    pub etag: Option<HeaderValue>,
    /// Its bytes; `None`: the apiserver has no such group.
    pub body: Option<Vec<u8>>,
}

/// The document with what others have. Takes milliseconds for an OpenAPI document.
pub fn make(given: Given, gathered: &Gathered, gathering: &Gathering) -> Result<Entity, Error> {
    let Given {
        document,
        form,
        etag,
        body,
    } = given;
    let text = form.content_type.to_str().unwrap_or("");
    let merged = match &document {
        _ if form.for_one => None,
        Document::OpenApiV2 => {
            let local = body.as_deref().unwrap_or_default();
            // The media types of old releases do not tell the forms apart.
            let form = match local.first() {
                Some(b'{') => openapi::Form::V2Json,
                _ => openapi::Form::V2Protobuf,
            };
            gathering.want(form);
            open_api(form, local, gathered)?
        }
        Document::OpenApiV3 => {
            let local = body.as_deref().unwrap_or_default();
            open_api(openapi::Form::V3Index, local, gathered)?
        }
        Document::OpenApiV3Version(_) => None,
        document => {
            let unknown = || Error::Form(form.content_type.clone());
            let form = Form::of(text).ok_or_else(unknown)?;
            let aggregated = crate::local::documents::is_aggregated(text);
            match what(document, aggregated) {
                Some(what) => forms::merge(what, form, body.as_deref(), &gathered.others)?,
                None => None,
            }
        }
    };
    if body.is_none() && merged.is_none() {
        return Err(Error::Nobody);
    }
    let body = body.unwrap_or_default();
    let source = Source::of(etag.as_ref(), &body);
    Ok(Entity::new(document, form, source, body, merged))
}

/// `None`: the same everywhere.
fn what(document: &Document, aggregated: bool) -> Option<What<'_>> {
    Some(match document {
        Document::Versions if aggregated => What::Aggregated(Part::Core),
        Document::Groups if aggregated => What::Aggregated(Part::Groups),
        Document::Groups => What::Groups,
        Document::Group(group) => What::Group(group),
        Document::Resources(of) => What::Resources {
            group: &of.group,
            version: &of.version,
        },
        _ => return None,
    })
}

/// `None` also while nobody's document is known: then it is the local one, for a moment.
fn open_api(
    form: openapi::Form,
    local: &[u8],
    gathered: &Gathered,
) -> Result<Option<Vec<u8>>, openapi::Error> {
    let peers = gathered.openapi.of(form).unwrap_or_default();
    let mut peers: Vec<&[u8]> = peers.iter().map(|peer| &**peer).collect();
    let wanted = |place: Place<'_>| match (place.version, form) {
        ("", _) => gathered.others.document.group(place.group).is_some(),
        // What nobody can be asked for is no document.
        (version, openapi::Form::V3Index) => gathered.lists(place.group, version) == Listed::Fresh,
        (version, _) => gathered.lists(place.group, version) != Listed::No,
    };
    loop {
        match openapi::merge(form, local, &peers, wanted) {
            Err(openapi::Error::Peer(index, error)) if index < peers.len() => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a peer's OpenAPI document cannot be read"
                );
                peers.remove(index);
            }
            merged => return merged,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::model;

    /// Others list one group version.
    fn gathered() -> Gathered {
        let resource = model::Resource {
            name: "things".into(),
            kind: Some(model::Kind {
                kind: "Thing".into(),
                ..model::Kind::default()
            }),
            ..model::Resource::default()
        };
        let version = model::Version {
            name: "v1".into(),
            stale: false,
            resources: vec![resource.into()],
        };
        let mut gathered = Gathered::default();
        gathered.others.document.groups = vec![model::Group {
            name: "added".into(),
            versions: vec![version],
        }];
        gathered
    }

    fn made(
        document: Document,
        content_type: &'static str,
        for_one: bool,
        body: Option<&str>,
    ) -> Result<String, Error> {
        let given = Given {
            document,
            form: entity::Form {
                content_type: HeaderValue::from_static(content_type),
                for_one,
            },
            etag: None,
            body: body.map(|body| body.as_bytes().to_vec()),
        };
        let entity = make(given, &gathered(), &Gathering::default())?;
        let mut header = pingora_http::ResponseHeader::build(200, None).unwrap();
        let body = entity.write(&mut header, false).unwrap();
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    const GROUPS: &str = r#"{"kind":"APIGroupList","apiVersion":"v1","groups":[]}"#;
    const CORE: &str = r#"{"kind":"APIVersions","versions":["v1"]}"#;
    const JSON: &str = "application/json";

    #[test]
    fn a_document_gets_what_others_list_unless_it_is_for_one_server() {
        let merged = made(Document::Groups, JSON, false, Some(GROUPS)).unwrap();
        assert!(merged.contains("\"added\""), "{merged}");
        let local = made(Document::Groups, JSON, true, Some(GROUPS)).unwrap();
        assert_eq!(local, GROUPS);
        let versions = made(Document::Versions, JSON, false, Some(CORE)).unwrap();
        assert_eq!(versions, CORE, "there is nothing to add in the legacy form");
    }

    #[test]
    fn a_group_is_made_of_what_others_list_if_they_do() {
        let group = |name: &str| made(Document::Group(name.to_owned()), JSON, false, None);
        assert!(group("added").unwrap().contains("\"added/v1\""));
        assert!(matches!(group("nobodys"), Err(Error::Nobody)));
    }

    #[test]
    fn what_cannot_be_added_to_is_an_error() {
        let broken = made(Document::Groups, JSON, false, Some("{"));
        assert!(matches!(broken, Err(Error::Discovery(_))));
        let cbor = made(Document::Groups, "application/cbor", false, Some(GROUPS));
        assert!(matches!(cbor, Err(Error::Form(_))));
    }
}
