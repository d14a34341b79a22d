//! Headers of answers for the protocol of the next hop.

use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{HeaderMap, Method, StatusCode, Version};
use pingora_http::ResponseHeader;

use crate::request::headers::{KEEP_ALIVE, PROXY_CONNECTION};

/// Removes hop-by-hop headers from an answer, and those that `Connection` lists.
pub(super) fn strip_hop_by_hop(response: &mut ResponseHeader) {
    if response.version == Version::HTTP_2 {
        // They are malformed there (RFC 9113 §8.2.2): h2 lets none through.
        return;
    }
    for name in listed_in_connection(&response.headers) {
        response.remove_header(&name);
    }
    for name in [&CONNECTION, &KEEP_ALIVE, &PROXY_CONNECTION] {
        response.remove_header(name);
    }
}

/// Whether an answer says that its connection will be closed.
pub(super) fn says_close(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(CONNECTION).iter();
    values.any(|value| {
        let mut words = value.as_bytes().split(|byte| *byte == b',');
        words.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
    })
}

fn listed_in_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(CONNECTION).iter();
    values
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect()
}

/// Sets how an answer's body is delimited for an HTTP/1 client.
pub(super) fn frame_for_http1(
    client: Version,
    response: &mut ResponseHeader,
    method: &Method,
) -> pingora_core::Result<()> {
    let bodiless = *method == Method::HEAD
        || response.status.is_informational()
        || matches!(
            response.status,
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        );
    let chunked =
        client >= Version::HTTP_11 && !bodiless && !response.headers.contains_key(CONTENT_LENGTH);
    if chunked {
        response.insert_header(TRANSFER_ENCODING, HeaderValue::from_static("chunked"))?;
    } else {
        response.remove_header(&TRANSFER_ENCODING);
    }
    // Some clients would wait for a body, and read the next answer as the body.
    if response.status == StatusCode::NO_CONTENT {
        response.remove_header(&CONTENT_LENGTH);
    }
    response.set_version(Version::HTTP_11);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_a_body_names_no_length_unless_it_is_that_of_another() {
        let length_left = |status, method| {
            let mut response = ResponseHeader::build(status, None).unwrap();
            response.insert_header(CONTENT_LENGTH, 5).unwrap();
            frame_for_http1(Version::HTTP_11, &mut response, &method).unwrap();
            assert!(!response.headers.contains_key(TRANSFER_ENCODING));
            response.headers.contains_key(CONTENT_LENGTH)
        };
        assert!(!length_left(204, Method::GET));
        // The length of the GET answer, or of the document that the client has.
        assert!(length_left(200, Method::HEAD));
        assert!(length_left(304, Method::GET));
        assert!(length_left(200, Method::GET));
    }

    #[test]
    fn what_connection_lists_goes_with_it() {
        let mut response = ResponseHeader::build(200, None).unwrap();
        for (name, value) in [
            ("connection", "X-One,, x-two ,\u{e9}"),
            ("connection", "close"),
            ("keep-alive", "timeout=5"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("x-two", "2"),
            ("x-three", "3"),
        ] {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            response.append_header(name, value).unwrap();
        }
        strip_hop_by_hop(&mut response);
        let left: Vec<_> = response.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["x-three"]);
    }
}
