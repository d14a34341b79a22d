//! Parses a path like kube-apiserver.

use std::collections::HashMap;

/// A path below a group version that names a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourcePath {
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    /// "" if there is none.
    pub namespace: String,
    /// "" for the collection.
    pub name: String,
    /// The deprecated `/watch/` prefix.
    pub watch_prefix: bool,
}

impl ResourcePath {
    /// `None`: no resource request.
    pub fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let (group, version, rest) = match &parts[..] {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let (watch_prefix, rest) = match rest {
            ["watch", rest @ ..] if !rest.is_empty() => (true, rest),
            rest => (false, rest),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, "status" | "finalize"] => {
                ("", ["namespaces", namespace, rest[2]].to_vec())
            }
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest.to_vec()),
            rest => ("", rest.to_vec()),
        };
        let mut rest = rest.into_iter();
        let resource = rest.next().filter(|resource| !resource.is_empty())?;
        Some(Self {
            group: group.to_owned(),
            version: version.to_owned(),
            resource: resource.to_owned(),
            namespace: decode(namespace),
            name: decode(rest.next().unwrap_or_default()),
            subresource: rest.next().unwrap_or_default().to_owned(),
            watch_prefix,
        })
    }
}

/// Query parameters; the first of each name counts.
pub fn query(text: &str) -> HashMap<String, String> {
    let mut parameters = HashMap::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        parameters
            .entry(decode(key))
            .or_insert_with(|| decode(&value.replace('+', " ")));
    }
    parameters
}

/// Percent-decodes; malformed escapes stay unchanged.
fn decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let digits = tail.get(..2).filter(|_| *first == b'%');
        let decoded = digits
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match decoded {
            Some(byte) => {
                out.push(byte);
                rest = &tail[2..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
