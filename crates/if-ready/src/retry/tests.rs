use http::HeaderValue;

use super::*;

fn headers(retry_after: Option<&'static str>) -> HeaderMap {
    let values = retry_after.map(|value| (RETRY_AFTER, HeaderValue::from_static(value)));
    values.into_iter().collect()
}

fn seconds(count: u64) -> Option<Duration> {
    Some(Duration::from_secs(count))
}

/// Name, method, tries, status, `Retry-After`, expected pause.
type Row = (
    &'static str,
    Method,
    u32,
    u16,
    Option<&'static str>,
    Option<Duration>,
);

#[rustfmt::skip]
fn answers() -> Vec<Row> {
    use Method as M;
    vec![
        ("success", M::GET, 1, 200, None, None),
        ("success says 1", M::GET, 1, 200, Some("1"), None),
        ("switched protocols", M::GET, 1, 101, Some("1"), None),
        ("redirect says 1", M::GET, 1, 302, Some("1"), None),
        ("404 says 1", M::GET, 1, 404, Some("1"), None),
        ("conflict", M::PUT, 1, 409, Some("1"), None),
        ("429, no time", M::GET, 1, 429, None, None),
        ("503, no time", M::GET, 1, 503, None, None),
        ("429 GET", M::GET, 1, 429, Some("1"), seconds(1)),
        ("429 POST", M::POST, 1, 429, Some("1"), seconds(1)),
        ("429 PUT", M::PUT, 1, 429, Some("3"), seconds(3)),
        ("429 DELETE", M::DELETE, 1, 429, Some("1"), seconds(1)),
        ("500 PATCH", M::PATCH, 1, 500, Some("7"), seconds(7)),
        ("503 POST", M::POST, 1, 503, Some("5"), seconds(5)),
        ("599", M::GET, 1, 599, Some("1"), seconds(1)),
        ("499 says 1", M::GET, 1, 499, Some("1"), None),
        ("zero", M::POST, 1, 503, Some("0"), seconds(0)),
        ("with a sign, as strconv.Atoi takes it", M::POST, 1, 503, Some("+4"), seconds(4)),
        ("negative", M::POST, 1, 503, Some("-4"), seconds(0)),
        ("an hour is not shortened", M::POST, 1, 503, Some("3600"), seconds(3600)),
        ("a date", M::GET, 1, 503, Some("Fri, 31 Dec 1999 23:59:59 GMT"), None),
        ("a fraction", M::GET, 1, 503, Some("1.5"), None),
        ("empty", M::GET, 1, 503, Some(""), None),
        ("beyond all numbers", M::GET, 1, 503, Some("99999999999999999999"), None),
        ("tenth retry", M::PUT, 10, 429, Some("1"), seconds(1)),
        ("no eleventh retry", M::PUT, 11, 429, Some("1"), None),
    ]
}

#[test]
fn client_gos_contract_row_by_row() {
    for (name, method, tries, status, retry_after, expected) in answers() {
        let (status, headers) = (StatusCode::from_u16(status).unwrap(), headers(retry_after));
        let outcome = Outcome::Answer(status, &headers);
        let pause = pause(&method, tries, MOST_RETRIES, outcome);
        assert_eq!(pause, expected, "{name}");
    }
}

#[test]
fn only_get_is_repeated_when_the_connection_broke() {
    let broken = Outcome::Broken(Duration::from_secs(1));
    let of = |method, tries, outcome| pause(&method, tries, MOST_RETRIES, outcome);
    assert_eq!(of(Method::GET, 1, broken), seconds(1));
    assert_eq!(of(Method::GET, 10, broken), seconds(1));
    assert_eq!(of(Method::GET, 11, broken), None);
    for method in [Method::HEAD, Method::POST, Method::PUT, Method::DELETE] {
        assert_eq!(of(method, 1, broken), None);
    }
    assert_eq!(of(Method::GET, 1, Outcome::Failed), None);
}
