//! A look at the beginning of a list while it passes.
//!
//! What passes is copied, up to [`LIMIT`] bytes, and read once there are so many or the list is at its end.

use std::borrow::Cow;
use std::io::Read;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use flate2::read::GzDecoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};

use super::read::List;
use super::{Claim, Sample, Samples, json, protobuf};
use crate::routing::table::{GvrRef, api_version};

/// Bytes of a list that are looked at, compressed or not.
pub const LIMIT: usize = 64 << 10;

/// How lists are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `application/json`
    Json,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

/// How a body can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoded {
    /// Its form.
    pub form: Form,
    /// It is compressed with gzip.
    pub gzip: bool,
}

impl Encoded {
    /// By an answer's headers; none if it cannot be read here.
    fn of(headers: &HeaderMap) -> Option<Self> {
        let content_type = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let form = match content_type.split(';').next()?.trim() {
            "application/json" => Form::Json,
            "application/vnd.kubernetes.protobuf" => Form::Protobuf,
            _ => return None,
        };
        let gzip = match headers.get(CONTENT_ENCODING).map(|value| value.as_bytes()) {
            None | Some(b"identity") => false,
            Some(b"gzip") => true,
            Some(_) => return None,
        };
        Some(Self { form, gzip })
    }

    /// Reads the beginning of a list of objects of `api_version`. None if it is something else, or does not reach far
    /// enough to tell.
    pub fn read(self, head: &[u8], api_version: &str) -> Option<Sample> {
        let head = match self.gzip {
            false => Cow::Borrowed(head),
            true => {
                let mut plain = Vec::new();
                // It mostly ends too early, which is an error; what came before it is there.
                let _ = GzDecoder::new(head)
                    .take(LIMIT as u64)
                    .read_to_end(&mut plain);
                Cow::Owned(plain)
            }
        };
        let list: List = match self.form {
            Form::Json => json::read(&head),
            Form::Protobuf => protobuf::read(&head),
        };
        list.sample(api_version)
    }
}

/// A list that is looked at.
#[derive(Debug)]
pub struct Look {
    claim: Claim,
    encoded: Encoded,
    api_version: String,
    head: BytesMut,
}

impl Look {
    /// At an answer that begins `now` to a list of `resource`, asked of the process of `epoch`; none if there is nothing
    /// to be learned.
    pub fn at(
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
        let encoded = Encoded::of(headers)?;
        let claim = samples.claim(resource, epoch, now)?;
        Some(Box::new(Self {
            claim,
            encoded,
            api_version: api_version(resource.group, resource.version),
            head: BytesMut::new(),
        }))
    }

    /// This was passed on; `end`: it was the last. Gives back what wants to see more.
    pub fn passed(mut self: Box<Self>, data: &Bytes, end: bool) -> Option<Box<Self>> {
        let room = LIMIT.saturating_sub(self.head.len());
        self.head
            .extend_from_slice(data.get(..room).unwrap_or(data));
        if !end && self.head.len() < LIMIT {
            return Some(self);
        }
        let sample = self.encoded.read(&self.head, &self.api_version);
        match sample {
            Some(sample) if !sample.witnesses.is_empty() => self.claim.found(sample),
            Some(_) if end => self.claim.empty(),
            _ => {}
        }
        None
    }
}
