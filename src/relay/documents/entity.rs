//! A merged document as it is sent.

use std::io::Write;

use bytes::Bytes;
use data_encoding::HEXUPPER;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::HeaderMap;
use http::header::{
    ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderValue,
    LAST_MODIFIED, VARY, X_CONTENT_TYPE_OPTIONS,
};
use pingora_http::ResponseHeader;
use ring::digest::{SHA512, digest};

use crate::kube::discovery::DiscoveryDocument;
use crate::net::listed;

/// Smaller documents are not compressed, as in kube-apiserver.
const WORTH_COMPRESSING: usize = 128 << 10;

/// What a merged document is made from: equal keys have equal documents while peers' contents are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntityKey {
    pub document: DiscoveryDocument,
    /// As in the apiserver's answer.
    pub content_type: HeaderValue,
    /// It was requested without peers' contents.
    pub for_one: bool,
    /// Of the apiserver's document.
    pub etag: Option<HeaderValue>,
    /// Of the apiserver's bytes, if it sends no ETag; of nothing, if it has no document.
    pub hash: Vec<u8>,
}

pub(super) fn hash(body: &[u8]) -> Vec<u8> {
    digest(&SHA512, body).as_ref().to_vec()
}

#[derive(Debug)]
pub struct Entity {
    pub key: EntityKey,
    etag: Option<HeaderValue>,
    pub(super) body: Bytes,
    /// For clients that accept gzip.
    compressed: Option<Bytes>,
}

impl Entity {
    /// `merged`: the merged document; `None`: nothing was added, and `local` is sent unchanged. The document has an
    /// ETag if the local one has.
    pub fn new(key: EntityKey, local: Vec<u8>, merged: Option<Vec<u8>>) -> Self {
        let own = key.etag.clone();
        let etag = own.and_then(|own| merged.as_deref().map_or(Some(own), etag));
        let body = Bytes::from(merged.unwrap_or(local));
        Self {
            key,
            etag,
            compressed: compressed(&body),
            body,
        }
    }

    /// Whether a client with one of these ETags (its `If-None-Match`) has this document.
    pub fn is_known(&self, known: &[HeaderValue]) -> bool {
        let Some(etag) = self.etag.as_ref().map(HeaderValue::as_bytes) else {
            return false;
        };
        let known = known
            .iter()
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        known.map(<[u8]>::trim_ascii).any(|known| {
            let strong = known.strip_prefix(b"W/").unwrap_or(known);
            known == b"*" || strong == etag
        })
    }

    /// Adapts the header of the apiserver's answer to this document, and returns the body. `gzip`: the client accepts
    /// it.
    pub fn write(&self, response: &mut ResponseHeader, gzip: bool) -> pingora_core::Result<Bytes> {
        remove_headers(response);
        response.remove_header(&X_CONTENT_TYPE_OPTIONS);
        response.insert_header(CONTENT_TYPE, self.key.content_type.clone())?;
        self.write_validators(response)?;
        let compressed = self.compressed.as_ref().filter(|_| gzip);
        if compressed.is_some() {
            response.insert_header(CONTENT_ENCODING, HeaderValue::from_static("gzip"))?;
        }
        let body = compressed.unwrap_or(&self.body).clone();
        response.insert_header(CONTENT_LENGTH, body.len())?;
        Ok(body)
    }

    /// Adapts the header of the apiserver's answer to a 304.
    pub fn write_not_modified(&self, response: &mut ResponseHeader) -> pingora_core::Result<()> {
        remove_headers(response);
        response.remove_header(&CONTENT_TYPE);
        self.write_validators(response)
    }

    fn write_validators(&self, response: &mut ResponseHeader) -> pingora_core::Result<()> {
        if let Some(etag) = &self.etag {
            response.insert_header(ETAG, etag.clone())?;
        }
        if self.compressed.is_some() && !varies_by_encoding(&response.headers) {
            response.append_header(VARY, HeaderValue::from_static("Accept-Encoding"))?;
        }
        Ok(())
    }
}

/// Removes headers that describe the apiserver's own bytes.
pub fn remove_headers(response: &mut ResponseHeader) {
    for name in [
        &CONTENT_LENGTH,
        &CONTENT_ENCODING,
        &ETAG,
        &LAST_MODIFIED,
        &ACCEPT_RANGES,
    ] {
        response.remove_header(name);
    }
}

fn varies_by_encoding(headers: &HeaderMap) -> bool {
    listed(headers, VARY).any(|name| name.eq_ignore_ascii_case(b"accept-encoding"))
}

fn compressed(body: &[u8]) -> Option<Bytes> {
    if body.len() <= WORTH_COMPRESSING {
        return None;
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to memory does not fail. If it did, the document would be sent uncompressed.
    encoder.write_all(body).ok()?;
    encoder.finish().ok().map(Bytes::from)
}

/// As kube-apiserver's: SHA-512 in upper-case hexadecimal digits, in quotes.
fn etag(body: &[u8]) -> Option<HeaderValue> {
    let digits = HEXUPPER.encode(&hash(body));
    HeaderValue::from_str(&format!("\"{digits}\"")).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    fn value(text: &str) -> HeaderValue {
        HeaderValue::from_str(text).unwrap()
    }

    fn entity(etag: Option<&'static str>, local: &str, merged: Option<&str>) -> Entity {
        let key = EntityKey {
            document: DiscoveryDocument::Groups,
            content_type: HeaderValue::from_static("application/json"),
            for_one: false,
            hash: match etag {
                Some(_) => Vec::new(),
                None => hash(local.as_bytes()),
            },
            etag: etag.map(HeaderValue::from_static),
        };
        let merged = merged.map(|merged| merged.as_bytes().to_vec());
        Entity::new(key, local.into(), merged)
    }

    fn answer(headers: &[(&'static str, &str)]) -> ResponseHeader {
        let mut response = ResponseHeader::build(200, None).unwrap();
        for (name, text) in headers {
            response.append_header(*name, value(text)).unwrap();
        }
        response
    }

    #[test]
    fn what_was_added_to_has_an_etag_of_its_own_length_and_form() {
        let merged = entity(Some("\"LOCAL\""), "{}", Some("{\"a\":1}"));
        let mut response = answer(&[
            ("etag", "\"LOCAL\""),
            ("content-length", "2"),
            ("last-modified", "Sat, 21 Nov 2026 19:02:38 GMT"),
            ("accept-ranges", "bytes"),
            ("x-content-type-options", "nosniff"),
            ("vary", "Accept"),
            ("audit-id", "1"),
        ]);
        let body = merged.write(&mut response, true).unwrap();
        assert_eq!(&*body, b"{\"a\":1}");
        let header = |name: &str| {
            response
                .headers
                .get(name)
                .map(|value| value.to_str().unwrap())
        };
        let etag = header("etag").unwrap();
        assert_eq!(etag.len(), 130);
        assert!(
            etag.trim_matches('"')
                .bytes()
                .all(|digit| digit.is_ascii_hexdigit())
        );
        assert_eq!(etag, etag.to_uppercase());
        assert_eq!(header("content-length"), Some("7"));
        assert_eq!(header("content-type"), Some("application/json"));
        assert_eq!(
            (header("vary"), header("audit-id")),
            (Some("Accept"), Some("1"))
        );
        for gone in [
            "last-modified",
            "accept-ranges",
            "x-content-type-options",
            "content-encoding",
        ] {
            assert_eq!(header(gone), None, "{gone}");
        }
    }

    #[test]
    fn only_what_the_apiserver_gives_an_etag_has_one() {
        let legacy = entity(None, "{}", Some("{\"a\":1}"));
        let mut response = answer(&[]);
        legacy.write(&mut response, false).unwrap();
        assert!(!response.headers.contains_key("etag"));
        assert!(!legacy.is_known(&[value("*")]));

        let untouched = entity(Some("\"LOCAL\""), "{}", None);
        assert!(untouched.is_known(&[value("\"LOCAL\"")]));
        assert!(!entity(Some("\"LOCAL\""), "{}", Some("{ }")).is_known(&[value("\"LOCAL\"")]));
    }

    #[test]
    fn a_client_knows_it_by_one_of_several_etags() {
        let entity = entity(Some("\"A\""), "{}", None);
        for known in ["\"A\"", "W/\"A\"", "\"B\", \"A\"", "*"] {
            assert!(entity.is_known(&[value(known)]), "{known}");
        }
        assert!(entity.is_known(&[value("\"B\""), value("\"A\"")]));
        for unknown in ["\"B\"", "A", "\"AA\"", ""] {
            assert!(!entity.is_known(&[value(unknown)]), "{unknown}");
        }
        let mut response = answer(&[("content-type", "text/plain"), ("content-length", "2")]);
        entity.write_not_modified(&mut response).unwrap();
        assert_eq!(response.headers["etag"], "\"A\"");
        assert_eq!(response.headers.len(), 1);
    }

    #[test]
    fn a_long_one_is_compressed_for_those_who_can_read_that() {
        let long = "x".repeat(WORTH_COMPRESSING + 1);
        let entity = entity(None, &long, None);
        let mut response = answer(&[]);
        let body = entity.write(&mut response, true).unwrap();
        assert_eq!(response.headers["content-encoding"], "gzip");
        assert_eq!(response.headers["content-length"], body.len().to_string());
        assert_eq!(response.headers["vary"], "Accept-Encoding");
        let mut plain = String::new();
        GzDecoder::new(&*body).read_to_string(&mut plain).unwrap();
        assert_eq!(plain, long);

        let mut response = answer(&[("vary", "accept-encoding, Accept")]);
        assert_eq!(entity.write(&mut response, false).unwrap(), long);
        assert!(!response.headers.contains_key("content-encoding"));
        assert_eq!(response.headers.get_all("vary").iter().count(), 1);
    }
}
