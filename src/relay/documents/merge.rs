//! Merges a document by its kind and format. Pure.

use std::borrow::Cow;

use super::entity::{Entity, EntityKey};
use crate::discovery::merge::{self, MergeError};
use crate::discovery::openapi;
use crate::discovery::peer_discovery::{PeerDiscovery, PeerListing, SharedPeerDiscovery};
use crate::kube::discovery::DiscoveryDocument;

/// Why a document cannot be merged.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    #[error(transparent)]
    Discovery(#[from] MergeError),
    #[error(transparent)]
    OpenApi(#[from] openapi::OpenApiError),
    /// Only servers that cannot be asked list it.
    #[error("listed only by servers that cannot be asked")]
    Nobody,
    /// The connection broke while it was read.
    #[error("broke off")]
    BrokeOff(#[source] Box<pingora_core::Error>),
    /// It cannot be read whole, or not in this form.
    #[error("{0}")]
    Unusable(Cow<'static, str>),
}

/// Merges the apiserver's document with peers' contents; `body`: `None` if the apiserver has no such group. Takes
/// milliseconds for an OpenAPI document.
pub(super) fn merge_document(
    key: EntityKey,
    body: Option<Vec<u8>>,
    peer_discovery: &PeerDiscovery,
    shared_peer_discovery: &SharedPeerDiscovery,
) -> Result<Entity, OverlayError> {
    let merged = match &key.document {
        DiscoveryDocument::OpenApiV3Version(_) => None,
        DiscoveryDocument::OpenApiV2 | DiscoveryDocument::OpenApiV3 if key.for_one => None,
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
        _ => discovery(&key, body.as_deref(), peer_discovery)?,
    };
    if body.is_none() && merged.is_none() {
        return Err(OverlayError::Nobody);
    }
    Ok(Entity::new(key, body.unwrap_or_default(), merged))
}

/// Adds to a list of groups what the apiserver serves and does not list. Then adds what peers list, unless the document
/// is for one server.
fn discovery(
    key: &EntityKey,
    body: Option<&[u8]>,
    peer_discovery: &PeerDiscovery,
) -> Result<Option<Vec<u8>>, OverlayError> {
    let document = &key.document;
    let own = document.lists_groups().then_some(&peer_discovery.own.union);
    let others = (!key.for_one).then_some(&peer_discovery.others);
    let all = own.into_iter().chain(others);
    match merge::merge(document, key.content_type(), body, all) {
        // It may be complete as it is.
        Err(_) if others.is_none() || !peer_discovery.adds_to(document) => Ok(None),
        Err(MergeError::Stale) => Err(OverlayError::Nobody),
        merged => Ok(merged?),
    }
}

/// `None`: nothing was added, or no peer's document was read yet.
fn open_api(
    form: openapi::OpenApiFormat,
    local: &[u8],
    peer_discovery: &PeerDiscovery,
) -> Result<Option<Vec<u8>>, openapi::OpenApiError> {
    let peers = peer_discovery.openapi.get(&form);
    let peers: Vec<&[u8]> = peers.into_iter().flatten().map(|peer| &**peer).collect();
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
    use http::HeaderValue;

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

    fn key(document: DiscoveryDocument, content_type: &'static str, for_one: bool) -> EntityKey {
        EntityKey {
            document,
            content_type: HeaderValue::from_static(content_type),
            for_one,
            etag: None,
            hash: Vec::new(),
        }
    }

    fn made(
        document: DiscoveryDocument,
        content_type: &'static str,
        for_one: bool,
        body: Option<&str>,
    ) -> Result<String, OverlayError> {
        let body = body.map(|body| body.as_bytes().to_vec());
        let key = key(document, content_type, for_one);
        let shared = SharedPeerDiscovery::default();
        let entity = merge_document(key, body, &peer_discovery(), &shared)?;
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
            let key = key(DiscoveryDocument::Groups, content_type, for_one);
            let shared = SharedPeerDiscovery::default();
            merge_document(key, Some(GROUPS.into()), &known, &shared)
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
        let mut header = pingora_http::ResponseHeader::build(200, None).unwrap();
        let whole = made(true, "application/cbor").unwrap();
        assert_eq!(whole.write(&mut header, false).unwrap(), GROUPS);
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
        assert!(matches!(
            cbor,
            Err(OverlayError::Discovery(MergeError::Form(_)))
        ));
    }
}
