//! Which discovery document a path is, and which servers it is to be had from, in order. Pure.
//!
//! The local apiserver is asked first wherever it is initialized: it knows best what it serves, and whether this caller
//! may see it. Others are asked for what it has not.

use crate::local::documents::GroupVersion;
use crate::request::info::{self, Discovery};

/// A document about what the servers of a cluster serve, as far as servers can differ in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
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

impl Document {
    /// The document that a path names; `None` if it is the same everywhere.
    pub fn of(discovery: &Discovery<'_>) -> Option<Self> {
        let owned = |of: &info::GroupVersion<'_>| GroupVersion {
            group: of.group.to_string(),
            version: of.version.to_string(),
        };
        Some(match discovery {
            Discovery::Versions => Document::Versions,
            Discovery::Groups => Document::Groups,
            Discovery::Group(group) => Document::Group(group.to_string()),
            Discovery::GroupVersion(of) => Document::Resources(owned(of)),
            Discovery::OpenApiV2 => Document::OpenApiV2,
            Discovery::OpenApiV3 => Document::OpenApiV3,
            Discovery::OpenApiV3GroupVersion(of) => Document::OpenApiV3Version(owned(of)),
            Discovery::OpenApiV3Document(_) => return None,
        })
    }

    /// Whether it can be put together from what several servers have. Others come whole, from one server.
    pub fn is_merged(&self) -> bool {
        !matches!(self, Document::OpenApiV3Version(_))
    }

    /// The group version that it is about, if it is one.
    pub fn group_version(&self) -> Option<&GroupVersion> {
        match self {
            Document::Resources(of) | Document::OpenApiV3Version(of) => Some(of),
            _ => None,
        }
    }
}

/// Where a document may be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The apiserver beside us.
    Local,
    /// Any of these servers of the snapshot, by index.
    Peers(Vec<usize>),
}

/// With `discovery.mode: Merged`. `sure`: the local apiserver is initialized, and what it lacks is known; `holders`:
/// targets that list what the document is about, if it is about one group version; `targets`: all of them.
pub fn merged(sure: bool, holders: Vec<usize>, targets: &[usize]) -> Vec<Stop> {
    match (sure, holders.is_empty()) {
        (true, true) => vec![Stop::Local],
        (true, false) => vec![Stop::Local, Stop::Peers(holders)],
        (false, true) => vec![Stop::Peers(targets.to_vec()), Stop::Local],
        (false, false) => vec![Stop::Peers(holders), Stop::Local],
    }
}

/// With `discovery.mode: Newest`. `newer`: targets that are newer than the local apiserver, in order; `targets`: all of
/// them, for a local apiserver that is not initialized.
pub fn newest(initialized: bool, newer: Vec<usize>, targets: &[usize]) -> Vec<Stop> {
    let mut stops: Vec<Stop> = newer
        .into_iter()
        .map(|index| Stop::Peers(vec![index]))
        .collect();
    if !initialized {
        stops.push(Stop::Peers(targets.to_vec()));
    }
    stops.push(Stop::Local);
    stops
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::request::info::Target;

    fn document(path: &str) -> Option<Document> {
        match info::read(&Method::GET, path, None).target {
            Target::Discovery(discovery) => Document::of(&discovery),
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
            ("/api", Document::Versions),
            ("/api/", Document::Versions),
            ("/apis", Document::Groups),
            ("/apis/", Document::Groups),
            ("/apis/apps", Document::Group("apps".to_owned())),
            ("/apis/apps/", Document::Group("apps".to_owned())),
            ("/api/v1", Document::Resources(of("", "v1"))),
            ("/apis/apps/v1", Document::Resources(of("apps", "v1"))),
            ("/apis/apps/v1/", Document::Resources(of("apps", "v1"))),
            ("/openapi/v2", Document::OpenApiV2),
            ("/openapi/v3", Document::OpenApiV3),
            (
                "/openapi/v3/api/v1",
                Document::OpenApiV3Version(of("", "v1")),
            ),
            (
                "/openapi/v3/apis/apps/v1",
                Document::OpenApiV3Version(of("apps", "v1")),
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
        let peers = |indices: &[usize]| Stop::Peers(indices.to_vec());
        assert_eq!(merged(true, vec![], &[0, 1]), [Stop::Local]);
        assert_eq!(merged(true, vec![1], &[0, 1]), [Stop::Local, peers(&[1])]);
        assert_eq!(
            merged(false, vec![], &[0, 1]),
            [peers(&[0, 1]), Stop::Local]
        );
        assert_eq!(merged(false, vec![1], &[0, 1]), [peers(&[1]), Stop::Local]);
    }

    #[test]
    fn newer_ones_are_asked_before_the_local_apiserver_in_their_order() {
        let peer = |index| Stop::Peers(vec![index]);
        assert_eq!(newest(true, vec![], &[0, 1]), [Stop::Local]);
        assert_eq!(
            newest(true, vec![1, 0], &[0, 1, 2]),
            [peer(1), peer(0), Stop::Local]
        );
        let all = Stop::Peers(vec![0, 1]);
        assert_eq!(newest(false, vec![1], &[0, 1]), [peer(1), all, Stop::Local]);
    }
}
