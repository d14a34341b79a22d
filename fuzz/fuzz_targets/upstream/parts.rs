//! What a server does on a connection.

use arbitrary::Arbitrary;

pub const STATUSES: [&str; 16] = [
    "200", "200", "200", "100", "101", "103", "204", "304", "400", "401", "404", "410", "429",
    "500", "503", "999",
];
const FIELDS: [(&str, &str); 24] = [
    ("content-length", "5"),
    ("content-length", "0"),
    ("content-length", "65536"),
    ("content-length", "x"),
    ("transfer-encoding", "chunked"),
    ("connection", "close"),
    ("connection", "x-double"),
    ("retry-after", "1"),
    ("content-type", "application/json"),
    ("content-type", "application/json;stream=watch"),
    (
        "content-type",
        "application/vnd.kubernetes.protobuf;stream=watch",
    ),
    ("content-type", "text/plain"),
    ("content-encoding", "gzip"),
    ("upgrade", "websocket"),
    ("trailer", "x"),
    ("te", "gzip"),
    ("location", "https://127.0.0.1/"),
    ("x-kube-interop-proxy-not-executed", "true"),
    ("x-kube-interop-proxy-not-executed", "resource"),
    ("x-kube-interop-proxy-server-id", "b"),
    ("x-kubernetes-ready", "true"),
    ("date", ""),
    (":path", "/"),
    ("X-Upper", "1"),
];
/// Bodies that mean something to the proxy, over HTTP/1.1.
const BODIES: [&str; 4] = [
    "404 page not found\n",
    r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","code":410}}"#,
    r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","details":{},"code":404}"#,
    "5\r\nhello\r\n0\r\n\r\n",
];

#[derive(Debug, Clone, Arbitrary)]
pub enum Part {
    /// Until so many requests have arrived.
    Await {
        requests: u8,
    },
    Head {
        stream: u8,
        status: u8,
        fields: Vec<u8>,
        end: bool,
        split: Option<u8>,
    },
    Data {
        stream: u8,
        length: u16,
        padding: Option<u8>,
        end: bool,
    },
    /// A body that means something, over HTTP/1.1.
    Meaning {
        body: u8,
    },
    Trailers {
        stream: u8,
        fields: Vec<u8>,
    },
    Reset {
        stream: u8,
        code: u8,
    },
    GoAway {
        last: u8,
        code: u8,
    },
    Window {
        stream: u8,
        by: u32,
    },
    Setting {
        name: u8,
        value: u32,
    },
    Any {
        kind: u8,
        flags: u8,
        stream: u8,
        payload: Vec<u8>,
    },
    Pause {
        seconds: u8,
    },
    /// From now on no ping is answered.
    Silence,
}

/// Bytes of bodies, by where they are.
pub fn pattern(from: usize, length: usize) -> Vec<u8> {
    let byte = |at| u8::try_from(at % 251).expect("less than 251");
    (from..from + length).map(byte).collect()
}

/// The bytes of a part over HTTP/1.1.
pub fn http1(part: &Part) -> Vec<u8> {
    match part {
        Part::Head { status, fields, .. } => {
            let mut text = format!("HTTP/1.1 {} x\r\nx-double: 1\r\n", pick(&STATUSES, *status));
            for (name, value) in self::fields(fields) {
                text += &format!("{name}: {value}\r\n");
            }
            (text + "\r\n").into_bytes()
        }
        Part::Data { length, .. } => pattern(0, usize::from(*length) % (16 << 10)),
        Part::Meaning { body } => pick(&BODIES, *body).into(),
        Part::Any { payload, .. } => payload.clone(),
        _ => Vec::new(),
    }
}

pub fn pick(from: &[&'static str], number: u8) -> &'static str {
    from[usize::from(number) % from.len()]
}

/// Header fields by number.
pub fn fields(numbers: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    let field = |number: &u8| FIELDS[usize::from(*number) % FIELDS.len()];
    numbers.iter().map(field)
}
