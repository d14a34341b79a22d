//! A request's header in one buffer, while another server may still get the request. A copy of the header map would take
//! more time and several times the memory, for a case that is rare. Pure.

use http::header::{HeaderName, HeaderValue};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Uri, Version};
use pingora_core::{Error, ErrorType, OrErr};

/// Most bytes of a buffer. The values of larger headers are better shared than copied.
const LARGEST: usize = 8 << 10;
/// Before each field: length of the name, length of the value, whether the value is sensitive.
const FIELD: usize = 2 + 2 + 1;
const BROKEN: &str = "a packed header";

#[derive(Debug)]
pub(super) struct PackedHeader {
    method: Method,
    uri: Uri,
    version: Version,
    /// In the order of the map.
    fields: Box<[u8]>,
}

impl PackedHeader {
    /// `None`: it is too large.
    pub(super) fn of(header: &Parts) -> Option<Self> {
        let fields = header.headers.iter();
        let sizes = fields.map(|(name, value)| FIELD + name.as_str().len() + value.len());
        let size = sizes.sum();
        if size > LARGEST {
            return None;
        }
        let mut fields = Vec::with_capacity(size);
        for (name, value) in &header.headers {
            let name = name.as_str().as_bytes();
            for length in [name.len(), value.len()] {
                fields.extend_from_slice(&u16::try_from(length).ok()?.to_be_bytes());
            }
            fields.push(value.is_sensitive().into());
            fields.extend_from_slice(name);
            fields.extend_from_slice(value.as_bytes());
        }
        Some(Self {
            method: header.method.clone(),
            uri: header.uri.clone(),
            version: header.version,
            fields: fields.into(),
        })
    }

    pub(super) fn unpack(&self) -> pingora_core::Result<Box<Parts>> {
        let mut header = Request::new(()).into_parts().0;
        header.method = self.method.clone();
        header.uri = self.uri.clone();
        header.version = self.version;
        header.headers = unpack(&self.fields)?;
        Ok(Box::new(header))
    }
}

fn unpack(mut fields: &[u8]) -> pingora_core::Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    while let Some((field, rest)) = fields.split_first_chunk::<FIELD>() {
        let [a, b, c, d, sensitive] = *field;
        let length = |bytes| usize::from(u16::from_be_bytes(bytes));
        let parts = rest
            .split_at_checked(length([a, b]))
            .and_then(|(name, rest)| {
                let (value, rest) = rest.split_at_checked(length([c, d]))?;
                Some((name, value, rest))
            });
        let Some((name, value, rest)) = parts else {
            return Error::e_explain(ErrorType::InternalError, BROKEN);
        };
        let name = HeaderName::from_bytes(name).or_err(ErrorType::InternalError, BROKEN)?;
        let value = HeaderValue::from_bytes(value);
        let mut value = value.or_err(ErrorType::InternalError, BROKEN)?;
        value.set_sensitive(sensitive != 0);
        let added = headers.try_append(name, value);
        added.or_err(ErrorType::InternalError, BROKEN)?;
        fields = rest;
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(fields: &[(String, Vec<u8>)]) -> Parts {
        let mut request = Request::put("https://host:6443/api/v1/pods?x=1");
        for (name, value) in fields {
            request = request.header(name, &value[..]);
        }
        request.body(()).unwrap().into_parts().0
    }

    proptest! {
        #[test]
        fn a_header_is_the_same_afterwards(
            fields in prop::collection::vec(("[a-d]{1,2}|accept|authorization", "[ -~\u{80}-\u{ff}]{0,40}"), 0..20),
            sensitive in any::<bool>(),
        ) {
            let fields: Vec<_> = fields.into_iter().map(|(name, value)| (name, value.into_bytes())).collect();
            let mut header = header(&fields);
            header.version = Version::HTTP_2;
            for value in header.headers.values_mut() {
                value.set_sensitive(sensitive);
            }
            let again = PackedHeader::of(&header).unwrap().unpack().unwrap();
            prop_assert_eq!(&again.headers, &header.headers);
            let list = |headers: &HeaderMap| -> Vec<_> {
                headers.iter().map(|(name, value)| (name.clone(), value.clone(), value.is_sensitive())).collect()
            };
            prop_assert_eq!(list(&again.headers), list(&header.headers));
            prop_assert_eq!((again.method, again.uri, again.version), (header.method, header.uri, header.version));
        }
    }

    #[test]
    fn what_is_large_is_not_copied() {
        let large = header(&[("x".into(), vec![b'x'; LARGEST])]);
        assert!(PackedHeader::of(&large).is_none());
        let small = header(&[("x".into(), vec![b'x'; LARGEST - FIELD - 1])]);
        assert!(PackedHeader::of(&small).is_some());
    }
}
