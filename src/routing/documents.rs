//! Which discovery document a path requests, and which servers to ask for it, in order. Pure.
//!
//! An initialized local apiserver is asked first: it knows what it serves and whether the caller may read it. Peers are
//! asked for what it lacks.

use crate::kube::gvr::GroupVersion;
use crate::request::info::{self, DiscoveryTarget};

/// A request for a discovery or OpenAPI document that can differ between servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DocumentRequest {
    /// `/api`: versions of the core group, or aggregated discovery of it.
    Versions,
    /// `/apis`: all other groups, or aggregated discovery of them.
    Groups,
    /// `/apis/<group>`: versions of one group.
    Group(String),
    /// `/api/<version>` and `/apis/<group>/<version>`: resources of one version.
    Resources(GroupVersion),
    /// `/openapi/v2`: everything.
    OpenApiV2,
    /// `/openapi/v3`: index of the documents below it.
    OpenApiV3,
    /// `/openapi/v3/api/<version>` and `/openapi/v3/apis/<group>/<version>`.
    OpenApiV3Version(GroupVersion),
}

impl DocumentRequest {
    /// The document that a path requests; `None` if all servers have the same.
    pub fn of(discovery: &DiscoveryTarget<'_>) -> Option<Self> {
        let owned = |of: &info::GroupVersionRef<'_>| GroupVersion {
            group: of.group.to_string(),
            version: of.version.to_string(),
        };
        Some(match discovery {
            DiscoveryTarget::Versions => DocumentRequest::Versions,
            DiscoveryTarget::Groups => DocumentRequest::Groups,
            DiscoveryTarget::Group(group) => DocumentRequest::Group(group.to_string()),
            DiscoveryTarget::GroupVersion(of) => DocumentRequest::Resources(owned(of)),
            DiscoveryTarget::OpenApiV2 => DocumentRequest::OpenApiV2,
            DiscoveryTarget::OpenApiV3 => DocumentRequest::OpenApiV3,
            DiscoveryTarget::OpenApiV3GroupVersion(of) => {
                DocumentRequest::OpenApiV3Version(owned(of))
            }
            DiscoveryTarget::OpenApiV3Document(_) => return None,
        })
    }

    /// Whether the proxy can merge the documents of several servers. Otherwise one server's document is passed on.
    pub fn is_merged(&self) -> bool {
        !matches!(self, DocumentRequest::OpenApiV3Version(_))
    }

    /// Whether it lists groups, or the versions of one.
    pub fn lists_groups(&self) -> bool {
        matches!(self, DocumentRequest::Groups | DocumentRequest::Group(_))
    }

    /// The group version, for a document about a single one.
    pub fn group_version(&self) -> Option<&GroupVersion> {
        match self {
            DocumentRequest::Resources(of) | DocumentRequest::OpenApiV3Version(of) => Some(of),
            _ => None,
        }
    }
}

/// A server, or a choice of servers, to try for a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteStop {
    /// The local apiserver.
    Local,
    /// Any of these servers of the snapshot, by index.
    Peers(Vec<usize>),
}

/// The order with `discovery.mode: Merged`. `sure`: the local apiserver is initialized, and what it lacks is known.
/// `holders`: targets that list the document's group version, if it has one. `targets`: all targets.
pub fn merged(sure: bool, holders: Vec<usize>, targets: &[usize]) -> Vec<RouteStop> {
    match (sure, holders.is_empty()) {
        (true, true) => vec![RouteStop::Local],
        (true, false) => vec![RouteStop::Local, RouteStop::Peers(holders)],
        (false, true) => vec![RouteStop::Peers(targets.to_vec()), RouteStop::Local],
        (false, false) => vec![RouteStop::Peers(holders), RouteStop::Local],
    }
}

/// The order with `discovery.mode: Newest`. `newer`: targets that are newer than the local apiserver, in order.
/// `targets`: all targets, tried if the local apiserver is not initialized.
pub fn newest(initialized: bool, newer: Vec<usize>, targets: &[usize]) -> Vec<RouteStop> {
    let mut stops: Vec<RouteStop> = newer
        .into_iter()
        .map(|index| RouteStop::Peers(vec![index]))
        .collect();
    if !initialized {
        stops.push(RouteStop::Peers(targets.to_vec()));
    }
    stops.push(RouteStop::Local);
    stops
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::request::info::Target;

    fn document(path: &str) -> Option<DocumentRequest> {
        match info::read(&Method::GET, path, None).target {
            Target::Discovery(discovery) => DocumentRequest::of(&discovery),
            _ => None,
        }
    }

    fn of(group: &str, version: &str) -> GroupVersion {
        GroupVersion {
            group: group.to_owned(),
            version: version.to_owned(),
        }
    }

    #[test]
    fn each_path_is_its_document() {
        for (path, expected) in [
            ("/api", DocumentRequest::Versions),
            ("/api/", DocumentRequest::Versions),
            ("/apis", DocumentRequest::Groups),
            ("/apis/", DocumentRequest::Groups),
            ("/apis/apps", DocumentRequest::Group("apps".to_owned())),
            ("/apis/apps/", DocumentRequest::Group("apps".to_owned())),
            ("/api/v1", DocumentRequest::Resources(of("", "v1"))),
            (
                "/apis/apps/v1",
                DocumentRequest::Resources(of("apps", "v1")),
            ),
            (
                "/apis/apps/v1/",
                DocumentRequest::Resources(of("apps", "v1")),
            ),
            ("/openapi/v2", DocumentRequest::OpenApiV2),
            ("/openapi/v3", DocumentRequest::OpenApiV3),
            (
                "/openapi/v3/api/v1",
                DocumentRequest::OpenApiV3Version(of("", "v1")),
            ),
            (
                "/openapi/v3/apis/apps/v1",
                DocumentRequest::OpenApiV3Version(of("apps", "v1")),
            ),
        ] {
            assert_eq!(document(path), Some(expected), "{path}");
        }
    }

    #[test]
    fn what_is_the_same_everywhere_is_none() {
        for path in [
            "/",
            "/version",
            "/api/v1/pods",
            "/apis/apps/v1/deployments",
            "/apis//v1",
            "/openapi",
            "/openapi/v2/",
            "/openapi/v3/",
            "/openapi/v3/version",
            "/openapi/v3/apis",
            "/openapi/v3/apis/apps",
            "/openapi/v3/.well-known/openid-configuration",
        ] {
            assert_eq!(document(path), None, "{path}");
        }
    }

    #[test]
    fn the_local_apiserver_is_asked_first_unless_it_is_not_initialized() {
        let peers = |indices: &[usize]| RouteStop::Peers(indices.to_vec());
        assert_eq!(merged(true, vec![], &[0, 1]), [RouteStop::Local]);
        assert_eq!(
            merged(true, vec![1], &[0, 1]),
            [RouteStop::Local, peers(&[1])]
        );
        assert_eq!(
            merged(false, vec![], &[0, 1]),
            [peers(&[0, 1]), RouteStop::Local]
        );
        assert_eq!(
            merged(false, vec![1], &[0, 1]),
            [peers(&[1]), RouteStop::Local]
        );
    }

    #[test]
    fn newer_ones_are_asked_before_the_local_apiserver_in_their_order() {
        let peer = |index| RouteStop::Peers(vec![index]);
        assert_eq!(newest(true, vec![], &[0, 1]), [RouteStop::Local]);
        assert_eq!(
            newest(true, vec![1, 0], &[0, 1, 2]),
            [peer(1), peer(0), RouteStop::Local]
        );
        let all = RouteStop::Peers(vec![0, 1]);
        assert_eq!(
            newest(false, vec![1], &[0, 1]),
            [peer(1), all, RouteStop::Local]
        );
    }
}
