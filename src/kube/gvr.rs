//! Names of API resources: group, version, resource, subresource. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::{Equivalent, HashSet};

/// A group version.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersion {
    /// API group, empty for the core group.
    pub group: String,
    pub version: String,
}

impl GroupVersion {
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
        Gvr {
            group: self.group.to_owned(),
            version: self.version.to_owned(),
            resource: self.resource.to_owned(),
            subresource: self.subresource.to_owned(),
        }
    }
}

/// The `apiVersion` of objects and documents: `apps/v1`, and `v1` for the core group.
pub fn api_version(group: &str, version: &str) -> String {
    match group {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    }
}

/// Two names that belong together, looked up borrowed: (group, resource) of a CRD, (group, version) of an APIService.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pair(pub String, pub String);

#[derive(Hash)]
struct PairRef<'a>(&'a str, &'a str);

impl Equivalent<Pair> for PairRef<'_> {
    fn equivalent(&self, key: &Pair) -> bool {
        self.0 == key.0 && self.1 == key.1
    }
}

/// A set of resources served, grouped as discovery groups them.
pub type ServedSet = BTreeSet<Gvr>;

/// Resources that every apiserver serves, because they are defined by objects in etcd.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Custom {
    /// (group, plural) of CustomResourceDefinitions.
    pub definitions: HashSet<Pair>,
    /// (group, version) of APIServices that have a `spec.service`.
    pub aggregated: HashSet<Pair>,
}

impl Custom {
    /// Whether `gvr` belongs to a CRD or an aggregated API.
    pub fn contains(&self, gvr: GvrRef<'_>) -> bool {
        self.definitions.contains(&PairRef(gvr.group, gvr.resource))
            || self.aggregated.contains(&PairRef(gvr.group, gvr.version))
    }

    /// What of `gvr` the key of its CRD or APIService names: the group with the resource, or with the version. The rest
    /// is empty.
    pub fn name_of(&self, gvr: GvrRef<'_>) -> Option<Gvr> {
        let definition = self.definitions.get(&PairRef(gvr.group, gvr.resource));
        let name = |Pair(group, other): &Pair| (group.clone(), other.clone());
        let (group, version, resource) = match definition.map(name) {
            Some((group, resource)) => (group, String::new(), resource),
            None => {
                let aggregated = self.aggregated.get(&PairRef(gvr.group, gvr.version))?;
                let (group, version) = name(aggregated);
                (group, version, String::new())
            }
        };
        Some(Gvr {
            group,
            version,
            resource,
            subresource: String::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_custom_resource_has_the_name_that_etcd_has() {
        let pair = |one: &str, other: &str| Pair(one.to_owned(), other.to_owned());
        let custom = Custom {
            definitions: [pair("example.com", "widgets")].into(),
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
        let made_up = "any-version";
        assert_eq!(
            name("example.com", made_up, "widgets"),
            named(["example.com", "", "widgets"])
        );
        assert_eq!(
            name("metrics.k8s.io", "v1beta1", "made-up"),
            named(["metrics.k8s.io", "v1beta1", ""])
        );
        assert_eq!(name("example.com", "v1", "gadgets"), None);
    }
}
