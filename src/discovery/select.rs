//! Selects the wanted part of servers' documents, and makes a document of names only for resources that no document has. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::kube::discovery::model::{
    Document, Group, Kind, Resource, Subresource, Text, Texts, Version,
};
use crate::kube::gvr::{Gvr, ServedSet};

/// Resources and subresources, by group and version.
type Index<'a> = BTreeMap<(&'a str, &'a str), BTreeSet<(&'a str, &'a str)>>;

/// The part of `document` that is in `wanted`, without stale versions: their contents may have changed.
pub(super) fn select(document: &Document, wanted: &ServedSet) -> Document {
    let index = index(wanted);
    let version = |group: &Group, version: &Version| {
        let names = index.get(&(&*group.name, &*version.name))?;
        let resources = version.resources.iter();
        let resources: Vec<_> = resources.filter_map(|it| cut(it, names)).collect();
        (!version.stale && !resources.is_empty()).then(|| Version {
            name: version.name.clone(),
            stale: false,
            resources,
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
    Document {
        groups: document.groups.iter().filter_map(group).collect(),
    }
}

fn index(wanted: &ServedSet) -> Index<'_> {
    let mut index = Index::new();
    for gvr in wanted {
        let names = index.entry((&gvr.group, &gvr.version)).or_default();
        names.insert((&gvr.resource, &gvr.subresource));
    }
    index
}

/// What of a resource is wanted.
fn cut(resource: &Arc<Resource>, names: &BTreeSet<(&str, &str)>) -> Option<Arc<Resource>> {
    let wanted = |subresource: &str| names.contains(&(&*resource.name, subresource));
    let itself = resource.kind.is_some() && wanted("");
    let subresources = resource.subresources.iter();
    let subresources: Vec<Subresource> = subresources
        .filter(|it| wanted(&it.name))
        .cloned()
        .collect();
    let whole = subresources.len() == resource.subresources.len();
    match (itself, subresources.is_empty()) {
        (true, _) if whole => Some(resource.clone()),
        (true, _) => Some(Arc::new(Resource {
            subresources,
            ..Resource::clone(resource)
        })),
        (false, true) => None,
        (false, false) => Some(Arc::new(Resource {
            name: resource.name.clone(),
            namespaced: resource.namespaced,
            subresources,
            ..Resource::default()
        })),
    }
}

/// What can be done with almost every resource.
const USUAL_VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

/// A document of stale versions in which only the names of resources are known.
///
/// Resources are listed as namespaced, with the usual verbs. If the version is fresh because of other resources, a
/// controller that deletes everything in a namespace would otherwise skip the resource and leave its objects behind; so it
/// tries to delete them, and is refused.
pub(super) fn by_name(served: &ServedSet) -> Document {
    let verbs: Texts = USUAL_VERBS.into_iter().map(Text::from).collect();
    let mut document = Document::default();
    for gvr in served {
        add(&mut document, gvr, &verbs);
    }
    document
}

/// Adds a name that comes after those that are there, in the order of names.
fn add(document: &mut Document, gvr: &Gvr, verbs: &Texts) {
    let groups = &mut document.groups;
    if groups.last().is_none_or(|last| *last.name != *gvr.group) {
        groups.push(Group {
            name: gvr.group.as_str().into(),
            versions: Vec::new(),
        });
    }
    let Some(group) = groups.last_mut() else {
        return;
    };
    if group
        .versions
        .last()
        .is_none_or(|last| *last.name != *gvr.version)
    {
        group.versions.push(Version {
            name: gvr.version.as_str().into(),
            stale: true,
            resources: Vec::new(),
        });
    }
    let Some(version) = group.versions.last_mut() else {
        return;
    };
    if version
        .resources
        .last()
        .is_none_or(|last| *last.name != *gvr.resource)
    {
        version.resources.push(Arc::new(Resource {
            name: gvr.resource.as_str().into(),
            namespaced: true,
            ..Resource::default()
        }));
    }
    let Some(resource) = version.resources.last_mut().map(Arc::make_mut) else {
        return;
    };
    match gvr.subresource.as_str() {
        "" => {
            resource.kind = Some(Kind::default());
            resource.verbs = verbs.clone();
        }
        name => resource.subresources.push(Subresource {
            name: name.into(),
            ..Subresource::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn gvr() -> impl Strategy<Value = Gvr> {
        let names = |names: &'static [&'static str]| proptest::sample::select(names);
        let groups = names(&["", "apps", "batch"]);
        let versions = names(&["v1", "v2", "v1beta1"]);
        let resources = names(&["jobs", "things", "pods"]);
        (groups, versions, resources, names(&["", "log", "status"])).prop_map(
            |(group, version, resource, subresource)| Gvr {
                group: group.to_owned(),
                version: version.to_owned(),
                resource: resource.to_owned(),
                subresource: subresource.to_owned(),
            },
        )
    }

    fn sets() -> impl Strategy<Value = ServedSet> {
        proptest::collection::btree_set(gvr(), 0..24)
    }

    /// As a server would tell it.
    fn fresh(served: &ServedSet) -> Document {
        let mut document = by_name(served);
        for version in document
            .groups
            .iter_mut()
            .flat_map(|group| &mut group.versions)
        {
            version.stale = false;
        }
        document
    }

    proptest! {
        #[test]
        fn names_become_a_document_of_these_names_all_of_it_stale(served in sets()) {
            let document = by_name(&served);
            prop_assert_eq!(document.served(), served);
            let versions = document.groups.iter().flat_map(|group| &group.versions);
            prop_assert!(versions.into_iter().all(|version| version.stale));
        }

        #[test]
        fn resources_known_by_name_can_be_asked_to_be_deleted(served in sets()) {
            let document = by_name(&served);
            let versions = document.groups.iter().flat_map(|group| &group.versions);
            for resource in versions.flat_map(|version| &version.resources) {
                let can = |verb: &str| resource.verbs.iter().any(|known| &**known == verb);
                prop_assert!(resource.namespaced);
                for verb in ["delete", "deletecollection", "list", "watch"] {
                    prop_assert_eq!(can(verb), resource.kind.is_some());
                }
                prop_assert!(resource.subresources.iter().all(|sub| sub.verbs.is_empty()));
            }
        }

        #[test]
        fn what_is_selected_is_what_is_listed_and_wanted(listed in sets(), wanted in sets()) {
            let selected = select(&fresh(&listed), &wanted);
            let both: ServedSet = listed.intersection(&wanted).cloned().collect();
            prop_assert_eq!(selected.served(), both);
            let versions = selected.groups.iter().flat_map(|group| &group.versions);
            prop_assert!(versions.into_iter().all(|version| !version.resources.is_empty()));
        }

        #[test]
        fn nothing_is_selected_of_what_is_stale(listed in sets()) {
            prop_assert_eq!(select(&by_name(&listed), &listed), Document::default());
        }
    }

    #[test]
    fn a_whole_resource_is_taken_over_as_it_is() {
        let names = [("pods", ""), ("pods", "log")];
        let served: ServedSet = names
            .into_iter()
            .map(|(resource, subresource)| Gvr {
                group: String::new(),
                version: "v1".to_owned(),
                resource: resource.to_owned(),
                subresource: subresource.to_owned(),
            })
            .collect();
        let document = fresh(&served);
        let selected = select(&document, &served);
        let first = |document: &Document| document.groups[0].versions[0].resources[0].clone();
        assert!(Arc::ptr_eq(&first(&document), &first(&selected)));
    }
}
