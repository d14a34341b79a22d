//! A request for a document to which something may be added.

use std::sync::Arc;

use http::StatusCode;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, IF_MATCH,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};

use super::cache::{Cache, Variant};
use super::entity::{Entity, EntityFormat, EntitySource};
use crate::discovery::peer_discovery::PeerDiscovery;
use crate::kube::discovery::DiscoveryDocument;
use crate::relay::answer::is_for_one_server;
use crate::request::headers::set;
use pingora_http::ResponseHeader;

/// Conditions on the apiserver's own bytes. They mean something else for the merged bytes.
const ABOUT_BYTES: [HeaderName; 6] = [
    IF_NONE_MATCH,
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_UNMODIFIED_SINCE,
    IF_RANGE,
    RANGE,
];

/// A discovery document that is requested.
#[derive(Clone)]
pub struct Overlay {
    pub document: DiscoveryDocument,
    /// What to add to it, if anything.
    pub peer_discovery: Option<Arc<PeerDiscovery>>,
    /// Nothing of peers is added: a peer has asked.
    pub for_one: bool,
}

impl Overlay {
    /// Prepares a request's header; `None`: the answer passes unchanged.
    pub fn begin(
        &self,
        cache: &Cache,
        headers: &mut HeaderMap,
    ) -> pingora_core::Result<Option<MergeRequest>> {
        let peer_discovery = self.peer_discovery.as_ref();
        let merge_request =
            |of| MergeRequest::begin(&self.document, of, self.for_one, cache, headers);
        peer_discovery.map(merge_request).transpose()
    }
}

/// A request for a document to which something is added.
#[derive(Clone)]
pub struct MergeRequest {
    pub document: DiscoveryDocument,
    pub peer_discovery: Arc<PeerDiscovery>,
    pub variant: Variant,
    pub if_none_match: Vec<HeaderValue>,
    pub gzip: bool,
    /// The entity that the apiserver is asked to confirm.
    pub known: Option<Arc<Entity>>,
}

impl MergeRequest {
    /// Rewrites a request's header so that the apiserver answers with a whole document, or that it has not changed.
    /// `for_one`: see [`Overlay`].
    pub fn begin(
        document: &DiscoveryDocument,
        peer_discovery: &Arc<PeerDiscovery>,
        for_one: bool,
        cache: &Cache,
        headers: &mut HeaderMap,
    ) -> pingora_core::Result<Self> {
        let if_none_match = headers.get_all(IF_NONE_MATCH).iter().cloned();
        let mut merge_request = Self {
            document: document.clone(),
            peer_discovery: peer_discovery.clone(),
            variant: Variant {
                accept: headers.get(ACCEPT).cloned(),
                for_one,
            },
            if_none_match: if_none_match.collect(),
            gzip: accepts_gzip(headers),
            known: None,
        };
        for name in &ABOUT_BYTES {
            headers.remove(name);
        }
        set(
            headers,
            ACCEPT_ENCODING,
            HeaderValue::from_static("identity"),
        )?;
        let accepted = cache.accepted(peer_discovery.generation, document, &merge_request.variant);
        if let Some(entity) = accepted
            && let EntitySource::Etag(etag) = &entity.source
        {
            set(headers, IF_NONE_MATCH, etag.clone())?;
            merge_request.known = Some(entity);
        }
        Ok(merge_request)
    }

    /// The form of the merged document for this answer of the apiserver.
    pub fn form_of(&self, response: &ResponseHeader) -> EntityFormat {
        let content_type = response.headers.get(CONTENT_TYPE).cloned();
        self.form(content_type.unwrap_or(HeaderValue::from_static("")))
    }

    /// The form of the merged document with this `Content-Type`.
    pub(super) fn form(&self, content_type: HeaderValue) -> EntityFormat {
        let text = content_type.to_str().unwrap_or("");
        EntityFormat {
            for_one: self.variant.for_one || is_for_one_server(self.variant.accept.as_ref(), text),
            content_type,
        }
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
}

/// Reads the header as kube-apiserver does.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT_ENCODING);
    let accepted = accepted.map_or(&b""[..], HeaderValue::as_bytes);
    accepted
        .split(|byte| *byte == b',')
        .any(|name| name.trim_ascii() == b"gzip")
}
