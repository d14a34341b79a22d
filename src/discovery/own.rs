//! What the local apiserver serves and its own discovery may lack. Pure.
//!
//! Its lists of groups are made of APIService objects, which a starting server deletes if it does not know what they
//! stand for. A client can see that sooner than this proxy. So every list is compared with all built-in groups, not only
//! with those that were seen to be lacking. Aggregated discovery that was seen to be complete is left alone.

use std::collections::BTreeSet;

use http::HeaderValue;

use super::peer_union::PeerUnion;
use crate::kube::discovery::model::{Document, Group, Version};
use crate::kube::gvr::{Custom, GvrRef, ServedSet};
use crate::kube::media_type;
use crate::local::groups::ServedGroups;
use crate::routing::documents::DocumentRequest;

/// What the local apiserver serves, for its own lists of groups.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OwnGroups {
    /// All groups but the core group. Only versions that aggregated discovery lacks have resources; others are stale.
    pub union: PeerUnion,
    /// `Content-Type` of the local apiserver's aggregated discovery, if that lacks nothing.
    complete: Option<String>,
}

impl OwnGroups {
    /// `groups`: of what the local apiserver serves. CRDs and aggregated APIs are left out: they must not come back when
    /// they were removed.
    pub fn new(groups: &ServedGroups, served: &ServedSet, custom: &Custom) -> Self {
        let built_in = served.iter().filter(|gvr| !custom.contains(gvr.borrow()));
        let built_in: BTreeSet<_> = built_in.map(|gvr| (&*gvr.group, &*gvr.version)).collect();
        let version = |group: &Group, version: &Version| {
            let resources = version.resources.iter().filter(|resource| {
                !custom.contains(GvrRef {
                    group: &group.name,
                    version: &version.name,
                    resource: &resource.name,
                    subresource: "",
                })
            });
            let is_built_in = built_in.contains(&(&*group.name, &*version.name));
            is_built_in.then(|| Version {
                resources: resources.cloned().collect(),
                ..version.clone()
            })
        };
        let group = |group: &Group| {
            let versions = group.versions.iter();
            let versions: Vec<_> = versions.filter_map(|it| version(group, it)).collect();
            (!versions.is_empty()).then(|| Group {
                name: group.name.clone(),
                versions,
            })
        };
        let all: Vec<Group> = groups.document.groups.iter().filter_map(group).collect();
        let lacks = all
            .iter()
            .flat_map(|group| &group.versions)
            .any(|it| !it.stale);
        Self {
            union: PeerUnion {
                document: Document { groups: all },
            },
            complete: groups.aggregated.clone().filter(|_| !lacks),
        }
    }

    /// Whether the local apiserver's document may lack some of it. `accept`: of the request.
    pub fn may_add_to(&self, document: &DocumentRequest, accept: Option<&HeaderValue>) -> bool {
        let all = &self.union.document;
        match document {
            DocumentRequest::Groups => !all.groups.is_empty() && !self.is_complete_for(accept),
            DocumentRequest::Group(name) => all.group(name).is_some(),
            _ => false,
        }
    }

    /// Whether the answer is aggregated discovery, and lacks nothing.
    fn is_complete_for(&self, accept: Option<&HeaderValue>) -> bool {
        let given = self.complete.as_deref();
        let given = given.and_then(media_type::AcceptClause::read);
        let clauses = media_type::accepted(accept);
        given
            .zip(clauses.first())
            .is_some_and(|(given, first)| first.is_answered_by(&given))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::gvr::Pair;
    use crate::routing::table::things;

    const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

    fn groups(versions: &[(&str, bool)], aggregated: Option<&str>) -> ServedGroups {
        let group = |(name, stale): &(&str, bool)| Group {
            name: (*name).into(),
            versions: vec![Version {
                name: "v1".into(),
                stale: *stale,
                ..Version::default()
            }],
        };
        ServedGroups {
            document: Document {
                groups: versions.iter().map(group).collect(),
            },
            aggregated: aggregated.map(str::to_owned),
        }
    }

    fn own(versions: &[(&str, bool)], aggregated: Option<&str>) -> OwnGroups {
        let served: Vec<_> = versions.iter().map(|(group, _)| (*group, "v1")).collect();
        let groups = groups(versions, aggregated);
        OwnGroups::new(&groups, &things(&served), &Custom::default())
    }

    fn may_add_to_groups(own: &OwnGroups, accept: &str) -> bool {
        let accept = HeaderValue::from_str(accept).unwrap();
        own.may_add_to(&DocumentRequest::Groups, Some(&accept))
    }

    #[test]
    fn custom_resources_and_aggregated_apis_are_left_out() {
        let served = things(&[("apps", "v1"), ("crd", "v1"), ("metrics", "v1")]);
        let groups = groups(&[("apps", true), ("crd", true), ("metrics", true)], None);
        let custom = Custom {
            definitions: [Pair("crd".into(), "things".into())].into(),
            aggregated: [Pair("metrics".into(), "v1".into())].into(),
        };
        let own = OwnGroups::new(&groups, &served, &custom);
        let names: Vec<_> = own
            .union
            .document
            .groups
            .iter()
            .map(|it| &*it.name)
            .collect();
        assert_eq!(names, ["apps"]);
        assert!(own.may_add_to(&DocumentRequest::Group("apps".into()), None));
        assert!(!own.may_add_to(&DocumentRequest::Group("crd".into()), None));
    }

    #[test]
    fn every_legacy_list_is_compared_and_no_other_document() {
        let own = own(&[("apps", true)], None);
        assert!(own.may_add_to(&DocumentRequest::Groups, None));
        assert!(may_add_to_groups(&own, V2));
        for document in [DocumentRequest::Versions, DocumentRequest::OpenApiV2] {
            assert!(!own.may_add_to(&document, None));
        }
        assert!(!OwnGroups::default().may_add_to(&DocumentRequest::Groups, None));
    }

    #[test]
    fn aggregated_discovery_is_compared_only_if_it_lacks_something() {
        let legacy_first = format!("application/json,{V2}");
        let beta = V2.replace("v2", "v2beta1");
        for (lacks, accept, compared) in [
            (false, V2, false),
            (
                false,
                &format!("{V2};profile=nopeer,application/json"),
                false,
            ),
            (false, "application/json", true),
            (false, &legacy_first, true),
            // It may be refused, and the next clause be answered.
            (false, &format!("{beta},application/json"), true),
            (true, V2, true),
        ] {
            let own = own(&[("apps", !lacks), ("batch", true)], Some(V2));
            assert_eq!(
                may_add_to_groups(&own, accept),
                compared,
                "{lacks} {accept}"
            );
        }
    }
}
