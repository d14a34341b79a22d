//! HTTP/1.1 requests with ambiguous chunks or lines. Like Go, the proxy serves a request that has only one reading,
//! and rejects the others.

use Expect::{Cut, Refused, Seen};

/// What an apiserver may see of it.
#[derive(Clone, Copy, Debug)]
pub enum Expect {
    /// Exactly these, each answered, and nothing is refused.
    Seen(&'static [&'static str]),
    /// Nothing; 400, and an end.
    Refused,
    /// Nothing whole: the header was good, and the body is not.
    Cut,
}

/// Name, bytes, and what may come of them; what [`LAST`] is for follows each.
pub type Case = (&'static str, &'static str, Expect);

/// Follows every case, so that its connection comes to an end: a request of its own if the case had one end.
pub const LAST: &str = "GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

pub(super) const BODY: Expect = Seen(&["POST /told [hello] as alice", "GET /last [] as alice"]);
const PLAIN: Expect = Seen(&["GET /told [] as alice", "GET /last [] as alice"]);

/// pingora takes no size for a size of 0, and what is behind it, up to an empty line, for trailers: a body that ends
/// too early, and nobody else's request.
const NO_SIZE: Expect = Seen(&["POST /told [] as alice", "GET /last [] as alice"]);

/// A request whose chunks these are.
macro_rules! chunked {
    ($chunks:literal) => {
        concat!(
            "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
            $chunks
        )
    };
}

/// Where a chunk ends.
pub const CHUNKS: &[Case] = &[
    (
        "an extension",
        chunked!("5;ext=\"a;b\"\r\nhello\r\n0\r\n\r\n"),
        BODY,
    ),
    (
        "trailers",
        chunked!(
            "5\r\nhello\r\n0\r\nX-Remote-User: kubernetes-admin\r\nContent-Length: 100\r\n\r\n"
        ),
        BODY,
    ),
    (
        "leading zeros",
        chunked!("005\r\nhello\r\n000\r\n\r\n"),
        BODY,
    ),
    (
        "another request behind it",
        chunked!(
            "5\r\nhello\r\n0\r\n\r\nGET /second HTTP/1.1\r\nHost: x\r\nX-Remote-User: kubernetes-admin\r\n\r\n"
        ),
        Seen(&[
            "POST /told [hello] as alice",
            "GET /second [] as alice",
            "GET /last [] as alice",
        ]),
    ),
    ("a sign", chunked!("+5\r\nhello\r\n0\r\n\r\n"), Cut),
    ("negative", chunked!("-5\r\nhello\r\n0\r\n\r\n"), Cut),
    (
        "hexadecimal twice",
        chunked!("0x5\r\nhello\r\n0\r\n\r\n"),
        Cut,
    ),
    ("an underscore", chunked!("0_5\r\nhello\r\n0\r\n\r\n"), Cut),
    ("no size", chunked!("\r\nhello\r\n0\r\n\r\n"), NO_SIZE),
    ("no digit", chunked!("g\r\nhello\r\n0\r\n\r\n"), Cut),
    (
        "more than 64 bits",
        chunked!("10000000000000005\r\nhello\r\n0\r\n\r\n"),
        Cut,
    ),
    (
        "a NUL behind the size",
        chunked!("5\0\r\nhello\r\n0\r\n\r\n"),
        Cut,
    ),
    (
        "a bare CR behind the size",
        chunked!("5\rhello\r\n0\r\n\r\n"),
        Cut,
    ),
    (
        "a bare LF behind the size",
        chunked!("5\nhello\r\n0\r\n\r\n"),
        Cut,
    ),
    (
        "a bare LF in an extension",
        chunked!("5;\nhello\r\n0\r\n\r\n"),
        Cut,
    ),
    (
        "more than it says",
        chunked!("5\r\nhello!\r\n0\r\n\r\n"),
        Cut,
    ),
    (
        "less than it says",
        chunked!("6\r\nhello\r\n0\r\n\r\n"),
        Cut,
    ),
    (
        "a bare LF behind it",
        chunked!("5\r\nhello\n0\r\n\r\n"),
        Cut,
    ),
    (
        "a bare CR behind it",
        chunked!("5\r\nhello\r0\r\n\r\n"),
        Cut,
    ),
];

/// What a line is.
pub const LINES: &[Case] = &[
    (
        "empty lines before",
        "\r\n\r\nGET /told HTTP/1.1\r\nHost: x\r\n\r\n",
        PLAIN,
    ),
    (
        "an absolute target of another host",
        "GET https://other/told HTTP/1.1\r\nHost: x\r\n\r\n",
        Refused,
    ),
    (
        "a bare CR behind the target",
        "GET /told HTTP/1.1\rX: x\r\nHost: x\r\n\r\n",
        Refused,
    ),
    (
        "a bare CR in the target",
        "GET /told\rHTTP/1.1\r\nHost: x\r\n\r\n",
        Refused,
    ),
    (
        "a bare CR in a value",
        "GET /told HTTP/1.1\r\nHost: x\r\nX: a\rX-Remote-User: b\r\n\r\n",
        Refused,
    ),
    (
        "a bare CR as the end",
        "GET /told HTTP/1.1\r\nHost: x\r\n\rGET /smuggled HTTP/1.1\r\n",
        Refused,
    ),
    (
        "a NUL in a value",
        "GET /told HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n",
        Refused,
    ),
    (
        "a NUL in the target",
        "GET /to\0ld HTTP/1.1\r\nHost: x\r\n\r\n",
        Seen(&["GET /to%00ld [] as alice", "GET /last [] as alice"]),
    ),
    (
        "a name of nothing",
        "GET /told HTTP/1.1\r\nHost: x\r\n: x\r\n\r\n",
        Refused,
    ),
    (
        "a parenthesis in a name",
        "GET /told HTTP/1.1\r\nHost: x\r\nX(: x\r\n\r\n",
        Refused,
    ),
    (
        "a method that is no token",
        "GE(T /told HTTP/1.1\r\nHost: x\r\n\r\n",
        Refused,
    ),
    (
        "the first field folded",
        "GET /told HTTP/1.1\r\n Host: x\r\n\r\n",
        Refused,
    ),
    (
        "two hosts",
        "GET /told HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        Refused,
    ),
    (
        "the same host twice",
        "GET /told HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
        Refused,
    ),
    (
        "a version to come",
        "GET /told HTTP/1.2\r\nHost: x\r\n\r\n",
        Refused,
    ),
    (
        "a version of another protocol",
        "GET /told HTTP/2.0\r\nHost: x\r\n\r\n",
        Refused,
    ),
    (
        "a version in lower case",
        "GET /told http/1.1\r\nHost: x\r\n\r\n",
        Refused,
    ),
    (
        "a tab for a blank",
        "GET\t/told HTTP/1.1\r\nHost: x\r\n\r\n",
        Refused,
    ),
    ("no version", "GET /told\r\nHost: x\r\n\r\n", Refused),
    (
        "the preface of HTTP/2",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        Refused,
    ),
];
