//! What a request asks for: path and query, read as kube-apiserver reads them.
//!
//! The rules are those of `requestinfo.go` in `k8s.io/apiserver`, which works on the path that Go's
//! `net/url` has percent-decoded already, and cuts it at its slashes. They have not changed between
//! 1.20 and today.
//!
//! Invariant: a path counts as a resource or a discovery document only if no server between the
//! client and the apiserver's last handler can read it differently. Everything else is
//! [`Target::Other`], for the local apiserver alone to answer: broken escapes, dot segments other than
//! an object's name, empty segments, encoded slashes, control bytes, names that are not UTF-8. One
//! trailing slash is accepted: the apiserver and its routers trim it. So is any path after `proxy`, which belongs to
//! another server: only its escapes must be whole, because Go refuses the request otherwise.
//!
//! Pure and total: no I/O, no panic, and no allocation for a resource unless something is percent-encoded.

use crate::kube::discovery::DiscoveryDocument;
use crate::kube::gvr::GvrRef;
use std::borrow::Cow;

use http::Method;

use path::{ParsedPath, read_path};
use query::selected_name;
pub use query::{is_set, parameter_name, query_values};

mod path;
mod query;
#[cfg(test)]
mod tests;

/// What a request asks for, read the way kube-apiserver's RequestInfo does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestInfo<'a> {
    /// What the path names.
    pub target: Target<'a>,
    /// [`Verb::Other`] unless the target is a resource.
    pub verb: Verb,
    /// Whether the request may stay open indefinitely: no timeout applies, and draining ends it. As kube-apiserver's
    /// `BasicLongRunningRequestCheck`, but reading a log is only long when it is followed.
    pub long_running: bool,
}

impl RequestInfo<'_> {
    /// Whether kube-apiserver sets no limit to the time that its client takes: a log is read at the pace of its reader, also
    /// if it is not followed.
    pub fn is_unlimited(&self) -> bool {
        let is_log = |it: &ResourceRequest<'_>| it.subresource == "log";
        self.long_running || matches!(&self.target, Target::Resource(resource) if is_log(resource))
    }

    /// The resource of a resource request.
    pub fn gvr(&self) -> Option<GvrRef<'_>> {
        match &self.target {
            Target::Resource(resource) => Some(resource.into()),
            _ => None,
        }
    }

    /// Whether a server behind the apiserver's `proxy` subresource answers (a pod, for instance), not the apiserver.
    pub fn is_proxied(&self) -> bool {
        self.verb == Verb::Proxy
            || matches!(&self.target, Target::Resource(resource) if resource.subresource == "proxy")
    }

    /// Whether the apiserver or a server behind it may change the protocol: for subresources such as `exec`, for watches
    /// (WebSocket), and for anything of an aggregated API. kube-apiserver answers all else as if nothing else was asked
    /// for. In doubt it may.
    pub fn may_be_upgraded(&self, path: &str) -> bool {
        match &self.target {
            Target::Resource(resource) => {
                self.long_running || !resource.subresource.is_empty() || !resource.group.is_empty()
            }
            Target::Discovery(_) => false,
            Target::Other => {
                let first = path.split('/').nth(1);
                first.is_none_or(|first| !NEVER_UPGRADED.contains(&first))
            }
        }
    }
}

/// First segments of paths that kube-apiserver answers itself.
const NEVER_UPGRADED: [&str; 11] = [
    "",
    ".well-known",
    "debug",
    "healthz",
    "livez",
    "logs",
    "metrics",
    "openapi",
    "openid",
    "readyz",
    "version",
];

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target<'a> {
    /// Something below `/api/<version>` or `/apis/<group>/<version>`.
    Resource(ResourceRequest<'a>),
    /// A document about what is served, whatever the method.
    Discovery(DiscoveryDocument),
    /// Everything else, and every path that could be read in two ways.
    Other,
}

/// A resource as named by the path (and by the field selector of lists and watches). It need not
/// exist: `/api/v1/nonsense` is one too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceRequest<'a> {
    /// API group; empty for the core group.
    pub group: Cow<'a, str>,
    pub version: Cow<'a, str>,
    /// Plural resource name, as `pods`.
    pub resource: Cow<'a, str>,
    /// Subresource, as `status`; empty if there is none. The rest of the path belongs to
    /// the subresource.
    pub subresource: Cow<'a, str>,
    /// Namespace; empty for cluster-scoped resources and across namespaces. For a namespace object, its
    /// own name.
    pub namespace: Cow<'a, str>,
    /// Object name; empty if there is none. Lists and watches take it from the field selector
    /// `metadata.name=`.
    pub name: Cow<'a, str>,
    /// How the path is put together.
    pub form: PathForm,
}

/// How a resource's path is put together, whatever the names in it. For one resource an apiserver serves all paths of a
/// form, or none of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PathForm {
    /// It begins with the deprecated `/watch/` or `/proxy/`.
    pub prefixed: bool,
    /// The resource is in a namespace. The name of a namespace object is not meant.
    pub in_namespace: bool,
    /// It names an object, not a collection.
    pub named: bool,
    /// It goes on after the subresource.
    pub longer: bool,
}

impl<'a> From<&'a ResourceRequest<'_>> for GvrRef<'a> {
    fn from(request: &'a ResourceRequest<'_>) -> Self {
        Self {
            group: &request.group,
            version: &request.version,
            resource: &request.resource,
            subresource: &request.subresource,
        }
    }
}

/// What is to be done with a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// GET or HEAD of one object, also with `?watch=1`: the apiserver has never watched by the path
    /// of an object.
    Get,
    /// GET or HEAD of a collection.
    List,
    /// GET or HEAD of a collection with `?watch`, or any method below the deprecated `/watch/`.
    Watch,
    Create,
    Update,
    Patch,
    /// DELETE of one object.
    Delete,
    /// DELETE of a collection; a field selector does not make it a deletion of one object.
    DeleteCollection,
    /// Any method below `/proxy/`, as in `/api/v1/proxy/nodes/a`. No version from 1.20 on serves
    /// these paths any more; proxying is the subresource `proxy`, whose verb is that of its method.
    Proxy,
    /// Any other method (kube-apiserver's verb is empty then), and all requests without a resource.
    Other,
}

/// Reads a request. `path` and `query` are as on the wire, percent-encoded, without the `?`.
pub fn read<'a>(method: &Method, path: &'a str, query: Option<&'a str>) -> RequestInfo<'a> {
    if !is_well_formed(path, query) {
        return no_resource(Target::Other, false);
    }
    match read_path(path) {
        Some(ParsedPath::Resource(special, resource)) => {
            resource_request(method, special, resource, query)
        }
        Some(ParsedPath::Discovery(discovery)) => no_resource(Target::Discovery(discovery), false),
        // The query sets the duration of a profile; kube-apiserver counts these requests as
        // long-running.
        None => no_resource(Target::Other, path.starts_with("/debug/pprof/")),
    }
}

/// Whether Go's HTTP server would take this target, in origin form, on both HTTP/1.1 and HTTP/2: a
/// path with a leading slash and whole escapes, and neither blanks nor control bytes anywhere. A
/// `#` is refused as well: Go takes it for part of the path, others for a fragment.
pub fn is_well_formed(path: &str, query: Option<&str>) -> bool {
    path.starts_with('/')
        && are_plain(path)
        && !any_byte(path, |byte| byte == b'?')
        && (!any_byte(path, |byte| byte == b'%') || has_whole_escapes(path))
        && query.is_none_or(are_plain)
}

fn are_plain(text: &str) -> bool {
    !any_byte(text, |byte| byte <= b' ' || byte == 0x7f || byte == b'#')
}

/// Does not stop at the first such byte: then the compiler looks at many bytes at a time.
fn any_byte(text: &str, is_meant: impl Fn(u8) -> bool) -> bool {
    text.bytes().fold(false, |any, byte| any | is_meant(byte))
}

fn has_whole_escapes(path: &str) -> bool {
    let mut parts = path.split('%').skip(1);
    parts.all(|part| {
        let digits = part.as_bytes().first_chunk::<2>();
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

fn no_resource(target: Target<'_>, long_running: bool) -> RequestInfo<'_> {
    RequestInfo {
        target,
        verb: Verb::Other,
        long_running,
    }
}

fn resource_request<'a>(
    method: &Method,
    special: Option<Verb>,
    mut resource: ResourceRequest<'a>,
    query: Option<&'a str>,
) -> RequestInfo<'a> {
    let verb = match special.unwrap_or_else(|| method_verb(method)) {
        Verb::Get if resource.name.is_empty() => {
            resource.name = selected_name(query).unwrap_or_default();
            if is_set(query, "watch") {
                Verb::Watch
            } else {
                Verb::List
            }
        }
        Verb::Delete if resource.name.is_empty() => Verb::DeleteCollection,
        verb => verb,
    };
    let long_running = matches!(verb, Verb::Watch | Verb::Proxy)
        || match resource.subresource.as_ref() {
            "attach" | "exec" | "portforward" | "proxy" => true,
            "log" => is_set(query, "follow"),
            _ => false,
        };
    RequestInfo {
        target: Target::Resource(resource),
        verb,
        long_running,
    }
}

fn method_verb(method: &Method) -> Verb {
    match *method {
        Method::GET | Method::HEAD => Verb::Get,
        Method::POST => Verb::Create,
        Method::PUT => Verb::Update,
        Method::PATCH => Verb::Patch,
        Method::DELETE => Verb::Delete,
        _ => Verb::Other,
    }
}
