//! What only some versions of Kubernetes serve or keep. Pure.

use std::ops::Range;

use serde_json::{Value, json};

use crate::kinds::{ANCHOR, HPAS, KINDS};

/// Something that is always there, read by an API version that only some serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Api {
    pub group_version: &'static str,
    object: &'static str,
    pub minors: Range<u32>,
}

/// A field of a Job that older versions drop.
#[derive(Clone, Copy)]
pub struct Field {
    pub name: &'static str,
    value: fn() -> Value,
    pub since: u32,
}

/// A resource that older versions do not have, in no API version.
#[derive(Clone, Copy)]
pub struct Resource {
    group_version: &'static str,
    kind: &'static str,
    pub plural: &'static str,
    /// What an object must have besides its metadata.
    content: fn() -> (&'static str, Value),
    pub since: u32,
}

const LAST: u32 = u32::MAX;
/// A CronJob as all versions before this one serve it.
pub const CRON_JOBS_BEFORE: u32 = 25;

const APIS: [Api; 6] = [
    api("batch/v1", "cronjobs/anchor", 21..LAST),
    api("batch/v1beta1", "cronjobs/anchor", 0..CRON_JOBS_BEFORE),
    api(
        "autoscaling/v2",
        "horizontalpodautoscalers/anchor",
        23..LAST,
    ),
    api(
        "autoscaling/v2beta2",
        "horizontalpodautoscalers/anchor",
        0..26,
    ),
    api("rbac.authorization.k8s.io/v1beta1", "roles/own", 0..22),
    api("networking.k8s.io/v1beta1", "ingresses", 0..22),
];
const FIELDS: [Field; 2] = [
    Field {
        name: "suspend",
        value: || json!(true),
        since: 22,
    },
    Field {
        name: "podReplacementPolicy",
        value: || json!("Failed"),
        since: 29,
    },
];
/// What an apiserver without its group does not serve.
pub const OF_A_GROUP: Resource = Resource {
    group_version: "autoscaling/v1",
    kind: "HorizontalPodAutoscaler",
    plural: "horizontalpodautoscalers",
    content: || ("spec", KINDS[HPAS].object(&Value::Null)["spec"].take()),
    since: 0,
};
/// The newest first.
const RESOURCES: [Resource; 2] = [
    Resource {
        group_version: "resource.k8s.io/v1",
        kind: "ResourceClaim",
        plural: "resourceclaims",
        content: || ("spec", json!({"devices": {}})),
        since: 34,
    },
    Resource {
        group_version: "storage.k8s.io/v1",
        kind: "CSIStorageCapacity",
        plural: "csistoragecapacities",
        content: || ("storageClassName", json!("a-class")),
        since: 24,
    },
];

const fn api(group_version: &'static str, object: &'static str, minors: Range<u32>) -> Api {
    Api {
        group_version,
        object,
        minors,
    }
}

/// Those that some of these versions serve and others do not.
pub fn apis(minors: &[u32]) -> Vec<Api> {
    let is_partly = |api: &Api| differ(minors, |minor| api.minors.contains(&minor));
    APIS.into_iter().filter(is_partly).collect()
}

/// Those that some of these versions keep and others do not.
pub fn fields(minors: &[u32]) -> Vec<Field> {
    let is_partly = |field: &Field| differ(minors, |minor| minor >= field.since);
    FIELDS.into_iter().filter(is_partly).collect()
}

/// One that some of these versions have and others do not.
pub fn resource(minors: &[u32]) -> Option<Resource> {
    let is_partly = |resource: &Resource| differ(minors, |minor| minor >= resource.since);
    RESOURCES.into_iter().find(is_partly)
}

fn namespaced(group_version: &str, namespace: &str, rest: &str) -> String {
    format!("/apis/{group_version}/namespaces/{namespace}/{rest}")
}

fn differ(minors: &[u32], has_it: impl Fn(u32) -> bool) -> bool {
    let with = minors.iter().filter(|minor| has_it(**minor)).count();
    with > 0 && with < minors.len()
}

impl Api {
    pub fn path(&self, namespace: &str) -> String {
        namespaced(self.group_version, namespace, self.object)
    }
}

impl Field {
    /// `job` with the field.
    pub fn add_to(&self, mut job: Value) -> Value {
        job["spec"][self.name] = (self.value)();
        job
    }

    pub fn is_in(&self, job: &Value) -> bool {
        job["spec"][self.name] == (self.value)()
    }
}

impl Resource {
    pub fn collection(&self, namespace: &str) -> String {
        namespaced(self.group_version, namespace, self.plural)
    }

    pub fn object(&self, metadata: &Value) -> Value {
        let (field, value) = (self.content)();
        json!({"apiVersion": self.group_version, "kind": self.kind, "metadata": metadata, field: value})
    }

    /// For the metadata of what this object owns.
    pub fn owner(&self, object: &Value) -> Value {
        let metadata = &object["metadata"];
        json!([{"apiVersion": self.group_version, "kind": self.kind, "name": metadata["name"], "uid": metadata["uid"]}])
    }

    /// Where etcd has those of this namespace.
    pub fn prefix(&self, namespace: &str) -> String {
        format!("/registry/{}/{namespace}/", self.plural)
    }
}

/// The CronJob that the APIs name, for its oldest one.
pub fn cron_job() -> Value {
    let containers = json!([{"name": "c", "image": "i"}]);
    let pod = json!({"spec": {"containers": containers, "restartPolicy": "Never"}});
    let spec = json!({"schedule": "0 0 1 1 *", "suspend": true, "jobTemplate": {"spec": {"template": pod}}});
    json!({"apiVersion": "batch/v1beta1", "kind": "CronJob", "metadata": {"name": ANCHOR}, "spec": spec})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_or_none_of_the_versions_have_is_not_partly_there() {
        let named = |minors: &[u32]| {
            let apis = apis(minors).into_iter().map(|api| api.group_version);
            apis.collect::<Vec<_>>()
        };
        assert!(named(&[20]).is_empty() && named(&[24, 24]).is_empty());
        let older = [
            "rbac.authorization.k8s.io/v1beta1",
            "networking.k8s.io/v1beta1",
        ];
        assert_eq!(named(&[20, 24])[2..], older);
        assert_eq!(named(&[24, 36]), ["batch/v1beta1", "autoscaling/v2beta2"]);
        let names = fields(&[24, 36])
            .iter()
            .map(|field| field.name)
            .collect::<Vec<_>>();
        assert_eq!(names, ["podReplacementPolicy"]);
    }

    #[test]
    fn the_newest_resource_that_is_partly_there_is_taken() {
        let plural = |minors: &[u32]| resource(minors).map(|it| it.plural);
        assert_eq!(plural(&[20, 24]), Some("csistoragecapacities"));
        assert_eq!(plural(&[20, 24, 36]), Some("resourceclaims"));
        assert_eq!(plural(&[20, 22]), None);
    }

    #[test]
    fn a_field_that_was_dropped_is_missed() {
        for field in FIELDS {
            let job = json!({"spec": {"template": {}}});
            assert!(!field.is_in(&job));
            assert!(field.is_in(&field.add_to(job)));
        }
    }
}
