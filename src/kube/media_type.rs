//! Media types of Kubernetes' API, and `Accept` headers as kube-apiserver reads them. Pure.

use http::HeaderValue;

pub const JSON: &str = "application/json";
pub const YAML: &str = "application/yaml";
/// Objects in protobuf, in [`super::envelope`].
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// `/openapi/v2` in protobuf, by both of kube-apiserver's names for it.
pub const ACCEPT_OPENAPI_V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf,\
    application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// Aggregated discovery, the newest version first, without the additions of a native peer proxy.
pub const ACCEPT_AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,\
    application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
    application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,\
    application/json";

/// Whether the response to [`ACCEPT_AGGREGATED`] is aggregated discovery.
pub fn is_aggregated(content_type: &str) -> bool {
    content_type.contains("g=apidiscovery.k8s.io")
        && content_type.contains("as=APIGroupDiscoveryList")
}

/// A `Content-Type` without its parameters.
pub fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or("").trim()
}

/// Most clauses that are read. Real clients send fewer, and sorting takes quadratic time.
const MOST_CLAUSES: usize = 12;

/// The clauses of an `Accept` header, the preferred one first. `accept`: the request's first `Accept` header, the only
/// one that kube-apiserver reads.
pub fn accepted(accept: Option<&HeaderValue>) -> Vec<AcceptClause<'_>> {
    let accept = accept.and_then(|value| value.to_str().ok()).unwrap_or("");
    let clauses = accept.split(',').filter_map(AcceptClause::read);
    // Sorted by insertion, as Go sorts short lists: the order is not transitive, so the algorithm matters.
    let mut sorted: Vec<AcceptClause<'_>> = Vec::new();
    for clause in clauses.take(MOST_CLAUSES) {
        let behind = sorted.iter().rev().take_while(|other| clause.before(other));
        let at = sorted.len() - behind.count();
        sorted.insert(at, clause);
    }
    sorted
}

/// One clause of an `Accept` header: a media type with its parameters.
pub struct AcceptClause<'a> {
    /// `application`
    pub kind: &'a str,
    /// `json`
    pub sub: &'a str,
    parameters: &'a str,
    quality: f32,
}

impl<'a> AcceptClause<'a> {
    /// Also parses a `Content-Type`. `None`: the clause is malformed.
    pub fn read(text: &'a str) -> Option<Self> {
        let (media_type, parameters) = text.split_once(';').unwrap_or((text, ""));
        let (kind, sub) = media_type.split_once('/').unwrap_or((media_type, ""));
        let (kind, sub) = match (trim(kind), trim(sub)) {
            ("*", "") => ("*", "*"),
            (_, sub) if sub.is_empty() || sub.contains('/') => return None,
            both => both,
        };
        let mut clause = Self {
            kind,
            sub,
            parameters,
            quality: 1.0,
        };
        if let Some((_, quality)) = clause.parameters().rfind(|(name, _)| *name == "q") {
            clause.quality = quality.parse().unwrap_or(0.0);
        }
        Some(clause)
    }

    /// Names and values, without malformed pairs.
    pub fn parameters(&self) -> impl DoubleEndedIterator<Item = (&'a str, &'a str)> + use<'a> {
        let pairs = self.parameters.split(';');
        let pairs = pairs.filter_map(|pair| pair.split_once('='));
        let pairs = pairs.filter(|(_, value)| !value.is_empty() && !value.contains('='));
        pairs.map(|(name, value)| (trim(name), value))
    }

    /// The last value of a parameter; empty if it is missing.
    pub fn value(&self, name: &str) -> &'a str {
        let found = self.parameters().rfind(|(known, _)| *known == name);
        found.map_or("", |(_, value)| trim(value))
    }

    /// Whether this clause accepts a response of the media type `given`.
    pub fn is_answered_by(&self, given: &Self) -> bool {
        let fits = |ours: &str, given: &str| ours == "*" || ours == given;
        fits(self.kind, given.kind)
            && fits(self.sub, given.sub)
            && ["g", "v", "as"]
                .iter()
                .all(|name| self.value(name) == given.value(name))
    }

    /// kube-apiserver's order, which is not transitive.
    fn before(&self, other: &Self) -> bool {
        self.quality > other.quality
            || (self.kind != "*" && other.kind == "*")
            || (self.sub != "*" && other.sub == "*")
    }
}

/// kube-apiserver trims spaces only.
pub fn trim(text: &str) -> &str {
    text.trim_matches(' ')
}
