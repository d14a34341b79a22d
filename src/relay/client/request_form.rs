//! The form of requests: what Go's HTTP server accepts, and all parsers read the same way.

use http::header::{CONTENT_LENGTH, EXPECT, HOST, HeaderValue, TRANSFER_ENCODING};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, Version};
use pingora_core::protocols::http::ServerSession;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
