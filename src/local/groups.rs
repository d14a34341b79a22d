//! The groups that the local apiserver serves, in its order, whatever its own list of groups says. Pure.
//!
//! kube-apiserver makes `/apis` of APIService objects, which all servers share. A server deletes those of built-in group
//! versions that it does not know when it starts. Older servers then serve these group versions and no longer list them. A
//! client can see that sooner than this proxy. So every list is compared with all built-in groups, not only with those that
//! were seen to be lacking. Aggregated discovery that was seen to be complete is left alone.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use http::HeaderValue;
use indexmap::IndexSet;

use crate::kube::discovery::model::{CURRENT, Document, STALE, Version, versions};
use crate::kube::discovery::{DiscoveryDocument, documents};
use crate::kube::gvr::{GroupVersion, Gvr, Scope, ServedSet};
use crate::kube::media_type::{self, AcceptClause};

/// What the local apiserver serves itself, without the core group.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServedGroups {
    /// Resources are there only for versions that its aggregated discovery lacks. All other versions are without
    /// resources, and stale.
    pub document: Document,
    /// `Content-Type` of its aggregated discovery; `None`: it has none.
    pub aggregated: Option<String>,
}

impl ServedGroups {
    /// Whether the server's own document may lack some of it. `accept`: of the request.
    pub fn may_add_to(&self, document: &DiscoveryDocument, accept: Option<&HeaderValue>) -> bool {
        let all = &self.document;
        match document {
            DiscoveryDocument::Groups => !all.groups.is_empty() && !self.is_complete_for(accept),
            DiscoveryDocument::Group(name) => all.group(name).is_some(),
            _ => false,
        }
    }

    /// Whether the answer is aggregated discovery, and lacks nothing.
    fn is_complete_for(&self, accept: Option<&HeaderValue>) -> bool {
        let given = self.aggregated.as_deref().and_then(AcceptClause::read);
        let clauses = media_type::accepted(accept);
        let mut all = versions(&self.document.groups);
        given
            .zip(clauses.first())
            .is_some_and(|(given, first)| first.is_answered_by(&given))
            && all.all(|(_, version)| version.is_stale())
    }
}

/// What a document lists, with the scopes that it says.
pub(super) type Listed = BTreeMap<Gvr, Option<Scope>>;

/// Group versions with what their documents list, and these.
pub(super) type Documents = BTreeMap<GroupVersion, (Listed, Bytes)>;

/// The group versions of `served`: those of `order` first, then the rest by name. `unlisted`: of those that aggregated
/// discovery lacks.
pub(super) fn arrange(
    order: &[GroupVersion],
    served: &ServedSet,
    unlisted: &Documents,
) -> Document {
    let names = served.iter().filter(|gvr| !gvr.group.is_empty());
    let names: BTreeSet<_> = names.map(|gvr| (&*gvr.group, &*gvr.version)).collect();
    let first = order.iter().map(|of| (&*of.group, &*of.version));
    let all = first.filter(|of| names.contains(of)).chain(names.clone());
    let all: IndexSet<(&str, &str)> = all.collect();
    let described = all.into_iter().map(|(group, version)| {
        let version = described(group, version, served, unlisted);
        (group.to_owned(), version)
    });
    described.collect()
}

fn described(group: &str, version: &str, served: &ServedSet, unlisted: &Documents) -> Version {
    let of = GroupVersion::new(group, version);
    let document = unlisted.get(&of);
    let read = document.and_then(|(_, it)| documents::resources(&of, it).ok());
    let mut described = read.unwrap_or_default();
    let resources = &mut described.resources;
    resources.retain(|resource| served.contains(&of.gvr(&resource.name)));
    let freshness = match described.resources.is_empty() {
        true => STALE,
        false => CURRENT,
    };
    described.name = version.to_owned();
    described.freshness = freshness.to_owned();
    described
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::table::things;

    fn of(group: &str, version: &str) -> GroupVersion {
        GroupVersion {
            group: group.into(),
            version: version.into(),
        }
    }

    fn names(document: &Document) -> Vec<String> {
        let groups = document.groups.iter();
        let names = groups.flat_map(|group| {
            let versions = group.versions.iter();
            versions.map(|version| format!("{}/{}", group.name(), version.name))
        });
        names.collect()
    }

    #[test]
    fn what_is_served_is_in_the_order_of_the_lists_and_what_they_lack_comes_last() {
        let served = [
            ("", "v1"),
            ("apps", "v1"),
            ("autoscaling", "v1"),
            ("autoscaling", "v2"),
            ("batch", "v1"),
            ("batch", "v1beta1"),
        ];
        let order = [
            of("batch", "v1"),
            of("gone", "v1"),
            of("autoscaling", "v2"),
            of("autoscaling", "v1"),
        ];
        let document = arrange(&order, &things(&served), &BTreeMap::new());
        let expected = [
            "batch/v1",
            "batch/v1beta1",
            "autoscaling/v2",
            "autoscaling/v1",
            "apps/v1",
        ];
        assert_eq!(names(&document), expected);
        let mut versions = document.groups.iter().flat_map(|group| &group.versions);
        assert!(versions.all(|version| version.is_stale() && version.resources.is_empty()));
    }

    #[test]
    fn what_aggregated_discovery_lacks_has_its_resources() {
        let resources = br#"{"kind":"APIResourceList","groupVersion":"batch/v1","resources":[
            {"name":"customjobs","kind":"CustomJob","namespaced":true,"verbs":["list"]},
            {"name":"jobs","kind":"Job","namespaced":true,"verbs":["list"]}]}"#;
        let document = (BTreeMap::new(), Bytes::from_static(resources));
        let unlisted = [(of("batch", "v1"), document)].into();
        let mut served = things(&[("apps", "v1"), ("batch", "v1")]);
        served.insert(Gvr::new("batch", "v1", "jobs", ""));
        let document = arrange(&[], &served, &unlisted);
        let batch = document.version("batch", "v1").unwrap();
        assert!(!batch.is_stale() && batch.resources.len() == 1);
        assert_eq!(&*batch.resources[0].name, "jobs");
        assert!(document.version("apps", "v1").unwrap().is_stale());
    }

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

    fn may_add_to_groups(own: &ServedGroups, accept: &str) -> bool {
        let accept = HeaderValue::from_str(accept).unwrap();
        own.may_add_to(&DiscoveryDocument::Groups, Some(&accept))
    }

    #[test]
    fn every_legacy_list_is_compared_and_no_other_document() {
        let own = groups(&[("apps", true)], None);
        assert!(own.may_add_to(&DiscoveryDocument::Groups, None));
        assert!(may_add_to_groups(&own, V2));
        for document in [DiscoveryDocument::Versions, DiscoveryDocument::OpenApiV2] {
            assert!(!own.may_add_to(&document, None));
        }
        assert!(!ServedGroups::default().may_add_to(&DiscoveryDocument::Groups, None));
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
            let own = groups(&[("apps", !lacks), ("batch", true)], Some(V2));
            assert_eq!(
                may_add_to_groups(&own, accept),
                compared,
                "{lacks} {accept}"
            );
        }
    }
}
