//! The groups that the local apiserver serves, in its order, whatever its own list of groups says. Pure.
//!
//! kube-apiserver makes `/apis` of APIService objects, which all servers share. A server deletes those of built-in group
//! versions that it does not know when it starts. Older servers then serve these group versions and no longer list them.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use indexmap::IndexSet;

use crate::kube::discovery::documents;
use crate::kube::discovery::model::{CURRENT, Document, STALE, Version};
use crate::kube::gvr::{GroupVersion, Gvr, Scope, ServedSet};

/// What the local apiserver serves itself, without the core group.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServedGroups {
    /// Resources are there only for versions that its aggregated discovery lacks. All other versions are without
    /// resources, and stale.
    pub document: Document,
    /// `Content-Type` of its aggregated discovery; `None`: it has none.
    pub aggregated: Option<String>,
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
    Version {
        name: version.to_owned(),
        freshness: freshness.to_owned(),
        ..described
    }
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
}
