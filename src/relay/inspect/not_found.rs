//! Tells "no such resource" from "no such object" in every format of kube-apiserver.
//!
//! An unknown group is answered with `404 page not found` in plain text; an unknown version, resource or subresource
//! with a `Status` without a name in its details, as JSON, YAML, protobuf or CBOR; a missing object with a `Status`
//! that names it. An answer that cannot be read proves nothing. Pure.

use std::borrow::Cow;
use std::io::Read;

use flate2::read::GzDecoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method};
use k8s_pb::apimachinery::pkg::apis::meta::v1 as protobuf;
use k8s_pb::apimachinery::pkg::runtime::Unknown;
use prost::Message;
use serde::Deserialize;

use super::STATUS_LIMIT;
use crate::kube::envelope;

const TEXT: &[u8] = b"404 page not found";
const MESSAGE: &str = "the server could not find the requested resource";
/// The self-describe tag of CBOR.
const CBOR: &[u8] = b"\xd9\xd9\xf7";
/// In CBOR a key and its value, of this length as a text or as bytes, are adjacent.
const CBOR_KEYS: [&[u8]; 2] = [b"message\x78\x30", b"message\x58\x30"];

/// What a 404 is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotFound {
    /// An object, or something that is not the apiserver's: it passes.
    Object,
    /// The apiserver may not know the resource.
    NoSuchResource,
    /// Its body did not come in time.
    Unread,
}

/// What a 404 is about, by the beginning of its body. `complete`: that is the whole body.
pub fn conclude(method: &Method, headers: &HeaderMap, body: &[u8], complete: bool) -> NotFound {
    if !complete {
        return match body.len() <= STATUS_LIMIT {
            true => NotFound::Unread,
            false => NotFound::Object,
        };
    }
    // HEAD has no body that tells. A missing object is rare, and a false 404 must not pass.
    let unknown = *method == Method::HEAD && body.is_empty();
    let writes = !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    match unknown || is_no_such_resource(headers, body, writes) {
        true => NotFound::NoSuchResource,
        false => NotFound::Object,
    }
}

/// Whether a 404 with these headers and this body may mean that the server does not know the resource. `exactly`: it
/// must say just what kube-apiserver says then. For writes, which are sent to another server after that: an aggregated
/// API may have executed what it answers with other words.
fn is_no_such_resource(headers: &HeaderMap, body: &[u8], exactly: bool) -> bool {
    let Some(body) = decoded(headers, body) else {
        return !exactly;
    };
    let status: Option<Status> = match media_type(headers).as_slice() {
        b"application/json" => serde_json::from_slice(&body).ok(),
        // JSON is YAML, but reading it as such is slow.
        b"application/yaml" => serde_yaml::from_slice(&body).ok(),
        b"application/vnd.kubernetes.protobuf" => from_protobuf(&body),
        b"application/cbor" => return is_said_in_cbor(&body, exactly),
        _ => {
            let text = body.trim_ascii();
            let similar = text.is_empty() || contains(text, MESSAGE.as_bytes());
            return text == TEXT || (similar && !exactly);
        }
    };
    status.map_or(!exactly, |status| status.says_no_such_resource(exactly))
}

/// The decisive fields of a `metav1.Status`.
#[derive(Debug, Deserialize)]
struct Status {
    kind: String,
    message: String,
    #[serde(default)]
    details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    name: String,
    group: String,
    kind: String,
}

impl Status {
    fn says_no_such_resource(self, exactly: bool) -> bool {
        let Details { name, group, kind } = self.details.unwrap_or_default();
        let is_status = self.kind == "Status";
        // Webhooks answer 404 with their own texts; those are not from the apiserver.
        let added = self.message.strip_prefix(MESSAGE);
        match exactly {
            true => is_status && added == Some("") && [name, group, kind].concat().is_empty(),
            // client-go, which aggregating apiservers use, adds the request.
            false => {
                let is_its = added.is_some_and(|added| added.is_empty() || added.starts_with(" ("));
                !is_status || is_its && name.is_empty()
            }
        }
    }
}

fn from_protobuf(body: &[u8]) -> Option<Status> {
    let Unknown { type_meta, raw, .. } = envelope::unwrap(body).ok()?;
    let status = protobuf::Status::decode(raw?.as_slice()).ok()?;
    Some(Status {
        kind: type_meta?.kind?,
        message: status.message?,
        details: status.details.map(|details| Details {
            name: details.name.unwrap_or_default(),
            group: details.group.unwrap_or_default(),
            kind: details.kind.unwrap_or_default(),
        }),
    })
}

/// CBOR is searched, not parsed. A name that imitates the message only causes a 503.
fn is_said_in_cbor(body: &[u8], exactly: bool) -> bool {
    match body.starts_with(CBOR) {
        true => CBOR_KEYS
            .iter()
            .any(|key| contains(body, &[key, MESSAGE.as_bytes()].concat())),
        false => !exactly,
    }
}

/// The decoded body; `None` if it cannot be decoded. A long body is cut.
fn decoded<'a>(headers: &HeaderMap, body: &'a [u8]) -> Option<Cow<'a, [u8]>> {
    let Some(encoding) = headers.get(CONTENT_ENCODING) else {
        return Some(Cow::Borrowed(body));
    };
    match encoding.as_bytes().to_ascii_lowercase().as_slice() {
        b"" | b"identity" => Some(Cow::Borrowed(body)),
        b"gzip" | b"x-gzip" => {
            let mut plain = Vec::new();
            let limit = u64::try_from(STATUS_LIMIT).ok()?;
            let decoder = GzDecoder::new(body);
            decoder.take(limit).read_to_end(&mut plain).ok()?;
            Some(Cow::Owned(plain))
        }
        _ => None,
    }
}

fn media_type(headers: &HeaderMap) -> Vec<u8> {
    let value = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let mut parts = value.unwrap_or_default().split(|byte| *byte == b';');
    let media_type = parts.next().unwrap_or_default();
    media_type.trim_ascii().to_ascii_lowercase()
}

pub(super) fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack
        .windows(needle.len())
        .any(|window| window == needle)
}

#[cfg(test)]
mod tests;
