//! What the local apiserver serves and its own discovery may lack. Pure.
//!
//! Its lists of groups are made of APIService objects, which a starting server deletes if it does not know what they
//! stand for. A client can see that sooner than this proxy. So every list is compared with all built-in groups, not only
//! with those that were seen to be lacking. Aggregated discovery that was seen to be complete is left alone.

use http::HeaderValue;

use super::peer_union::PeerUnion;
use crate::kube::discovery::DiscoveryDocument;
use crate::kube::media_type;
use crate::local::groups::ServedGroups;

/// What the local apiserver serves, for its own lists of groups.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OwnGroups {
    /// All groups but the core group. Only versions that aggregated discovery lacks have resources; others are stale.
    pub union: PeerUnion,
    /// `Content-Type` of the local apiserver's aggregated discovery, if that lacks nothing.
    complete: Option<String>,
}

impl OwnGroups {
    /// `groups`: of what the local apiserver serves itself. CRDs and aggregated APIs are not in it: they must not come back
    /// when they were removed.
    pub fn new(groups: &ServedGroups) -> Self {
        let document = groups.document.clone();
        let versions = document.groups.iter().flat_map(|group| &group.versions);
        let lacks = versions.into_iter().any(|it| !it.is_stale());
        Self {
            union: PeerUnion {
                document,
                replaces: false,
            },
            complete: groups.aggregated.clone().filter(|_| !lacks),
        }
    }

    /// Whether the local apiserver's document may lack some of it. `accept`: of the request.
    pub fn may_add_to(&self, document: &DiscoveryDocument, accept: Option<&HeaderValue>) -> bool {
        let all = &self.union.document;
        match document {
            DiscoveryDocument::Groups => !all.groups.is_empty() && !self.is_complete_for(accept),
            DiscoveryDocument::Group(name) => all.group(name).is_some(),
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
    use crate::kube::discovery::model::{CURRENT, STALE, Version};

    const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

    fn groups(versions: &[(&str, bool)], aggregated: Option<&str>) -> ServedGroups {
        let version = |(group, stale): &(&str, bool)| {
            let version = Version {
                name: "v1".to_owned(),
                freshness: if *stale { STALE } else { CURRENT }.to_owned(),
                ..Version::default()
            };
            ((*group).to_owned(), version)
        };
        ServedGroups {
            document: versions.iter().map(version).collect(),
            aggregated: aggregated.map(str::to_owned),
        }
    }

    fn own(versions: &[(&str, bool)], aggregated: Option<&str>) -> OwnGroups {
        OwnGroups::new(&groups(versions, aggregated))
    }

    fn may_add_to_groups(own: &OwnGroups, accept: &str) -> bool {
        let accept = HeaderValue::from_str(accept).unwrap();
        own.may_add_to(&DiscoveryDocument::Groups, Some(&accept))
    }

    #[test]
    fn every_legacy_list_is_compared_and_no_other_document() {
        let own = own(&[("apps", true)], None);
        assert!(own.may_add_to(&DiscoveryDocument::Groups, None));
        assert!(may_add_to_groups(&own, V2));
        for document in [DiscoveryDocument::Versions, DiscoveryDocument::OpenApiV2] {
            assert!(!own.may_add_to(&document, None));
        }
        assert!(!OwnGroups::default().may_add_to(&DiscoveryDocument::Groups, None));
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
