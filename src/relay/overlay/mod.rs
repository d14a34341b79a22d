//! Discovery documents with what other servers list besides (KEP-4020).
//!
//! The apiserver is asked as the caller, in the form that the caller accepts, for the document as it is: what the caller
//! may see and in which form is decided there, and what is no document passes. What others have is added to the whole
//! document. The outcome is kept ([`cache`]); as long as the apiserver says that its document is the same, it is not even
//! sent again.

use std::sync::Arc;

use http::StatusCode;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_RANGE, IF_UNMODIFIED_SINCE, RANGE,
};
use pingora_http::RequestHeader;

use self::cache::Cache;
use self::entity::{Entity, Source};
use crate::discovery::gathered::Gathered;
use crate::routing::documents::Document;

pub mod cache;
pub mod entity;
pub mod merge;
mod serve;

/// What is asked about an apiserver's own bytes, and means something else for what is sent.
const ABOUT_BYTES: [HeaderName; 6] = [
    IF_NONE_MATCH,
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_UNMODIFIED_SINCE,
    IF_RANGE,
    RANGE,
];

/// A request for a document that is to be added to.
#[derive(Clone)]
pub struct Merging {
    document: Document,
    gathered: Arc<Gathered>,
    accept: Option<HeaderValue>,
    if_none_match: Vec<HeaderValue>,
    gzip: bool,
    /// What the apiserver was asked to confirm.
    known: Option<Arc<Entity>>,
}

impl Merging {
    /// Rewrites a request's header, so that the apiserver answers with a whole document, or that it is still the one
    /// that is known.
    pub fn begin(
        document: &Document,
        gathered: &Arc<Gathered>,
        cache: &Cache,
        header: &mut RequestHeader,
    ) -> pingora_core::Result<Self> {
        let if_none_match = header.headers.get_all(IF_NONE_MATCH).iter().cloned();
        let mut merging = Self {
            document: document.clone(),
            gathered: gathered.clone(),
            accept: header.headers.get(ACCEPT).cloned(),
            if_none_match: if_none_match.collect(),
            gzip: accepts_gzip(header),
            known: None,
        };
        for name in &ABOUT_BYTES {
            if header.headers.contains_key(name) {
                header.remove_header(name);
            }
        }
        header.insert_header(ACCEPT_ENCODING, HeaderValue::from_static("identity"))?;
        let accepted = cache.accepted(gathered.generation, document, merging.accept.as_ref());
        if let Some(entity) = accepted
            && let Source::Etag(etag) = &entity.source
        {
            header.insert_header(IF_NONE_MATCH, etag.clone())?;
            merging.known = Some(entity);
        }
        Ok(merging)
    }

    /// Whether an answer of this status is a document, or says which one. Any other passes.
    pub fn concerns(&self, status: StatusCode) -> bool {
        match status {
            StatusCode::OK => true,
            StatusCode::NOT_MODIFIED => self.known.is_some(),
            // The caller may see it, or it would be a 403.
            StatusCode::NOT_FOUND => matches!(self.document, Document::Group(_)),
            _ => false,
        }
    }
}

/// As kube-apiserver reads it.
fn accepts_gzip(header: &RequestHeader) -> bool {
    let accepted = header.headers.get(ACCEPT_ENCODING);
    let accepted = accepted.map_or(&b""[..], HeaderValue::as_bytes);
    accepted
        .split(|byte| *byte == b',')
        .any(|name| name.trim_ascii() == b"gzip")
}
