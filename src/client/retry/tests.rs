use std::io::ErrorKind;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};

use super::*;

type Outcome = Result<Answer, ClientError>;

const HOUR: Duration = Duration::from_secs(3600);

fn says(status: u16, retry_after: Option<&'static str>) -> Outcome {
    let mut headers = HeaderMap::new();
    headers.extend(retry_after.map(|value| (RETRY_AFTER, HeaderValue::from_static(value))));
    Ok(Answer {
        status: StatusCode::from_u16(status).unwrap(),
        headers,
        body: Bytes::new(),
    })
}

fn fails_to_connect(kind: ErrorKind) -> Outcome {
    Err(ClientError::Connect(kind.into()))
}

fn breaks() -> Outcome {
    Err(ClientError::Exchange("reset".into()))
}

fn seconds(count: u64) -> Option<Duration> {
    Some(Duration::from_secs(count))
}

fn millis(count: u64) -> Option<Duration> {
    Some(Duration::from_millis(count))
}

/// Name, method, tries, outcome, time left, expected pause with the longest jitter.
type Row = (
    &'static str,
    Method,
    u32,
    Outcome,
    Duration,
    Option<Duration>,
);

#[rustfmt::skip]
fn answers() -> Vec<Row> {
    use Method as M;
    let two = Duration::from_secs(2);
    vec![
        ("success", M::GET, 1, says(200, None), HOUR, None),
        ("success says 1", M::GET, 1, says(200, Some("1")), HOUR, None),
        ("redirect says 1", M::GET, 1, says(302, Some("1")), HOUR, None),
        ("404 says 1", M::GET, 1, says(404, Some("1")), HOUR, None),
        ("conflict", M::PUT, 1, says(409, Some("1")), HOUR, None),
        ("429, no time", M::GET, 1, says(429, None), HOUR, None),
        ("503, no time", M::GET, 1, says(503, None), HOUR, None),
        ("429 GET", M::GET, 1, says(429, Some("1")), HOUR, seconds(1)),
        ("429 POST", M::POST, 1, says(429, Some("1")), HOUR, seconds(1)),
        ("429 PUT", M::PUT, 1, says(429, Some("3")), HOUR, seconds(3)),
        ("429 DELETE", M::DELETE, 1, says(429, Some("1")), HOUR, seconds(1)),
        ("500 PATCH", M::PATCH, 1, says(500, Some("7")), HOUR, seconds(7)),
        ("503 POST", M::POST, 1, says(503, Some("5")), HOUR, seconds(5)),
        ("599", M::GET, 1, says(599, Some("1")), HOUR, seconds(1)),
        ("499 says 1", M::GET, 1, says(499, Some("1")), HOUR, None),
        ("zero", M::POST, 1, says(503, Some("0")), HOUR, seconds(0)),
        ("negative", M::POST, 1, says(503, Some("-4")), HOUR, seconds(0)),
        ("a date", M::GET, 1, says(503, Some("Fri, 31 Dec 1999 23:59:59 GMT")), HOUR, None),
        ("a fraction", M::GET, 1, says(503, Some("1.5")), HOUR, None),
        ("empty", M::GET, 1, says(503, Some("")), HOUR, None),
        ("beyond all numbers", M::GET, 1, says(503, Some("99999999999999999999")), HOUR, None),
        ("longer than Go counts", M::GET, 1, says(503, Some("9223372036854775807")), HOUR, None),
        ("tenth retry", M::PUT, 10, says(429, Some("1")), HOUR, seconds(1)),
        ("no eleventh retry", M::PUT, 11, says(429, Some("1")), HOUR, None),
        ("just before the deadline", M::PUT, 1, says(429, Some("1")), two, seconds(1)),
        ("at the deadline", M::PUT, 1, says(429, Some("2")), two, None),
        ("after the deadline", M::PUT, 1, says(429, Some("60")), two, None),
        ("no time left", M::PUT, 1, says(429, Some("0")), Duration::ZERO, None),
    ]
}

#[rustfmt::skip]
fn errors() -> Vec<Row> {
    use Method as M;
    let timeout = || Err(ClientError::Timeout(Duration::from_secs(1)));
    let reset = || fails_to_connect(ErrorKind::ConnectionReset);
    vec![
        ("broken GET", M::GET, 1, breaks(), HOUR, millis(100)),
        ("broken GET again", M::GET, 2, breaks(), HOUR, millis(200)),
        ("broken GET, fifth", M::GET, 5, breaks(), HOUR, millis(1600)),
        ("broken GET, tenth", M::GET, 10, breaks(), HOUR, seconds(5)),
        ("broken GET, eleventh", M::GET, 11, breaks(), HOUR, None),
        ("broken GET, deadline", M::GET, 1, breaks(), Duration::from_millis(100), None),
        ("broken POST", M::POST, 1, breaks(), HOUR, None),
        ("broken PUT", M::PUT, 1, breaks(), HOUR, None),
        ("broken DELETE", M::DELETE, 1, breaks(), HOUR, None),
        ("broken HEAD", M::HEAD, 1, breaks(), HOUR, None),
        ("no connection, GET", M::GET, 1, reset(), HOUR, millis(100)),
        ("no connection, PUT", M::PUT, 1, reset(), HOUR, None),
        ("bad certificate", M::GET, 1, fails_to_connect(ErrorKind::InvalidData), HOUR, None),
        ("refused", M::GET, 1, Err(ClientError::Refused), HOUR, None),
        ("refused PUT", M::PUT, 1, Err(ClientError::Refused), HOUR, None),
        ("timeout", M::GET, 1, timeout(), HOUR, None),
    ]
}

#[test]
fn client_gos_contract_row_by_row() {
    for (name, method, tries, outcome, left, expected) in answers().into_iter().chain(errors()) {
        let pause = pause(&method, tries, &outcome, left, 1.0);
        assert_eq!(pause, expected, "{name}");
    }
}

#[test]
fn jitter_takes_at_most_half_of_a_backoff_and_nothing_of_what_a_server_asked_for() {
    let with = |outcome: &Outcome, random| pause(&Method::GET, 2, outcome, HOUR, random);
    assert_eq!(with(&breaks(), 0.0), millis(100));
    assert_eq!(with(&breaks(), 0.5), millis(150));
    assert_eq!(with(&says(429, Some("2")), 0.0), seconds(2));
}
