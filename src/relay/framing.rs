//! Writes headers for the protocol of the next hop, and reads its errors.

use std::fmt;

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, Method, StatusCode, Version};
use pingora_core::protocols::http::ServerSession;
use pingora_core::{Error, ErrorType};
use pingora_http::ResponseHeader;

use crate::request::headers::{KEEP_ALIVE, PROXY_CONNECTION};

/// Whether the first line of an HTTP/1 request has a path or an absolute URL, as Go's HTTP server requires. pingora
/// takes anything else for `/`, and cuts off everything after a `#`, which Go treats as part of the path.
pub fn names_a_path(http1: Option<&ServerSession>) -> bool {
    let Some(session) = http1 else {
        return true;
    };
    let raw = session.to_h1_raw();
    let mut lines = raw.trim_ascii_start().split(|byte| *byte == b'\n');
    let line = lines.next().unwrap_or_default();
    let header = session.req_header();
    header.raw_path_is_utf8() && !line.contains(&b'#') && is_path_or_url(header.raw_path())
}

fn is_path_or_url(target: &[u8]) -> bool {
    target.starts_with(b"/")
        || [&b"http://"[..], b"https://"].iter().any(|scheme| {
            target
                .get(..scheme.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        })
}

/// Whether the request has a host that is valid in HTTP/2, which apiservers are reached over, or no host where that is
/// allowed.
pub fn is_hosted(header: &Parts) -> bool {
    header.uri.authority().is_some()
        || match header.headers.get(HOST).map(HeaderValue::as_bytes) {
            Some(host) => host.is_empty() || Authority::try_from(host).is_ok(),
            None => header.version < Version::HTTP_11,
        }
}

/// Whether all parsers find the same end of the request's body. pingora drops a Content-Length next to a
/// Transfer-Encoding, and accepts any codings that end with `chunked`. Another parser may find another end, and
/// kube-apiserver accepts only `chunked`.
pub fn has_one_length(http1: Option<&ServerSession>, headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else {
        return true;
    };
    let chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked") && codings.next().is_none();
    let raw = http1.map(ServerSession::to_h1_raw);
    chunked && !raw.as_deref().is_some_and(names_a_length)
}

/// Whether a raw header has a Content-Length.
fn names_a_length(raw: &[u8]) -> bool {
    let name = CONTENT_LENGTH.as_str().as_bytes();
    raw.split(|byte| *byte == b'\n').any(|line| {
        let (start, rest) = line.split_at_checked(name.len()).unwrap_or_default();
        start.eq_ignore_ascii_case(name) && rest.starts_with(b":")
    })
}

/// What a client expects before it sends its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expectation {
    Nothing,
    /// The client waits for `100 Continue`.
    Continue,
    /// Something that no server can meet.
    Unknown,
}

impl Expectation {
    /// As Go's HTTP server reads it. Over HTTP/2 it ignores what it does not know.
    pub fn of(header: &Parts) -> Self {
        let is_boundary = |byte: &u8| matches!(byte, b' ' | b',' | b'\t');
        let continues = |value: &HeaderValue| {
            let mut words = value.as_bytes().split(is_boundary);
            words.any(|word| word.eq_ignore_ascii_case(b"100-continue"))
        };
        let mut values = header.headers.get_all(EXPECT).iter();
        if header.version >= Version::HTTP_2 {
            return match values.any(continues) {
                true => Self::Continue,
                false => Self::Nothing,
            };
        }
        match values.next() {
            Some(value) if continues(value) && header.version == Version::HTTP_11 => Self::Continue,
            Some(value) if continues(value) || value.is_empty() => Self::Nothing,
            Some(_) => Self::Unknown,
            None => Self::Nothing,
        }
    }
}

/// Removes hop-by-hop headers from an answer, and those that `Connection` lists.
pub fn strip_hop_by_hop(response: &mut ResponseHeader) {
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
pub fn says_close(headers: &HeaderMap) -> bool {
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

/// The value of a repeated Content-Length. The values were compared when the request was read.
pub fn single_length(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let first = lengths.next()?;
    let several = lengths.next().is_some() || first.as_bytes().contains(&b',');
    let one = first
        .as_bytes()
        .split(|byte| *byte == b',')
        .next()?
        .trim_ascii();
    several.then(|| HeaderValue::from_bytes(one).ok())?
}

/// Whether all values of `Content-Length` are the same number (RFC 9110, section 8.6).
pub fn lengths_agree(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CONTENT_LENGTH).iter();
    let mut lengths = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let number = |value: &[u8]| {
        let digits = value.trim_ascii();
        let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        is_number.then(|| std::str::from_utf8(digits).ok()?.parse::<u64>().ok())?
    };
    match lengths.next() {
        None => true,
        Some(first) => {
            let first = number(first);
            first.is_some() && lengths.all(|other| number(other) == first)
        }
    }
}

/// Sets how an answer's body is delimited for an HTTP/1 client.
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
    // Some clients would wait for a body, and read the next answer as the body.
    if response.status == StatusCode::NO_CONTENT {
        response.remove_header(&CONTENT_LENGTH);
    }
    response.set_version(Version::HTTP_11);
    Ok(())
}

/// Whether the server did not process the request: REFUSED_STREAM, or a GOAWAY below its stream. pingora calls more
/// errors retriable: HTTP_1_1_REQUIRED, for example, may come after the request was executed.
pub fn is_unprocessed(error: &Error) -> bool {
    let cause = error.root_cause().downcast_ref::<h2::Error>();
    cause.is_some_and(|cause| {
        let refused = cause.is_reset() && cause.reason() == Some(h2::Reason::REFUSED_STREAM);
        let below = cause.is_go_away() && cause.reason() == Some(h2::Reason::NO_ERROR);
        cause.is_remote() && (refused || below)
    })
}

/// Formats an error for the log. Parse errors of pingora quote their input (tokens, cookies, bodies), so only their
/// type is written.
pub struct RedactedError<'e>(pub &'e Error);

impl fmt::Display for RedactedError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(error) = self;
        match error.root_etype() {
            ErrorType::InvalidHTTPHeader | ErrorType::Custom(_) => {
                write!(f, "{}", error.root_etype().as_str())
            }
            _ => error.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_parsed_is_not_quoted() {
        let said = |error: Box<Error>| RedactedError(&error).to_string();
        let quoting = || Error::explain(ErrorType::InvalidHTTPHeader, "buf: Bearer x");
        assert_eq!(said(quoting()), "InvalidHTTPHeader");
        let chunk = Error::explain(ErrorType::new("InvalidChunk"), "Bearer x was not LF");
        assert_eq!(said(chunk), "InvalidChunk");
        let around = Error::because(ErrorType::ReadError, "reading", quoting());
        assert_eq!(said(around), "InvalidHTTPHeader");
        let plain = Error::explain(ErrorType::ConnectRefused, "connecting");
        assert!(said(plain).ends_with("ConnectRefused context: connecting"));
    }

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
    fn expectations_are_read_as_go_reads_them() {
        use Expectation::{Continue, Nothing, Unknown};
        let of = |version, values: &[&str]| {
            let mut request = http::Request::builder().version(version);
            for value in values {
                request = request.header(EXPECT, *value);
            }
            Expectation::of(&request.body(()).unwrap().into_parts().0)
        };
        for (values, http1, http2) in [
            (&[][..], Nothing, Nothing),
            (&[""], Nothing, Nothing),
            (&["100-continue"], Continue, Continue),
            (&["x, 100-Continue"], Continue, Continue),
            (&["100-continued"], Unknown, Nothing),
            (&["nonsense"], Unknown, Nothing),
            (&["nonsense", "100-continue"], Unknown, Continue),
            (&["100-continue", "nonsense"], Continue, Continue),
        ] {
            assert_eq!(of(Version::HTTP_11, values), http1, "{values:?}");
            assert_eq!(of(Version::HTTP_2, values), http2, "{values:?}");
        }
        assert_eq!(of(Version::HTTP_10, &["100-continue"]), Nothing);
        assert_eq!(of(Version::HTTP_10, &["nonsense"]), Unknown);
    }

    #[test]
    fn lengths_agree_however_often_they_are_said() {
        let one = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(CONTENT_LENGTH, HeaderValue::from_str(value).unwrap());
            }
            lengths_agree(&headers)
        };
        for values in [&[][..], &["5"], &["5", "5"], &["5, 5"], &["0", "00"]] {
            assert!(one(values), "{values:?}");
        }
        for values in [
            &["5", "6"][..],
            &["5,6"],
            &["+5"],
            &[""],
            &["5,"],
            &["99999999999999999999"],
        ] {
            assert!(!one(values), "{values:?}");
        }
    }

    #[test]
    fn paths_and_urls_are_targets() {
        for target in ["/", "/a b", "//a", "/?x", "http://h", "HTTPS://h/a"] {
            assert!(is_path_or_url(target.as_bytes()), "{target}");
        }
        for target in ["", "a", "*", "h:443", "ftp://h/a", "http:/a", "x:y://h/a"] {
            assert!(!is_path_or_url(target.as_bytes()), "{target}");
        }
    }

    #[test]
    fn a_length_is_found_whatever_its_case_and_line_ends() {
        for raw in [
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n",
            "POST / HTTP/1.1\ncontent-LENGTH:5\n\n",
        ] {
            assert!(names_a_length(raw.as_bytes()), "{raw:?}");
        }
        for raw in [
            "POST / HTTP/1.1\r\nX-Content-Length: 5\r\n\r\n",
            "POST /?content-length: HTTP/1.1\r\nContent-Lengths: 5\r\n\r\n",
            "",
        ] {
            assert!(!names_a_length(raw.as_bytes()), "{raw:?}");
        }
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
