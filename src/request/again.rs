//! What is kept of a watch's request, so that another server can be asked for the rest of the watch (KEP-1904). Pure.
//!
//! A watch is open for hours, and there are thousands: only what decides its events and who asks is kept, packed.

use std::time::{Duration, Instant};

use http::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use http::request::Parts;
use http::{Request, Version};

use super::headers::PrivilegedHeaders;
use super::info::{parameter_name, query_values};

/// Longest target and fields that are kept. A watch with longer selectors does not go on elsewhere.
const LIMIT: usize = 4 << 10;
/// Parameters that are set anew.
const REPLACED: [&str; 4] = [
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
];
/// Other parameters of a watch that kube-apiserver 1.20 knows.
const COMMON: [&str; 8] = [
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "pretty",
    "timeout",
    "watch",
];
const IMPERSONATE: &str = "impersonate-";

/// A watch's request.
#[derive(Debug)]
pub struct WatchRequest {
    /// Path and query, without the parameters that are set anew, which may follow.
    target: Box<str>,
    /// It has parameters that not every version knows, as `shardSelector` of 1.36. A server that does not know one ignores it.
    pub has_rare_parameters: bool,
    /// Names and values of header fields, each behind its length.
    fields: Box<[u8]>,
    /// Shared by all watches of a connection.
    authorization: Option<HeaderValue>,
    /// When the client's `timeoutSeconds` are over.
    end: Option<Instant>,
}

impl WatchRequest {
    /// `vouched`: the headers that name the user, if the client is trusted to name its user. `authorization`: as it came.
    /// `None`: it is too long.
    pub fn of(
        header: &Parts,
        vouched: Option<&PrivilegedHeaders>,
        authorization: Option<HeaderValue>,
        now: Instant,
    ) -> Option<Self> {
        let target = header.uri.path_and_query()?.as_str();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.filter_map(|pair| Some((parameter_name(pair)?, pair)));
        let kept: Vec<_> = pairs
            .filter(|(name, _)| !REPLACED.contains(&&**name))
            .collect();
        let has_rare_parameters = kept.iter().any(|(name, _)| !COMMON.contains(&&**name));
        let kept = kept.iter().flat_map(|(_, pair)| [pair, "&"]);
        let kept: String = kept.collect();
        let seconds = query_values(Some(query), "timeoutSeconds").next();
        let seconds = seconds.and_then(|seconds| seconds.parse().ok());
        let is_kept = |name: &HeaderName| {
            *name == ACCEPT
                || *name == USER_AGENT
                || name.as_str().starts_with(IMPERSONATE)
                || vouched.is_some_and(|vouched| vouched.names_user(name.as_str()))
        };
        let fields = header.headers.iter().filter(|(name, _)| is_kept(name));
        let fields = fields.flat_map(|(name, value)| [name.as_str().as_bytes(), value.as_bytes()]);
        let fields =
            fields.flat_map(|part| [&(part.len() as u16).to_be_bytes()[..], part].concat());
        let this = Self {
            target: format!("{path}?{kept}").into(),
            has_rare_parameters,
            fields: fields.collect(),
            authorization,
            end: seconds
                .filter(|seconds| *seconds > 0)
                .and_then(|seconds| now.checked_add(Duration::from_secs(seconds))),
        };
        (this.target.len() + this.fields.len() <= LIMIT).then_some(this)
    }

    /// Whether the client's time is over, in whole seconds.
    pub fn is_over(&self, now: Instant) -> bool {
        self.seconds_left(now) == Some(0)
    }

    fn seconds_left(&self, now: Instant) -> Option<u64> {
        let left = self.end?.saturating_duration_since(now);
        Some(left.as_secs())
    }

    /// The header of a request for what comes after `revision`. `None`: the client's time is over.
    pub fn after(&self, revision: i64, now: Instant) -> Option<Parts> {
        let mut target = format!("{}resourceVersion={revision}", self.target);
        match self.seconds_left(now) {
            Some(0) => return None,
            Some(left) => target.push_str(&format!("&timeoutSeconds={left}")),
            None => {}
        }
        let mut header = Request::get(target)
            .version(Version::HTTP_2)
            .body(())
            .ok()?;
        *header.headers_mut() = self.fields()?;
        Some(header.into_parts().0)
    }

    fn fields(&self) -> Option<HeaderMap> {
        let mut fields = HeaderMap::new();
        let mut packed = &*self.fields;
        let mut next = || {
            let (length, after) = packed.split_first_chunk::<2>()?;
            let length = usize::from(u16::from_be_bytes(*length));
            let (part, after) = after.split_at_checked(length)?;
            packed = after;
            Some(part)
        };
        while let Some((name, value)) = next().zip(next()) {
            let name = HeaderName::from_bytes(name).ok()?;
            let value = HeaderValue::from_bytes(value).ok()?;
            fields.try_append(name, value).ok()?;
        }
        if let Some(value) = self.authorization.clone() {
            fields.try_append(AUTHORIZATION, value).ok()?;
        }
        Some(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(target: &str, fields: &[(&str, &str)]) -> Parts {
        let mut request = Request::get(target);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn again(target: &str, seconds: u64) -> Option<String> {
        let now = Instant::now();
        let kept = WatchRequest::of(&request(target, &[]), None, None, now).unwrap();
        let header = kept.after(70, now + Duration::from_secs(seconds))?;
        Some(header.uri.to_string())
    }

    #[test]
    fn a_watch_is_asked_for_from_where_it_stopped_and_for_the_time_that_is_left() {
        for (before, after) in [
            (
                "/api/v1/pods?watch=1&resourceVersion=5",
                "/api/v1/pods?watch=1&resourceVersion=70",
            ),
            (
                "/api/v1/watch/pods",
                "/api/v1/watch/pods?resourceVersion=70",
            ),
            (
                "/api/v1/pods?allowWatchBookmarks=true&resource%56ersion=5&timeoutSeconds=100&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&labelSelector=a%3Db",
                "/api/v1/pods?allowWatchBookmarks=true&watch=true&labelSelector=a%3Db&resourceVersion=70&timeoutSeconds=90",
            ),
            (
                "/api/v1/pods?watch=1&timeoutSeconds=x",
                "/api/v1/pods?watch=1&resourceVersion=70",
            ),
        ] {
            assert_eq!(again(before, 10).as_deref(), Some(after), "{before}");
        }
        assert_eq!(again("/api/v1/pods?watch=1&timeoutSeconds=10", 10), None);
    }

    #[test]
    fn parameters_that_a_version_may_not_know_are_noted() {
        let rare = |target| {
            let kept = WatchRequest::of(&request(target, &[]), None, None, Instant::now());
            kept.unwrap().has_rare_parameters
        };
        assert!(!rare(
            "/api/v1/pods?watch=1&resourceVersion=5&sendInitialEvents=true&limit=5"
        ));
        assert!(rare("/api/v1/pods?watch=1&shardSelector=x"));
        assert!(rare("/api/v1/pods?watch=1&s%68ardSelector"));
    }

    #[test]
    fn what_decides_the_events_and_who_asks_is_kept() {
        let fields = [
            ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io"),
            ("user-agent", "kubectl/v1.36.2"),
            ("impersonate-user", "a"),
            ("impersonate-group", "b"),
            ("impersonate-group", "c"),
        ];
        let others = [
            ("traceparent", "x"),
            ("cookie", "y"),
            ("x-remote-user", "z"),
        ];
        let header = request("/api/v1/pods?watch=1", &[&fields[..], &others].concat());
        let token = HeaderValue::from_static("Bearer t");
        let kept = WatchRequest::of(&header, None, Some(token), Instant::now()).unwrap();
        let again = kept.after(70, Instant::now()).unwrap();
        let mut expected = request("/", &fields).headers;
        expected.append("authorization", HeaderValue::from_static("Bearer t"));
        assert_eq!(again.headers, expected);
    }

    #[test]
    fn what_is_too_long_is_not_kept() {
        let target = format!("/api/v1/pods?watch=1&labelSelector={}", "a".repeat(LIMIT));
        assert!(WatchRequest::of(&request(&target, &[]), None, None, Instant::now()).is_none());
    }
}
