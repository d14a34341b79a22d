//! Resources of real apiservers that nobody else watches: with objects and without, custom and built-in, in namespaces
//! and not.

use std::net::SocketAddr;

use http::header::{CONNECTION, HeaderValue, USER_AGENT};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use testkit::balancer::Balancer;
use testkit::client::Client;
use testkit::cluster::{Ground, LONG};
use testkit::kube::KubeApiServer;
use testkit::nodes::Nodes;
use testkit::wait::eventually;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resource {
    pub group: &'static str,
    kind: &'static str,
    pub plural: &'static str,
    pub namespaced: bool,
}

const fn of(
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    namespaced: bool,
) -> Resource {
    Resource {
        group,
        kind,
        plural,
        namespaced,
    }
}

pub const POD_TEMPLATES: Resource = of("", "PodTemplate", "podtemplates", true);
pub const NETWORK_POLICIES: Resource = of(
    "networking.k8s.io",
    "NetworkPolicy",
    "networkpolicies",
    true,
);
pub const CSI_DRIVERS: Resource = of("storage.k8s.io", "CSIDriver", "csidrivers", false);
pub const WIDGETS: Resource = of("example.test", "Widget", "widgets", true);
pub const GADGETS: Resource = of("example.test", "Gadget", "gadgets", true);

impl Resource {
    pub fn api(&self) -> ApiResource {
        let gvk = GroupVersionKind::gvk(self.group, "v1", self.kind);
        ApiResource::from_gvk_with_plural(&gvk, self.plural)
    }

    /// In the namespace `default`, if it has namespaces.
    pub fn path(&self) -> String {
        let root = match self.group {
            "" => "/api/v1".to_owned(),
            group => format!("/apis/{group}/v1"),
        };
        let namespace = if self.namespaced {
            "/namespaces/default"
        } else {
            ""
        };
        format!("{root}{namespace}/{}", self.plural)
    }

    pub async fn create(&self, admin: &Client, name: &str, labels: Value) {
        let object = self.object(name, &labels).to_string();
        let answer = admin.request("POST", &self.path(), object).await;
        assert_eq!(answer.code(), 201, "{}", answer.text());
    }

    fn object(&self, name: &str, labels: &Value) -> Value {
        let api = self.api();
        let mut object = json!({"apiVersion": api.api_version, "kind": self.kind,
            "metadata": {"name": name, "labels": labels}});
        match *self {
            POD_TEMPLATES => {
                object["template"] = json!({"spec": {"containers": [{"name": "c", "image": "i"}]}});
            }
            NETWORK_POLICIES => object["spec"] = json!({"podSelector": {}}),
            CSI_DRIVERS => object["spec"] = json!({"attachRequired": false}),
            _ => {}
        }
        object
    }

    pub async fn delete(&self, admin: &Client, name: &str) {
        let path = format!("{}/{name}", self.path());
        let answer = admin.request("DELETE", &path, "").await;
        assert_eq!(answer.code(), 200, "{}", answer.text());
    }

    /// Defines this custom resource. Returns when each of `servers` serves it.
    pub async fn define(&self, admin: &Client, servers: impl Iterator<Item = &Client>) {
        let names =
            json!({"plural": self.plural, "singular": self.kind.to_lowercase(), "kind": self.kind});
        let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{}.{}", self.plural, self.group)},
            "spec": {"group": self.group, "scope": "Namespaced", "names": names,
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let answer = admin.request("POST", definitions, definition.to_string());
        let answer = answer.await;
        assert_eq!(answer.code(), 201, "{}", answer.text());
        for server in servers {
            eventually("the custom resource is served", LONG, async || {
                let answer = server.get(&self.path()).await;
                (answer.code() == 200).then_some(()).ok_or(answer.text())
            })
            .await;
        }
    }
}

/// Defines all custom resources. Returns when each node serves them.
pub async fn define_all(nodes: &Nodes) {
    let admin = nodes.servers[0].admin();
    for custom in [WIDGETS, GADGETS] {
        let servers = nodes.servers.iter().map(KubeApiServer::admin);
        custom.define(admin, servers).await;
    }
}

/// A kube-rs client that says who it is. Each of its requests is a connection of its own, so that the balancer gives
/// each to the next server.
pub fn kube_client(balancer: &Balancer, ground: &Ground, user_agent: &str) -> kube::Client {
    kube_client_at(balancer.addr(), ground, user_agent)
}

pub fn kube_client_at(server: SocketAddr, ground: &Ground, user_agent: &str) -> kube::Client {
    let url = format!("https://{server}");
    let mut config = kube::Config::new(url.parse().unwrap());
    config.root_cert_file = Some(ground.pki.path("ca.crt"));
    config.tls_server_name = Some("kubernetes.default.svc".to_owned());
    config.auth_info.client_certificate = Some(ground.pki.file("admin.crt"));
    config.auth_info.client_key = Some(ground.pki.file("admin.key"));
    let user_agent = HeaderValue::from_str(user_agent).unwrap();
    config.headers = vec![
        (USER_AGENT, user_agent),
        (CONNECTION, HeaderValue::from_static("close")),
    ];
    kube::Client::try_from(config).unwrap()
}
