//! Which form of a `Status` a client accepts, negotiated as kube-apiserver does for its errors. Pure.
//!
//! kube-apiserver has JSON, YAML and protobuf, in this order of preference. What it would say in YAML is said in JSON
//! here, which is YAML too; and so is what it could say in no form that is accepted.

use http::HeaderValue;

/// The media type of Kubernetes' protobuf form.
const PROTOBUF: (&str, &str) = ("application", "vnd.kubernetes.protobuf");
/// Most clauses that are looked at: more have never been seen, and ordering them takes quadratic time.
const MOST: usize = 12;

/// A form that a `Status` can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// `application/json`
    Json,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

impl Form {
    /// `accept`: the first `Accept` header of the request; kube-apiserver reads no other.
    pub fn accepted(accept: Option<&HeaderValue>) -> Self {
        let accept = accept.and_then(|value| value.to_str().ok()).unwrap_or("");
        let clauses = accept.split(',').filter_map(Clause::read).take(MOST);
        let clauses = in_order(clauses.collect());
        let chosen = clauses.iter().find_map(Clause::form);
        chosen.unwrap_or(Form::Json)
    }

    /// For `Content-Type`.
    pub fn media_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Form::Json => "application/json",
            Form::Protobuf => "application/vnd.kubernetes.protobuf",
        })
    }
}

/// Whether discovery that came as `content_type` was asked for without what peers have (`profile=nopeer`): by the first
/// clause that it answers.
pub fn is_for_one_server(accept: Option<&HeaderValue>, content_type: &str) -> bool {
    let accept = accept.and_then(|value| value.to_str().ok()).unwrap_or("");
    let Some(given) = Clause::read(content_type) else {
        return false;
    };
    let clauses = accept.split(',').filter_map(Clause::read).take(MOST);
    let clauses = in_order(clauses.collect());
    let answered = clauses.iter().find(|clause| clause.is_answered_by(&given));
    answered.is_some_and(|clause| clause.value("profile") == "nopeer")
}

/// One media type of the header, with its parameters.
struct Clause<'a> {
    kind: &'a str,
    sub: &'a str,
    parameters: &'a str,
    quality: f32,
}

impl<'a> Clause<'a> {
    fn read(text: &'a str) -> Option<Self> {
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

    /// Names and values; those that are none are passed over.
    fn parameters(&self) -> impl DoubleEndedIterator<Item = (&'a str, &'a str)> + use<'a> {
        let pairs = self.parameters.split(';');
        let pairs = pairs.filter_map(|pair| pair.split_once('='));
        let pairs = pairs.filter(|(_, value)| !value.is_empty() && !value.contains('='));
        pairs.map(|(name, value)| (trim(name), value))
    }

    fn value(&self, name: &str) -> &'a str {
        let found = self.parameters().rfind(|(known, _)| *known == name);
        found.map_or("", |(_, value)| trim(value))
    }

    /// Whether an answer of the media type `given` is what this clause asks for.
    fn is_answered_by(&self, given: &Self) -> bool {
        let fits = |ours: &str, given: &str| ours == "*" || ours == given;
        fits(self.kind, given.kind)
            && fits(self.sub, given.sub)
            && ["g", "v", "as"]
                .iter()
                .all(|name| self.value(name) == given.value(name))
    }

    /// The form that answers this clause, if there is one.
    fn form(&self) -> Option<Form> {
        // A Status is no table, and no object of another version.
        let fits = self.parameters().all(|(name, value)| match name {
            "as" | "g" | "v" => false,
            "stream" => matches!(trim(value), "" | "watch"),
            "sv" => trim(value).is_empty(),
            _ => true,
        });
        match (self.kind, self.sub) {
            _ if !fits => None,
            ("*", "*") | ("application", "*" | "json" | "yaml") => Some(Form::Json),
            media_type if media_type == PROTOBUF => Some(Form::Protobuf),
            _ => None,
        }
    }

    /// kube-apiserver's order, which is not transitive.
    fn before(&self, other: &Self) -> bool {
        self.quality > other.quality
            || (self.kind != "*" && other.kind == "*")
            || (self.sub != "*" && other.sub == "*")
    }
}

/// Sorted by insertion, as Go sorts few: with an order that is not transitive the way matters.
fn in_order(clauses: Vec<Clause<'_>>) -> Vec<Clause<'_>> {
    let mut sorted: Vec<Clause<'_>> = Vec::with_capacity(clauses.len());
    for clause in clauses {
        let behind = sorted.iter().rev().take_while(|other| clause.before(other));
        let at = sorted.len() - behind.count();
        sorted.insert(at, clause);
    }
    sorted
}

/// kube-apiserver trims blanks, and nothing else.
fn trim(text: &str) -> &str {
    text.trim_matches(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(accept: &str) -> Form {
        Form::accepted(Some(&HeaderValue::from_str(accept).unwrap()))
    }

    #[test]
    fn without_the_header_it_is_json() {
        assert_eq!(Form::accepted(None), Form::Json);
        let odd = HeaderValue::from_bytes(b"application/vnd.kubernetes.protobuf\xff").unwrap();
        assert_eq!(Form::accepted(Some(&odd)), Form::Json);
    }

    #[test]
    fn protobuf_is_for_those_that_want_it_first() {
        for accept in [
            "application/vnd.kubernetes.protobuf",
            "application/vnd.kubernetes.protobuf,application/json",
            "application/vnd.kubernetes.protobuf, */*",
            "application/vnd.kubernetes.protobuf;type=watch",
            "application/vnd.kubernetes.protobuf;stream=watch, application/json;stream=watch",
            "application/json;q=0.5, application/vnd.kubernetes.protobuf",
            "*/*, application/vnd.kubernetes.protobuf;q=0.1",
            "text/html, application/vnd.kubernetes.protobuf",
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/vnd.kubernetes.protobuf",
            "application/vnd.kubernetes.protobuf;q=0",
        ] {
            assert_eq!(accepted(accept), Form::Protobuf, "{accept}");
        }
    }

    #[test]
    fn everything_else_is_json() {
        for accept in [
            "",
            "*",
            "*/*",
            "application/*",
            "application/json",
            "application/json, application/vnd.kubernetes.protobuf",
            "application/vnd.kubernetes.protobuf;q=0.9, application/json",
            "application/vnd.kubernetes.protobuf;q=0.5, */*",
            "application/vnd.kubernetes.protobuf;q=x, application/json;q=0.1",
            "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1",
            "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1, application/json",
            "application/vnd.kubernetes.protobuf;stream=other",
            "application/vnd.kubernetes.protobuf;sv=v1",
            "application/vnd.kubernetes.protobuf/x",
            "application/yaml, application/vnd.kubernetes.protobuf",
            "Application/vnd.kubernetes.protobuf",
            "text/html",
            ",,;;=/",
        ] {
            assert_eq!(accepted(accept), Form::Json, "{accept}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_header_is_read(accept in "[a-z*/;,=. q0-9]{0,200}") {
            accepted(&accept);
        }
    }

    #[test]
    fn what_was_asked_for_without_peers_contents_is_told_by_the_clause_that_was_answered() {
        const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        const BETA: &str =
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        let one = |accept: &str, given: &str| {
            is_for_one_server(Some(&HeaderValue::from_str(accept).unwrap()), given)
        };
        assert!(one(&format!("{V2};profile=nopeer,application/json"), V2));
        assert!(one(&format!("{V2};profile=nopeer,{V2}"), V2));
        assert!(!one(
            &format!("{V2};profile=nopeer,{BETA},application/json"),
            BETA
        ));
        assert!(!one(
            &format!("{V2};profile=nopeer,application/json"),
            "application/json"
        ));
        assert!(one("application/json;profile=nopeer", "application/json"));
        assert!(!one(&format!("{V2},{V2};profile=nopeer"), V2));
        assert!(!one("*/*", "application/json"));
        assert!(one("*/*;profile=nopeer", "application/yaml"));
        assert!(!is_for_one_server(None, "application/json"));
        assert!(!one("application/json;profile=nopeer", ""));
    }
}
