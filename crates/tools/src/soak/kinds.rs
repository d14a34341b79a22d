//! What is written and read, and by whom.

use serde_json::{Value, json};

/// A kind of objects that clients write.
pub struct Kind {
    root: &'static str,
    pub plural: &'static str,
    kind: &'static str,
    /// Where etcd has them.
    pub prefix: &'static str,
}

pub const KINDS: [Kind; 4] = [
    Kind {
        root: "/api/v1",
        plural: "configmaps",
        kind: "ConfigMap",
        prefix: "/registry/configmaps/",
    },
    Kind {
        root: "/apis/autoscaling/v1",
        plural: "horizontalpodautoscalers",
        kind: "HorizontalPodAutoscaler",
        prefix: "/registry/horizontalpodautoscalers/",
    },
    Kind {
        root: "/apis/batch/v1",
        plural: "jobs",
        kind: "Job",
        prefix: "/registry/jobs/",
    },
    Kind {
        root: "/apis/soak.test/v1",
        plural: "widgets",
        kind: "Widget",
        prefix: "/registry/soak.test/widgets/",
    },
];

/// Which of them are HorizontalPodAutoscalers.
pub const HPAS: usize = 1;
/// Which of them are Jobs.
pub const JOBS: usize = 2;

/// The object that is always there, in each user's namespace.
pub const ANCHOR: &str = "anchor";

/// May do everything in a namespace of its own, and nothing elsewhere.
#[derive(Clone, Copy)]
pub struct User {
    pub name: &'static str,
    /// `None`: it shows the certificate of its name.
    pub token: Option<&'static str>,
    /// The same as a line of a request.
    pub authorization: &'static str,
    pub namespace: &'static str,
}

pub const USERS: [User; 4] = [
    User {
        name: "alice",
        token: None,
        authorization: "",
        namespace: "of-alice",
    },
    User {
        name: "bob",
        token: Some("tok-bob"),
        authorization: "Authorization: Bearer tok-bob\r\n",
        namespace: "of-bob",
    },
    User {
        name: "carol",
        token: None,
        authorization: "",
        namespace: "of-carol",
    },
    User {
        name: "dave",
        token: Some("tok-dave"),
        authorization: "Authorization: Bearer tok-dave\r\n",
        namespace: "of-dave",
    },
];

impl Kind {
    /// In all namespaces.
    pub fn everywhere(&self) -> String {
        format!("{}/{}", self.root, self.plural)
    }

    pub fn collection(&self, namespace: &str) -> String {
        format!("{}/namespaces/{namespace}/{}", self.root, self.plural)
    }

    pub fn path(&self, namespace: &str, name: &str) -> String {
        format!("{}/{name}", self.collection(namespace))
    }

    pub fn object(&self, metadata: &Value) -> Value {
        let version = self
            .root
            .trim_start_matches("/apis/")
            .trim_start_matches("/api/");
        let mut object = json!({"apiVersion": version, "kind": self.kind, "metadata": metadata});
        match self.kind {
            "HorizontalPodAutoscaler" => {
                let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "it"});
                object["spec"] = json!({"maxReplicas": 2, "scaleTargetRef": target});
            }
            "Job" => {
                let pod =
                    json!({"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"});
                object["spec"] = json!({"template": {"spec": pod}});
            }
            _ => {}
        }
        object
    }
}

/// A CustomResourceDefinition.
pub fn definition(group: &str, plural: &str, kind: &str) -> Value {
    let names = json!({"plural": plural, "singular": kind.to_lowercase(), "kind": kind});
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}})
}

pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
