//! HTTP/1.1 requests with several or ambiguous lengths.

use super::corpus::Expect::{Refused, Seen};
use super::corpus::{BODY, Case};

/// Which of two lengths counts.
pub const LENGTHS: &[Case] = &[
    (
        "CL.TE",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nG",
        Refused,
    ),
    (
        "TE.CL",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n29\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\nX: smuggled\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "TE.CL, of the same body",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 15\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "TE and a CL of 0",
        "POST /told HTTP/1.1\r\nHost: x\r\ntransfer-encoding: CHUNKED\r\ncontent-length: 0\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "TE behind a bare LF, and CL",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nX: x\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "CL behind a bare LF, and TE",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nX: x\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "TE with an underscore is no TE",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer_Encoding: chunked\r\nContent-Length: 5\r\n\r\nhello",
        BODY,
    ),
    (
        "TE in another case",
        "POST /told HTTP/1.1\r\nHost: x\r\nTRANSFER-ENCODING:\tChunked \r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        BODY,
    ),
    (
        "TE.TE, unknown",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "TE.TE, identity",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n",
        Refused,
    ),
    (
        "TE.TE, empty",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n\r\n",
        Refused,
    ),
    (
        "TE.TE, chunked is not the last",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "TE.TE, chunked is the last",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "TE.TE, chunked twice",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "TE.TE, two lines",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "TE.TE, two lines, chunked is the last",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "TE.TE, the same twice",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "TE.TE, a vertical tab",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "TE.TE, quoted",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "TE.TE, a parameter",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "TE.TE, a NUL",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\0\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "TE.TE, a blank before the colon",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "TE.TE, folded",
        "POST /told HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "TE in HTTP/1.0",
        "POST /told HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        Refused,
    ),
    (
        "CL",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
        BODY,
    ),
    (
        "CL, the same in a list",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: 5, 5\r\n\r\nhello",
        BODY,
    ),
    (
        "CL, the same twice",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        BODY,
    ),
    (
        "CL, listed in Connection",
        "POST /told HTTP/1.1\r\nHost: x\r\nConnection: Content-Length\r\nContent-Length: 5\r\n\r\nhello",
        BODY,
    ),
    (
        "TE, listed in Connection",
        "POST /told HTTP/1.1\r\nHost: x\r\nConnection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        BODY,
    ),
    (
        "CL.CL",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 0\r\n\r\nhello",
        Refused,
    ),
    (
        "CL.CL, in a list",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: 0, 5\r\n\r\nhello",
        Refused,
    ),
    (
        "CL.CL, one is none",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: x\r\n\r\nhello",
        Refused,
    ),
    (
        "CL, a sign",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\nhello",
        Refused,
    ),
    (
        "CL, negative",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\nhello",
        Refused,
    ),
    (
        "CL, hexadecimal",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: 0x5\r\n\r\nhello",
        Refused,
    ),
    (
        "CL, a blank within",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: 5 5\r\n\r\nhello",
        Refused,
    ),
    (
        "CL, empty",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\nhello",
        Refused,
    ),
    (
        "CL, a list with nothing",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: 5,\r\n\r\nhello",
        Refused,
    ),
    (
        "CL, a semicolon",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: 5;5\r\n\r\nhello",
        Refused,
    ),
    (
        "CL, a fraction",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: 5.0\r\n\r\nhello",
        Refused,
    ),
    (
        "CL, an exponent",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: 5e0\r\n\r\nhello",
        Refused,
    ),
    (
        "CL, digits of others",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: \u{665}\r\n\r\nhello",
        Refused,
    ),
    (
        "CL, a vertical tab",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: 5\x0b\r\n\r\nhello",
        Refused,
    ),
    (
        "CL, more than 64 bits",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551621\r\n\r\nhello",
        Refused,
    ),
    (
        "CL, a blank before the colon",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length : 5\r\n\r\nhello",
        Refused,
    ),
    (
        "CL, folded",
        "POST /told HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n 5\r\n\r\nhello",
        Refused,
    ),
    (
        "a body that nobody measured",
        "GET /told HTTP/1.1\r\nHost: x\r\n\r\nGET /second HTTP/1.1\r\nHost: x\r\nX-Remote-User: kubernetes-admin\r\n\r\n",
        Seen(&[
            "GET /told [] as alice",
            "GET /second [] as alice",
            "GET /last [] as alice",
        ]),
    ),
];
