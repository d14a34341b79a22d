//! What a request asks for: path and query, read as kube-apiserver reads them.
//!
//! The rules are those of `requestinfo.go` in `k8s.io/apiserver`, which works on the path that Go's
//! `net/url` has percent-decoded already, and cuts it at its slashes. They have not changed between
//! 1.20 and today.
//!
//! Invariant: a path is called a resource or a discovery document only where nobody between the
//! client and the apiserver's last handler can read it in another way. Everything else is
//! [`Target::Other`], for the local apiserver alone to answer: broken escapes, dot segments, empty
//! segments, encoded slashes, control bytes, names that are not UTF-8. One slash at the end is no
//! doubt: the apiserver trims it, and its routers do too. Nor is what follows `proxy`, which is a
//! path of somebody else: only its escapes must be whole, as Go refuses the request otherwise.
//!
//! Pure and total: no I/O, no panic, and no allocation unless something is percent-encoded.

use std::borrow::Cow;

use http::Method;

use path::{Doubt, Named, read_path};
use query::selected_name;
pub use query::{is_set, query_values};

mod path;
mod query;
#[cfg(test)]
mod tests;

/// What a request asks for, read the way kube-apiserver's RequestInfo does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestInfo<'a> {
    /// What the path names.
    pub target: Target<'a>,
    /// What is to be done with it; [`Verb::Other`] unless the target is a resource.
    pub verb: Verb,
    /// Whether the request may stay open for as long as its client likes: no timeout is for it, and
    /// draining ends it. As kube-apiserver's `BasicLongRunningRequestCheck`, but reading a log is
    /// only long when it is followed.
    pub long_running: bool,
}

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target<'a> {
    /// Something below `/api/<version>` or `/apis/<group>/<version>`.
    Resource(ResourceRequest<'a>),
    /// A document about what is served, whatever the method.
    Discovery(Discovery<'a>),
    /// Everything else, and every path that could be read in two ways.
    Other,
}

/// A resource, as far as the path (and for lists and watches the field selector) names it. Whether
/// it exists is not known here: `/api/v1/nonsense` is one too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceRequest<'a> {
    /// API group; empty for the core group.
    pub group: Cow<'a, str>,
    /// Version, as `v1`.
    pub version: Cow<'a, str>,
    /// Plural resource name, as `pods`.
    pub resource: Cow<'a, str>,
    /// Subresource, as `status`; empty if there is none. What follows it in the path is the
    /// subresource's own affair.
    pub subresource: Cow<'a, str>,
    /// Namespace; empty for cluster-scoped resources and across namespaces. A namespace object is
    /// in itself.
    pub namespace: Cow<'a, str>,
    /// Object name; empty if none is named. Lists and watches get it from the field selector
    /// `metadata.name=`.
    pub name: Cow<'a, str>,
}

/// A document about what is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Discovery<'a> {
    /// `/api`: versions of the core group, or aggregated discovery of it.
    Versions,
    /// `/apis`: all other groups, or aggregated discovery of them.
    Groups,
    /// `/apis/<group>`: versions of one group.
    Group(Cow<'a, str>),
    /// `/api/<version>` or `/apis/<group>/<version>`: resources of one version.
    GroupVersion(GroupVersion<'a>),
    /// `/openapi/v2`: everything, in one document.
    OpenApiV2,
    /// `/openapi/v3`: index of the documents below it.
    OpenApiV3,
    /// `/openapi/v3/api/<version>` or `/openapi/v3/apis/<group>/<version>`.
    OpenApiV3GroupVersion(GroupVersion<'a>),
    /// Any other document below `/openapi/v3/`, by the rest of its path as it is on the wire:
    /// `apis/apps`, `version`.
    OpenApiV3Document(&'a str),
}

/// An API group and one of its versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupVersion<'a> {
    /// API group; empty for the core group.
    pub group: Cow<'a, str>,
    /// Version, as `v1`.
    pub version: Cow<'a, str>,
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
    /// POST.
    Create,
    /// PUT.
    Update,
    /// PATCH.
    Patch,
    /// DELETE of one object.
    Delete,
    /// DELETE of a collection; a field selector does not make it a deletion of one object.
    DeleteCollection,
    /// Any method below `/proxy/`, as in `/api/v1/proxy/nodes/a`. No version from 1.20 on serves
    /// these paths any more; proxying is the subresource `proxy`, whose verb is that of its method.
    Proxy,
    /// Any other method (kube-apiserver's verb is empty then), and whatever is asked of something
    /// that is no resource.
    Other,
}

/// Reads a request. `path` and `query` are as on the wire, percent-encoded, without the `?`.
pub fn read<'a>(method: &Method, path: &'a str, query: Option<&'a str>) -> RequestInfo<'a> {
    if !is_well_formed(path, query) {
        return no_resource(Target::Other, false);
    }
    match read_path(path) {
        Ok(Named::Resource(special, resource)) => {
            resource_request(method, special, resource, query)
        }
        Ok(Named::Discovery(discovery)) => no_resource(Target::Discovery(discovery), false),
        // Profiles are taken for as long as the query says; kube-apiserver counts them as
        // long-running.
        Ok(Named::Nothing) | Err(Doubt) => {
            no_resource(Target::Other, path.starts_with("/debug/pprof/"))
        }
    }
}

/// Whether Go's HTTP server would take this target, in origin form, on both HTTP/1.1 and HTTP/2: a
/// path with a leading slash and whole escapes, and neither blanks nor control bytes anywhere. A
/// `#` is refused as well: Go takes it for part of the path, others for a fragment.
pub fn is_well_formed(path: &str, query: Option<&str>) -> bool {
    let mut bytes = path.bytes();
    if bytes.next() != Some(b'/') {
        return false;
    }
    while let Some(byte) = bytes.next() {
        let fits = match byte {
            b'%' => (0..2).all(|_| bytes.next().is_some_and(|digit| digit.is_ascii_hexdigit())),
            b'?' => false,
            _ => is_plain(byte),
        };
        if !fits {
            return false;
        }
    }
    query.is_none_or(|query| query.bytes().all(is_plain))
}

fn is_plain(byte: u8) -> bool {
    byte > b' ' && byte != 0x7f && byte != b'#'
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
