//! Names of API resources: group, version, resource, subresource. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::{Equivalent, HashMap, HashSet};

/// A group version.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersion {
    /// API group, empty for the core group.
    pub group: String,
    pub version: String,
}

impl GroupVersion {
    pub fn new(group: &str, version: &str) -> Self {
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
        }
    }

    /// A resource of it.
    pub fn gvr(&self, resource: &str) -> Gvr {
        Gvr::new(&self.group, &self.version, resource, "")
    }

    /// Path of its discovery document.
    pub fn path(&self) -> String {
        match self.group.as_str() {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
    }
}

/// A resource as discovery lists it: group, version, resource and subresource (`""` for none and for the core group).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvr {
    /// API group, empty for the core group.
    pub group: String,
    pub version: String,
    /// Plural resource name.
    pub resource: String,
    /// Subresource, or empty.
    pub subresource: String,
}

/// A borrowed [`Gvr`], to look one up without allocating.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GvrRef<'a> {
    /// API group, empty for the core group.
    pub group: &'a str,
    pub version: &'a str,
    /// Plural resource name.
    pub resource: &'a str,
    /// Subresource, or empty.
    pub subresource: &'a str,
}

impl Equivalent<Gvr> for GvrRef<'_> {
    fn equivalent(&self, key: &Gvr) -> bool {
        *self == key.borrow()
    }
}

impl Equivalent<Arc<Gvr>> for GvrRef<'_> {
    fn equivalent(&self, key: &Arc<Gvr>) -> bool {
        *self == key.as_ref().borrow()
    }
}

impl Gvr {
    pub fn new(group: &str, version: &str, resource: &str, subresource: &str) -> Self {
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
        }
    }

    pub fn group_version(&self) -> GroupVersion {
        GroupVersion::new(&self.group, &self.version)
    }

    pub fn borrow(&self) -> GvrRef<'_> {
        GvrRef {
            group: &self.group,
            version: &self.version,
            resource: &self.resource,
            subresource: &self.subresource,
        }
    }
}

impl GvrRef<'_> {
    pub fn owned(self) -> Gvr {
        Gvr::new(self.group, self.version, self.resource, self.subresource)
    }
}

/// The `apiVersion` of objects and documents: `apps/v1`, and `v1` for the core group.
pub fn api_version(group: &str, version: &str) -> String {
    match group {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    }
}

/// A resource as people name it, and as `etcd.otherResources` has it: `deployments.apps`, and `pods` of the core group.
pub fn resource_name(group: &str, resource: &str) -> String {
    match group {
        "" => resource.to_owned(),
        group => format!("{resource}.{group}"),
    }
}

/// Two names that belong together, looked up borrowed: (group, resource) of a CRD, (group, version) of an APIService.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pair(pub String, pub String);

impl Equivalent<Pair> for (&str, &str) {
    fn equivalent(&self, key: &Pair) -> bool {
        self.0 == key.0 && self.1 == key.1
    }
}

/// A set of resources served, grouped as discovery groups them.
pub type ServedSet = BTreeSet<Gvr>;

/// Where the objects of a resource are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// In namespaces.
    Namespaced,
    Cluster,
}

/// The scopes of resources and their subresources, as far as they are known.
pub type Scopes = BTreeMap<Gvr, Scope>;

/// What a CustomResourceDefinition says of the resource that it names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Definition {
    /// The versions that it serves; `None` if its value cannot be read: any version may be one of it.
    pub versions: Option<Arc<[Box<str>]>>,
    /// etcd's revision of it, if its group [may be built in](may_be_built_in); else 0.
    pub revision: i64,
}

/// Resources that every apiserver serves, because they are defined by objects in etcd. API users write these: an apiserver
/// may serve a resource of such a name itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Custom {
    /// CustomResourceDefinitions by (group, plural).
    pub definitions: HashMap<Pair, Definition>,
    /// (group, version) of APIServices that have a `spec.service`.
    pub aggregated: HashSet<Pair>,
}

impl Custom {
    /// Whether a CRD or an aggregated API has the name of `gvr`.
    pub fn contains(&self, gvr: GvrRef<'_>) -> bool {
        self.definition(gvr).is_some() || self.is_aggregated(gvr.group, gvr.version)
    }

    /// The CRD that serves a resource of exactly this name.
    pub fn definition(&self, gvr: GvrRef<'_>) -> Option<&Definition> {
        let definition = self.definitions.get(&(gvr.group, gvr.resource))?;
        let serves = |versions: &Arc<[Box<str>]>| versions.iter().any(|it| **it == *gvr.version);
        let versions = definition.versions.as_ref();
        versions.is_none_or(serves).then_some(definition)
    }

    /// Whether an aggregated API has this group version.
    pub fn is_aggregated(&self, group: &str, version: &str) -> bool {
        self.aggregated.contains(&(group, version))
    }

    /// What of `gvr` the key of its CRD or APIService names: the group with the resource, or with the version. The rest
    /// is empty.
    pub fn name_of(&self, gvr: GvrRef<'_>) -> Option<Gvr> {
        if self.definition(gvr).is_some() {
            return Some(Gvr::new(gvr.group, "", gvr.resource, ""));
        }
        let of_api = self.is_aggregated(gvr.group, gvr.version);
        of_api.then(|| Gvr::new(gvr.group, gvr.version, "", ""))
    }
}

/// Whose resource it is, at one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceKind {
    /// kube-apiserver's own.
    BuiltIn,
    /// A CustomResourceDefinition's.
    Custom,
    /// An aggregated API's.
    Aggregated,
}

/// Whether kube-apiserver may have resources of this group itself: Kubernetes' own groups have no dot, or are below
/// `k8s.io`. A CRD's group has a dot, and needs Kubernetes' approval, or an annotation that says that it has none, below
/// `k8s.io` and `kubernetes.io`.
pub fn may_be_built_in(group: &str) -> bool {
    let below = |domain: &str| {
        let rest = group.strip_suffix(domain);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    !group.contains('.') || below("k8s.io") || below("kubernetes.io")
}

#[cfg(test)]
pub(crate) fn defined(versions: &[&str]) -> Definition {
    let versions = versions.iter().map(|version| Box::from(*version));
    Definition {
        versions: Some(versions.collect()),
        revision: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_own_groups_may_be_built_in_and_no_others() {
        for (group, may) in [
            ("", true),
            ("apps", true),
            ("discovery.k8s.io", true),
            ("k8s.io", true),
            ("node.kubernetes.io", true),
            ("example.com", false),
            ("cluster.x-k8s.io", false),
            ("k8s.io.example.com", false),
        ] {
            assert_eq!(may_be_built_in(group), may, "{group}");
        }
    }

    #[test]
    fn a_definition_whose_versions_cannot_be_read_may_serve_any() {
        let pair = Pair("example.com".to_owned(), "widgets".to_owned());
        let custom = Custom {
            definitions: [(pair, Definition::default())].into(),
            ..Custom::default()
        };
        let gvr = |resource| GvrRef {
            group: "example.com",
            version: "v7",
            resource,
            subresource: "status",
        };
        assert!(custom.contains(gvr("widgets")) && !custom.contains(gvr("gadgets")));
    }

    #[test]
    fn a_custom_resource_has_the_name_that_etcd_has() {
        let pair = |one: &str, other: &str| Pair(one.to_owned(), other.to_owned());
        let custom = Custom {
            definitions: [(pair("example.com", "widgets"), defined(&["v1"]))].into(),
            aggregated: [pair("metrics.k8s.io", "v1beta1")].into(),
        };
        let name = |group, version, resource| {
            let asked = GvrRef {
                group,
                version,
                resource,
                subresource: "status",
            };
            let name = custom.name_of(asked)?;
            Some([name.group, name.version, name.resource, name.subresource])
        };
        let named = |names: [&str; 3]| {
            let [group, version, resource] = names.map(str::to_owned);
            Some([group, version, resource, String::new()])
        };
        assert_eq!(
            name("example.com", "v1", "widgets"),
            named(["example.com", "", "widgets"])
        );
        assert_eq!(name("example.com", "v999", "widgets"), None);
        assert_eq!(
            name("metrics.k8s.io", "v1beta1", "made-up"),
            named(["metrics.k8s.io", "v1beta1", ""])
        );
        assert_eq!(name("example.com", "v1", "gadgets"), None);
    }
}
