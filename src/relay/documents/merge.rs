//! Merges a document by its kind and format. Pure.

use http::HeaderValue;

use super::entity::{Entity, EntityFormat, EntitySource};
use crate::discovery::merge::{self, DocumentFormat, MergeError};
use crate::discovery::openapi;
use crate::discovery::peer_discovery::{PeerDiscovery, PeerListing, SharedPeerDiscovery};
use crate::kube::discovery::DiscoveryDocument;
use crate::kube::gvr::{Custom, GvrRef};
use crate::kube::media_type;

/// Why a document cannot be merged.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    /// kube-apiserver does not use this format for discovery by default.
    #[error("discovery in the form {0:?}")]
    Form(HeaderValue),
    #[error(transparent)]
    Discovery(#[from] MergeError),
    #[error(transparent)]
    OpenApi(#[from] openapi::OpenApiError),
    /// Only servers that cannot be asked list it.
    #[error("listed only by servers that cannot be asked")]
    Nobody,
    /// It is too long, or its end does not come.
    #[error("cannot be read whole")]
    Incomplete,
    /// The connection broke while it was read.
    #[error("broke off")]
    BrokeOff(#[source] Box<pingora_core::Error>),
    /// It is encoded, although that was not requested.
    #[error("in the encoding {0:?}")]
    Encoding(HeaderValue),
    /// The task was cancelled.
    #[error("given up")]
    GivenUp,
}

impl OverlayError {
    /// Only servers that cannot be asked have what is to be listed.
    pub fn is_of_nobody(&self) -> bool {
        let stale = matches!(self, Self::Discovery(MergeError::Stale));
        stale || matches!(self, Self::Nobody)
    }
}

/// A document from an apiserver.
pub(super) struct UpstreamDocument {
    pub document: DiscoveryDocument,
    pub form: EntityFormat,
    pub etag: Option<HeaderValue>,
    /// `None`: the apiserver has no such group.
    pub body: Option<Vec<u8>>,
}

/// Merges the document with peers' contents. Takes milliseconds for an OpenAPI document.
pub(super) fn merge_document(
    upstream: UpstreamDocument,
    peer_discovery: &PeerDiscovery,
    shared_peer_discovery: &SharedPeerDiscovery,
) -> Result<Entity, OverlayError> {
    let UpstreamDocument {
        document,
        form,
        etag,
        body,
    } = upstream;
    let merged = match &document {
        DiscoveryDocument::OpenApiV3Version(_) => None,
        DiscoveryDocument::OpenApiV2 | DiscoveryDocument::OpenApiV3 if form.for_one => None,
        DiscoveryDocument::OpenApiV2 => {
            let local = body.as_deref().unwrap_or_default();
            // The media types of old releases are ambiguous.
            let form = match local.first() {
                Some(b'{') => openapi::OpenApiFormat::V2Json,
                _ => openapi::OpenApiFormat::V2Protobuf,
            };
            shared_peer_discovery.want(form);
            open_api(form, local, peer_discovery)?
        }
        DiscoveryDocument::OpenApiV3 => {
            let local = body.as_deref().unwrap_or_default();
            open_api(openapi::OpenApiFormat::V3Index, local, peer_discovery)?
        }
        document => discovery(document, &form, body.as_deref(), peer_discovery)?,
    };
    if body.is_none() && merged.is_none() {
        return Err(OverlayError::Nobody);
    }
    let body = body.unwrap_or_default();
    let source = EntitySource::of(etag.as_ref(), &body);
    Ok(Entity::new(document, form, source, body, merged))
}

/// Why `merge_document` would fail whatever the apiserver's document of this form has in it, if the apiserver lists
/// what of a group version is in `custom` as well.
pub fn refuses(
    document: &DiscoveryDocument,
    form: &EntityFormat,
    peer_discovery: &PeerDiscovery,
    custom: &Custom,
) -> Option<OverlayError> {
    let text = form.content_type.to_str().unwrap_or("");
    let is_merged = merge::is_merged(document, media_type::is_aggregated(text));
    if !is_merged || form.for_one || !peer_discovery.adds_to(document) {
        return None;
    }
    if DocumentFormat::of(text).is_none() {
        return Some(OverlayError::Form(form.content_type.clone()));
    }
    let of = document.group_version()?;
    let is_custom = |resource: &str| {
        custom.contains(GvrRef {
            group: &of.group,
            version: &of.version,
            resource,
            subresource: "",
        })
    };
    let stale = peer_discovery.others.is_stale_for(of, is_custom);
    stale.then_some(OverlayError::Discovery(MergeError::Stale))
}

/// Adds to a list of groups what the apiserver serves and does not list. Then adds what peers list, unless the document
/// is for one server.
fn discovery(
    document: &DiscoveryDocument,
    form: &EntityFormat,
    body: Option<&[u8]>,
    peer_discovery: &PeerDiscovery,
) -> Result<Option<Vec<u8>>, OverlayError> {
    let text = form.content_type.to_str().unwrap_or("");
    let aggregated = media_type::is_aggregated(text);
    if !merge::is_merged(document, aggregated) {
        return Ok(None);
    }
    let own = document.lists_groups().then_some(&peer_discovery.own.union);
    let others = (!form.for_one).then_some(&peer_discovery.others);
    let merged = match DocumentFormat::of(text) {
        Some(format) => {
            let all = own.into_iter().chain(others);
            merge::merge(document, aggregated, format, body, all).map_err(OverlayError::from)
        }
        None => Err(OverlayError::Form(form.content_type.clone())),
    };
    match merged {
        // It may be complete as it is.
        Err(_) if others.is_none() || !peer_discovery.adds_to(document) => Ok(None),
        merged => merged,
    }
}

/// `None`: nothing was added, or no peer's document was read yet.
fn open_api(
    form: openapi::OpenApiFormat,
    local: &[u8],
    peer_discovery: &PeerDiscovery,
) -> Result<Option<Vec<u8>>, openapi::OpenApiError> {
    let peers = peer_discovery.openapi.of(form).unwrap_or_default();
    let peers: Vec<&[u8]> = peers.iter().map(|peer| &**peer).collect();
    openapi::merge(form, local, &peers, |group, version| {
        match (version, form) {
            ("", _) => peer_discovery.others.document.group(group).is_some(),
            // No server can serve a document that only unreachable servers have.
            (version, openapi::OpenApiFormat::V3Index) => {
                peer_discovery.lists(group, version) == PeerListing::Fresh
            }
            (version, _) => peer_discovery.lists(group, version) != PeerListing::No,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::discovery::model;

    /// Others list one group version.
    fn peer_discovery() -> PeerDiscovery {
        let resource = model::Resource {
            name: "things".into(),
            response_kind: model::Kind {
                kind: "Thing".into(),
                ..model::Kind::default()
            },
            ..model::Resource::default()
        };
        let version = model::Version {
            name: "v1".into(),
            freshness: model::CURRENT.into(),
            resources: vec![resource],
        };
        let mut peer_discovery = PeerDiscovery::default();
        peer_discovery.others.document = [("added".to_owned(), version)].into_iter().collect();
        peer_discovery
    }

    fn made(
        document: DiscoveryDocument,
        content_type: &'static str,
        for_one: bool,
        body: Option<&str>,
    ) -> Result<String, OverlayError> {
        let upstream = UpstreamDocument {
            document,
            form: EntityFormat {
                content_type: HeaderValue::from_static(content_type),
                for_one,
            },
            etag: None,
            body: body.map(|body| body.as_bytes().to_vec()),
        };
        let entity = merge_document(upstream, &peer_discovery(), &SharedPeerDiscovery::default())?;
        let mut header = pingora_http::ResponseHeader::build(200, None).unwrap();
        let body = entity.write(&mut header, false).unwrap();
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    const GROUPS: &str = r#"{"kind":"APIGroupList","apiVersion":"v1","groups":[]}"#;
    const CORE: &str = r#"{"kind":"APIVersions","versions":["v1"]}"#;
    const JSON: &str = "application/json";

    #[test]
    fn a_document_gets_what_others_list_unless_it_is_for_one_server() {
        let merged = made(DiscoveryDocument::Groups, JSON, false, Some(GROUPS)).unwrap();
        assert!(merged.contains("\"added\""), "{merged}");
        let local = made(DiscoveryDocument::Groups, JSON, true, Some(GROUPS)).unwrap();
        assert_eq!(local, GROUPS);
        let versions = made(DiscoveryDocument::Versions, JSON, false, Some(CORE)).unwrap();
        assert_eq!(versions, CORE, "there is nothing to add in the legacy form");
    }

    #[test]
    fn a_group_is_made_of_what_others_list_if_they_do() {
        let group = |name: &str| made(DiscoveryDocument::Group(name.to_owned()), JSON, false, None);
        assert!(group("added").unwrap().contains("\"added/v1\""));
        assert!(matches!(group("nobodys"), Err(OverlayError::Nobody)));
    }

    #[test]
    fn what_the_apiserver_serves_is_added_first_and_for_one_server_too() {
        let mut known = peer_discovery();
        let mut own = known.others.document.groups[0].clone();
        own.metadata.name = "own".into();
        known.own.union.document.groups = vec![own];
        let made = |for_one, content_type| {
            let upstream = UpstreamDocument {
                document: DiscoveryDocument::Groups,
                form: EntityFormat {
                    content_type: HeaderValue::from_static(content_type),
                    for_one,
                },
                etag: None,
                body: Some(GROUPS.into()),
            };
            merge_document(upstream, &known, &SharedPeerDiscovery::default())
        };
        let text = |for_one| {
            let mut header = pingora_http::ResponseHeader::build(200, None).unwrap();
            let body = made(for_one, JSON).unwrap().write(&mut header, false);
            String::from_utf8_lossy(&body.unwrap()).into_owned()
        };
        let (all, one) = (text(false), text(true));
        assert!(all.find("\"own\"").unwrap() < all.find("\"added\"").unwrap());
        assert!(one.contains("\"own\"") && !one.contains("\"added\""));
        // Nothing can be added to this form.
        assert!(!made(true, "application/cbor").unwrap().is_merged);
        assert!(made(false, "application/cbor").is_err());
    }

    #[test]
    fn what_cannot_be_added_to_is_an_error() {
        let broken = made(DiscoveryDocument::Groups, JSON, false, Some("{"));
        assert!(matches!(broken, Err(OverlayError::Discovery(_))));
        let cbor = made(
            DiscoveryDocument::Groups,
            "application/cbor",
            false,
            Some(GROUPS),
        );
        assert!(matches!(cbor, Err(OverlayError::Form(_))));
    }
}
