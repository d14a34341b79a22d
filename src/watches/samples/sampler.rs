//! Takes a sample from the beginning of a list while it is forwarded.
//!
//! Up to [`LIMIT`] bytes are copied, and parsed once there are so many or the list ends.

use std::borrow::Cow;
use std::io::Read;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use flate2::read::GzDecoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};

use super::list::PartialList;
use super::{Claim, Sample, Samples, json, protobuf};
use crate::kube::gvr::{GvrRef, api_version};
use crate::kube::media_type;

/// Bytes of a list that are parsed, compressed or not.
pub const LIMIT: usize = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListFormat {
    Json,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

/// Format and compression of a list's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListEncoding {
    pub form: ListFormat,
    pub gzip: bool,
}

impl ListEncoding {
    /// By a response's headers; `None` for other formats and encodings.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let content_type = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let form = match media_type::essence(content_type) {
            media_type::JSON => ListFormat::Json,
            media_type::PROTOBUF => ListFormat::Protobuf,
            _ => return None,
        };
        let gzip = match headers.get(CONTENT_ENCODING).map(|value| value.as_bytes()) {
            None | Some(b"identity") => false,
            Some(b"gzip") => true,
            Some(_) => return None,
        };
        Some(Self { form, gzip })
    }

    /// Reads the beginning of a list of objects of `api_version`. `None` if it is no such list, or too short to tell.
    pub fn read(self, head: &[u8], api_version: &str) -> Option<Sample> {
        let head = match self.gzip {
            false => Cow::Borrowed(head),
            true => {
                let mut plain = Vec::new();
                // An error mostly means that the stream is cut; the bytes before the cut are there.
                let _ = GzDecoder::new(head)
                    .take(LIMIT as u64)
                    .read_to_end(&mut plain);
                Cow::Owned(plain)
            }
        };
        let list: PartialList = match self.form {
            ListFormat::Json => json::read(&head),
            ListFormat::Protobuf => protobuf::read(&head),
        };
        list.sample(api_version)
    }
}

/// Copies the beginning of one list.
#[derive(Debug)]
pub struct ListSampler {
    claim: Claim,
    encoded: ListEncoding,
    api_version: String,
    head: BytesMut,
}

impl ListSampler {
    /// For a response that begins `now` to a list of `resource` by the apiserver process of `epoch`; `None` if no sample is
    /// due or the response cannot be read.
    pub fn start(
        samples: &Samples,
        resource: GvrRef<'_>,
        epoch: u64,
        now: Instant,
        answer: (StatusCode, &HeaderMap),
    ) -> Option<Box<Self>> {
        let (status, headers) = answer;
        if status != StatusCode::OK || !resource.subresource.is_empty() {
            return None;
        }
        let encoded = ListEncoding::of(headers)?;
        let claim = samples.claim(resource, epoch, now)?;
        Some(Box::new(Self {
            claim,
            encoded,
            api_version: api_version(resource.group, resource.version),
            head: BytesMut::new(),
        }))
    }

    /// These bytes were forwarded; `end`: they were the last. Returns the sampler if it needs more.
    pub fn passed(mut self: Box<Self>, data: &Bytes, end: bool) -> Option<Box<Self>> {
        let room = LIMIT.saturating_sub(self.head.len());
        self.head
            .extend_from_slice(data.get(..room).unwrap_or(data));
        if !end && self.head.len() < LIMIT {
            return Some(self);
        }
        let sample = self.encoded.read(&self.head, &self.api_version);
        match sample {
            Some(sample) if !sample.anchors.is_empty() => self.claim.found(sample),
            Some(_) if end => self.claim.empty(),
            _ => {}
        }
        None
    }
}
