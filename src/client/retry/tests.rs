use std::io::ErrorKind;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, StatusCode};

use super::*;

type Outcome = Result<ClientResponse, ClientError>;

const HOUR: Duration = Duration::from_secs(3600);

fn says(status: u16, retry_after: Option<&'static str>) -> Outcome {
    let mut headers = HeaderMap::new();
    headers.extend(retry_after.map(|value| (RETRY_AFTER, HeaderValue::from_static(value))));
    Ok(ClientResponse {
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
        ("429, no time", M::GET, 1, says(429, None), HOUR, None),
        ("429 POST", M::POST, 1, says(429, Some("1")), HOUR, seconds(1)),
        ("longer than Go counts", M::GET, 1, says(503, Some("9223372036854775807")), HOUR, None),
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
fn client_gos_contract_within_a_deadline_row_by_row() {
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
