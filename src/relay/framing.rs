//! Headers as the next hop's protocol wants them, and what its errors mean.

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{Method, StatusCode, Version};
use pingora_core::protocols::http::client::HttpSession;
use pingora_core::{ErrorType, RetryType};
use pingora_http::{RequestHeader, ResponseHeader};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Removes what an answer says of the connection that it came on.
pub fn strip_hop_by_hop(response: &mut ResponseHeader) {
    for name in [&CONNECTION, &KEEP_ALIVE, &PROXY_CONNECTION] {
        if response.headers.contains_key(name) {
            response.remove_header(name);
        }
    }
}

/// Writes a request's header; a request without a body ends with it.
pub async fn write_header(
    up: &mut HttpSession,
    mut header: Box<RequestHeader>,
    body_expected: bool,
) -> pingora_core::Result<()> {
    match up {
        HttpSession::H2(session) => {
            for name in [&CONNECTION, &TRANSFER_ENCODING] {
                if header.headers.contains_key(name) {
                    header.remove_header(name);
                }
            }
            session.write_request_header(header, !body_expected)
        }
        session => {
            if !header.headers.contains_key(HOST)
                && let Some(authority) = header.uri.authority().cloned()
            {
                header.insert_header(HOST, authority.as_str())?;
            }
            if body_expected && !header.headers.contains_key(CONTENT_LENGTH) {
                header.insert_header(TRANSFER_ENCODING, HeaderValue::from_static("chunked"))?;
            }
            header.set_version(Version::HTTP_11);
            session.write_request_header(header).await
        }
    }
}

/// How an answer's body is delimited towards an HTTP/1 client.
pub fn frame_for_http1(
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
    response.set_version(Version::HTTP_11);
    Ok(())
}

/// Whether the server says that it did not process the request: REFUSED_STREAM, or a GOAWAY below its stream.
pub fn is_unprocessed(error: &pingora_core::Error) -> bool {
    matches!(error.retry, RetryType::Decided(true)) && *error.etype() != ErrorType::InvalidH2
}
