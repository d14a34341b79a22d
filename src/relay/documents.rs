//! Merges into discovery documents what the apiserver itself does not list, and what other servers list (KEP-4020).
//!
//! The apiserver is asked for its document as the caller and in the caller's format, because the apiserver decides what
//! the caller may see. An answer that is not a document passes unchanged. Entries of other servers are added to the
//! whole document. The result is cached (`cache`); while the apiserver answers that its document has not changed, it
//! does not send it again. One [`Overlay`] goes from the plan, which says what is added to which document, to the exchange, which has
//! the answer made.

mod cache;
mod entity;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderMap, HeaderName,
    HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use pingora_http::ResponseHeader;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

pub use self::cache::{Cache, UNKEPT, Variant};
use self::entity::hash;
pub use self::entity::{Entity, EntityKey, remove_headers};
use crate::discovery::merge::{self, MergeError};
use crate::discovery::openapi::{self, OpenApiFormat};
use crate::discovery::peer_discovery::{PeerDiscovery, PeerListing, SharedPeerDiscovery};
use crate::kube::discovery::DiscoveryDocument;
use crate::relay::answer::{StatusFormat, is_for_one_server};
use crate::relay::upstream::health::Health;
use crate::relay::upstream::{BodyPrefix, UpstreamSession};
use crate::request::headers::set;

/// Longest document that is read. Real ones are much shorter.
const MAX_DOCUMENT: usize = 64 << 20;
/// Longest time to read a document. Only a few are read at the same time.
const READ_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest wait of the first client for peers' OpenAPI documents, while no peer has failed.
const OPENAPI_TIMEOUT: Duration = Duration::from_secs(5);
/// A permit for each document that is merged: that may need several times its size in memory.
static MERGES: Semaphore = Semaphore::const_new(4);

/// The task was cancelled.
const GIVEN_UP: OverlayError = OverlayError::Unusable(Cow::Borrowed("given up"));

/// Conditions on the apiserver's own bytes. They mean something else for the merged bytes.
const ABOUT_BYTES: [HeaderName; 6] = [
    IF_NONE_MATCH,
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_UNMODIFIED_SINCE,
    IF_RANGE,
    RANGE,
];

/// A document, what is added to it, and how the client has asked for it.
#[derive(Clone)]
pub struct Overlay {
    document: DiscoveryDocument,
    peer_discovery: Arc<PeerDiscovery>,
    variant: Variant,
    pub if_none_match: Vec<HeaderValue>,
    pub gzip: bool,
    /// The entity that the apiserver is asked to confirm.
    known: Option<Arc<Entity>>,
}

impl Overlay {
    /// `for_one`: nothing of peers is added, because a peer has asked.
    pub fn new(
        document: &DiscoveryDocument,
        peer_discovery: Arc<PeerDiscovery>,
        for_one: bool,
    ) -> Box<Self> {
        Box::new(Self {
            document: document.clone(),
            peer_discovery,
            variant: Variant {
                accept: None,
                for_one,
            },
            if_none_match: Vec::new(),
            gzip: false,
            known: None,
        })
    }

    /// Reads a request's header, and rewrites it so that the apiserver answers with a whole document, or that it has not
    /// changed.
    pub fn asked(&self, cache: &Cache, headers: &mut HeaderMap) -> pingora_core::Result<Box<Self>> {
        let mut asked = Box::new(self.clone());
        asked.variant.accept = headers.get(ACCEPT).cloned();
        asked.if_none_match = headers.get_all(IF_NONE_MATCH).iter().cloned().collect();
        asked.gzip = accepts_gzip(headers);
        for name in &ABOUT_BYTES {
            headers.remove(name);
        }
        let identity = HeaderValue::from_static("identity");
        set(headers, ACCEPT_ENCODING, identity)?;
        let generation = self.peer_discovery.generation;
        if let Some(entity) = cache.accepted(generation, &self.document, &asked.variant)
            && let Some(etag) = &entity.key.etag
        {
            set(headers, IF_NONE_MATCH, etag.clone())?;
            asked.known = Some(entity);
        }
        Ok(asked)
    }

    /// Whether an answer of this status has or confirms a document. Other answers pass unchanged.
    pub fn concerns(&self, status: StatusCode) -> bool {
        match status {
            StatusCode::OK => true,
            StatusCode::NOT_MODIFIED => self.known.is_some(),
            // The caller may read discovery; otherwise the answer would be a 403.
            StatusCode::NOT_FOUND => matches!(self.document, DiscoveryDocument::Group(_)),
            _ => false,
        }
    }

    /// `etag`: of the apiserver's document; `hash`: empty if there is an ETag.
    fn key(
        &self,
        content_type: HeaderValue,
        etag: Option<HeaderValue>,
        hash: Vec<u8>,
    ) -> EntityKey {
        let accept = self.variant.accept.as_ref();
        let text = content_type.to_str().unwrap_or("");
        EntityKey {
            document: self.document.clone(),
            for_one: self.variant.for_one || is_for_one_server(accept, text),
            content_type,
            etag,
            hash,
        }
    }
}

/// Reads the header as kube-apiserver does.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT_ENCODING);
    let accepted = accepted.map_or(&b""[..], HeaderValue::as_bytes);
    accepted
        .split(|byte| *byte == b',')
        .any(|name| name.trim_ascii() == b"gzip")
}

/// What merged documents are made with.
pub struct DocumentMaker<'a> {
    pub cache: &'a Cache,
    pub peer_discovery: &'a Arc<SharedPeerDiscovery>,
    pub health: &'a Health,
}

impl DocumentMaker<'_> {
    /// The merged document for an answer.
    pub async fn entity(
        &self,
        overlay: &Overlay,
        up: &mut UpstreamSession,
        response: &ResponseHeader,
        head: bool,
    ) -> Result<Arc<Entity>, OverlayError> {
        let completed = self.with_open_api(overlay, response).await;
        let overlay = completed.as_ref().unwrap_or(overlay);
        match (response.status, &overlay.known) {
            (StatusCode::NOT_MODIFIED, Some(known)) => Ok(known.clone()),
            _ => self.read(overlay, up, response, head).await,
        }
    }

    /// With peers' OpenAPI documents, if they were not read yet.
    async fn with_open_api(&self, overlay: &Overlay, response: &ResponseHeader) -> Option<Overlay> {
        if overlay.document != DiscoveryDocument::OpenApiV2 || response.status != StatusCode::OK {
            return None;
        }
        let content_type = response.headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let form = OpenApiFormat::of_v2(content_type);
        if overlay.peer_discovery.openapi.contains_key(&form) {
            return None;
        }
        let most = match self.health.has_suspects() {
            true => Duration::ZERO,
            false => OPENAPI_TIMEOUT,
        };
        let peer_discovery = self.peer_discovery.wait_for(form, most).await;
        Some(Overlay {
            peer_discovery,
            ..overlay.clone()
        })
    }

    /// Reads an apiserver's document and merges it, unless the result is cached. A 404 has none; it is read so that the
    /// connection can be used again.
    async fn read(
        &self,
        overlay: &Overlay,
        up: &mut UpstreamSession,
        response: &ResponseHeader,
        head: bool,
    ) -> Result<Arc<Entity>, OverlayError> {
        let headers = &response.headers;
        let encoding = headers.get(CONTENT_ENCODING);
        if let Some(encoding) = encoding.filter(|encoding| *encoding != "identity") {
            let problem = format!("in the encoding {encoding:?}");
            return Err(OverlayError::Unusable(problem.into()));
        }
        let is_found = response.status == StatusCode::OK;
        let no_type = HeaderValue::from_static("");
        let content_type = match is_found {
            true => headers.get(CONTENT_TYPE).cloned().unwrap_or(no_type),
            false => StatusFormat::accepted(overlay.variant.accept.as_ref()).media_type(),
        };
        let etag = headers.get(ETAG).filter(|_| is_found).cloned();
        let key = etag.map(|etag| overlay.key(content_type.clone(), Some(etag), Vec::new()));
        let known = || self.known(overlay, key.as_ref()?);
        if let Some(known) = known() {
            return Ok(known);
        }
        let permit = MERGES.acquire().await.map_err(|_| GIVEN_UP)?;
        // Whoever had the permit before may have made it.
        if let Some(known) = known() {
            return Ok(known);
        }
        let body = match head {
            true => Vec::new(),
            false => read_whole(up).await?,
        };
        let body = Some(body).filter(|_| is_found);
        let bytes = body.as_deref().unwrap_or_default();
        let key = key.unwrap_or_else(|| overlay.key(content_type, None, hash(bytes)));
        if let Some(known) = self.known(overlay, &key) {
            return Ok(known);
        }
        let (peers, shared) = (overlay.peer_discovery.clone(), self.peer_discovery.clone());
        // Other requests of this thread do not wait.
        let making = spawn_blocking(move || {
            let made = merge_document(key, body, &peers, &shared);
            drop(permit);
            made
        });
        let entity = Arc::new(making.await.map_err(|_| GIVEN_UP)??);
        let generation = overlay.peer_discovery.generation;
        self.cache.keep(generation, &overlay.variant, &entity);
        Ok(entity)
    }

    fn known(&self, overlay: &Overlay, key: &EntityKey) -> Option<Arc<Entity>> {
        let generation = overlay.peer_discovery.generation;
        let known = self.cache.made_from(generation, key)?;
        self.cache.keep(generation, &overlay.variant, &known);
        Some(known)
    }
}

async fn read_whole(up: &mut UpstreamSession) -> Result<Vec<u8>, OverlayError> {
    let reading = up.read_prefix(MAX_DOCUMENT, READ_TIMEOUT);
    let BodyPrefix { body, complete } = reading.await.map_err(OverlayError::BrokeOff)?;
    let whole = complete && body.len() <= MAX_DOCUMENT;
    whole
        .then_some(body)
        .ok_or(OverlayError::Unusable("cannot be read whole".into()))
}

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
fn merge_document(
    key: EntityKey,
    body: Option<Vec<u8>>,
    peer_discovery: &PeerDiscovery,
    shared_peer_discovery: &SharedPeerDiscovery,
) -> Result<Entity, OverlayError> {
    let local = body.as_deref().unwrap_or_default();
    let merged = match &key.document {
        DiscoveryDocument::OpenApiV3Version(_) => None,
        DiscoveryDocument::OpenApiV2 | DiscoveryDocument::OpenApiV3 if key.for_one => None,
        DiscoveryDocument::OpenApiV2 => {
            // The media types of old releases are ambiguous.
            let form = match local.first() {
                Some(b'{') => OpenApiFormat::V2Json,
                _ => OpenApiFormat::V2Protobuf,
            };
            shared_peer_discovery.want(form);
            open_api(form, local, peer_discovery)?
        }
        DiscoveryDocument::OpenApiV3 => open_api(OpenApiFormat::V3Index, local, peer_discovery)?,
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
    let own = &peer_discovery.own.document;
    let own = document.lists_groups().then_some((own, false));
    let others = (!key.for_one).then_some((&peer_discovery.others, peer_discovery.replaces));
    let all = own.into_iter().chain(others);
    let content_type = key.content_type.to_str().unwrap_or("");
    match merge::merge(document, content_type, body, all) {
        // It may be complete as it is.
        Err(_) if others.is_none() || !peer_discovery.adds_to(document) => Ok(None),
        Err(MergeError::Stale) => Err(OverlayError::Nobody),
        merged => Ok(merged?),
    }
}

/// `None`: nothing was added, or no peer's document was read yet.
fn open_api(
    form: OpenApiFormat,
    local: &[u8],
    peer_discovery: &PeerDiscovery,
) -> Result<Option<Vec<u8>>, openapi::OpenApiError> {
    let peers = peer_discovery.openapi.get(&form);
    let peers: Vec<&[u8]> = peers.into_iter().flatten().map(|peer| &**peer).collect();
    openapi::merge(form, local, &peers, |group, version| {
        match (version, form) {
            ("", _) => peer_discovery.others.group(group).is_some(),
            // No server can serve a document that only unreachable servers have.
            (version, OpenApiFormat::V3Index) => {
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
        PeerDiscovery {
            others: [("added".to_owned(), version)].into_iter().collect(),
            ..PeerDiscovery::default()
        }
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
        let mut own = known.others.groups[0].clone();
        own.metadata.name = "own".into();
        std::sync::Arc::make_mut(&mut known.own).document.groups = vec![own];
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
