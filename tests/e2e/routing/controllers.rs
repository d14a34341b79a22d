//! KEP-4020's stories: a real kube-controller-manager v1.20.2 in a cluster whose real kube-apiservers differ. A does not
//! serve what B serves; the controllers talk to A's proxy. What A lacks has been added by a newer B, or removed by a newer
//! A.

use std::time::Duration;

use etcd_client::WatchOptions;
use serde_json::{Value, json};

use crate::routing::real_apiservers::without_autoscaling;
use testkit::client::Client;
use testkit::cluster::{Ground, REROUTED, lists};
use testkit::kcm::ControllerManager;
use testkit::kube::KubeApiServer;
use testkit::node::Node;
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

/// The garbage collector looks at discovery every 30 seconds.
const LONG: Duration = Duration::from_secs(120);
/// Removed by a newer server: a version of a group that goes on.
const REMOVED: &str = "batch/v1beta1";
const NAMESPACES: &str = "/api/v1/namespaces";

/// A does not serve what B serves, and has a proxy.
struct Mixed {
    b: KubeApiServer,
    a: Node,
}

/// A kind of object that a story is about.
struct Kind {
    /// Where its objects are, within a namespace.
    path: &'static str,
    resource: &'static str,
    /// Where etcd has them.
    key: &'static str,
    manifest: Value,
}

fn autoscaler() -> Kind {
    Kind {
        path: "/apis/autoscaling/v1",
        resource: "horizontalpodautoscalers",
        key: "/registry/horizontalpodautoscalers",
        manifest: json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "spec": {"maxReplicas": 2,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}}),
    }
}

fn cron_job() -> Kind {
    let pod =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    Kind {
        path: "/apis/batch/v1beta1",
        resource: "cronjobs",
        key: "/registry/cronjobs",
        manifest: json!({"apiVersion": "batch/v1beta1", "kind": "CronJob", "spec": {"schedule": "0 0 1 1 *",
            "suspend": true, "jobTemplate": {"spec": {"template": pod}}}}),
    }
}

fn config_map() -> Kind {
    Kind {
        path: "/api/v1",
        resource: "configmaps",
        key: "/registry/configmaps",
        manifest: json!({"apiVersion": "v1", "kind": "ConfigMap"}),
    }
}

impl Mixed {
    /// Only B serves autoscaling and what is removed, and only A has a proxy. B's key below `masterleases/` is its own.
    async fn where_b_is_bare() -> Self {
        let ground = Ground::bootstrapped().await;
        // B first: then A deletes the APIService objects of what it does not know, and B's own group list forgets it.
        let b = ground.kube("cp-b").without("endpoint-reconciler-type");
        let b = KubeApiServer::start(b.betas_of("batch"), &ground.pki).await;
        let a = Node::options().server(|options| {
            without_autoscaling(options).runtime_config(&format!("{REMOVED}=false"))
        });
        let a = a.start_on(ground).await;
        let mixed = Self { b, a };
        mixed.until_a_knows(&mixed.b.addr().to_string()).await;
        mixed
    }

    /// B gets a proxy. That of A starts again, and no longer looks for bare apiservers.
    async fn where_both_have_proxies(&mut self) -> Proxy {
        const BARE: (&str, &str) = ("rerouting.bareServers", "Ignore");
        let options = self.a.ground.proxy("b", self.b.addr());
        let proxy_b = Proxy::start(options.set(BARE.0, BARE.1).until(Until::Ready)).await;
        self.a.proxy.terminate().await;
        self.a.proxy.reconfigure(BARE.0, BARE.1);
        self.a.proxy.start_again().await;
        self.until_a_knows("b").await;
        proxy_b
    }

    /// `id`: by which A's proxy knows B.
    async fn until_a_knows(&self, id: &str) {
        eventually("A's proxy knows what B serves", LONG, async || {
            lists(&self.a.proxy.statusz().await, id, "autoscaling")
        })
        .await;
    }

    /// A kube-controller-manager with A's proxy for its apiserver, once that lists what B serves.
    async fn controllers(&self) -> ControllerManager {
        let ground = &self.a.ground;
        let (dir, pki, proxy) = (ground.dir.path(), &ground.pki, self.a.proxy.addr());
        ControllerManager::start(dir, pki, proxy, &["namespace", "garbagecollector"], &[]).await
    }

    /// B's administrator, past all proxies.
    fn admin(&self) -> &Client {
        self.b.admin()
    }

    async fn create_namespace(&self, name: &str) {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.create(NAMESPACES, &namespace).await;
    }

    /// The object, as it was created.
    async fn create_object(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        owner: Option<&Value>,
    ) -> Value {
        let mut object = kind.manifest.clone();
        let owners: Vec<_> = owner.into_iter().map(reference).collect();
        object["metadata"] =
            json!({"name": name, "namespace": namespace, "ownerReferences": owners});
        self.create(&kind.collection(namespace), &object).await
    }

    async fn create(&self, path: &str, object: &Value) -> Value {
        let answer = self.admin().request("POST", path, object.to_string()).await;
        assert_eq!(answer.code(), 201, "{}", answer.text());
        let mut created: Value = serde_json::from_slice(&answer.body).unwrap();
        // Lists and creations leave them out in some versions; references need them.
        for field in ["apiVersion", "kind"] {
            created[field] = object[field].clone();
        }
        created
    }

    async fn delete(&self, path: &str) {
        let answer = self.admin().request("DELETE", path, "").await;
        assert!(matches!(answer.code(), 200 | 202), "{}", answer.text());
    }

    async fn until_gone(&self, path: &str, controllers: &ControllerManager) {
        eventually(&format!("{path} is gone"), LONG, async || {
            match self.admin().get(path).await.code() {
                404 => Ok(()),
                code => Err(format!("{code}\n{}", controllers.log_tail())),
            }
        })
        .await;
    }

    /// How many of `kind` etcd has in a namespace.
    async fn stored(&self, kind: &Kind, namespace: &str) -> usize {
        let below = format!("{}/{namespace}/", kind.key);
        self.a.ground.etcd.below(&below).await.len()
    }

    /// The etcd revision of a key's deletion, the first after `since`.
    async fn deletion(&self, key: &str, since: i64) -> i64 {
        let options = WatchOptions::new().with_start_revision(since);
        let mut client = self.a.ground.etcd.client().await;
        let mut watch = client.watch(key, Some(options)).await.unwrap();
        let deletion = async {
            while let Some(answer) = watch.message().await.unwrap() {
                let deleted = |event: &&etcd_client::Event| {
                    event.event_type() == etcd_client::EventType::Delete
                };
                if let Some(event) = answer.events().iter().find(deleted) {
                    return event.kv().unwrap().mod_revision();
                }
            }
            panic!("{key}: the watch ended");
        };
        tokio::time::timeout(LONG, deletion)
            .await
            .expect("a deletion")
    }

    /// Deletes a namespace that has an object of `kind`, and sees that both go, the object first.
    async fn a_namespace_goes_after_its_object(
        &self,
        kind: &Kind,
        controllers: &ControllerManager,
    ) {
        let name = format!("with-{}", kind.resource);
        self.create_namespace(&name).await;
        let object = self.create_object(kind, &name, "web", None).await;
        let since = revision(&object);
        let namespace = format!("{NAMESPACES}/{name}");
        self.delete(&namespace).await;
        self.until_gone(&namespace, controllers).await;
        assert_eq!(self.stored(kind, &name).await, 0, "something is orphaned");
        let object = format!("{}/{name}/web", kind.key);
        let object = self.deletion(&object, since).await;
        let namespace = format!("/registry/namespaces/{name}");
        let namespace = self.deletion(&namespace, since).await;
        assert!(
            object < namespace,
            "object deleted at {object}, namespace at {namespace}"
        );
    }

    /// Deletes an owner in a new namespace, and sees that what it owns goes, and that what others own stays until then.
    async fn what_is_owned_goes_with_its_owner(
        &self,
        namespace: &str,
        owner: &Kind,
        owned: &Kind,
        controllers: &ControllerManager,
    ) {
        self.create_namespace(namespace).await;
        let web = self.create_object(owner, namespace, "web", None).await;
        self.create_object(owned, namespace, "of-web", Some(&web))
            .await;
        // A dead owner's: once they are collected, the collector has had its time for the living one's.
        for name in ["first", "second"] {
            let dead = self
                .create_object(&config_map(), namespace, &format!("dead-{name}"), None)
                .await;
            self.create_object(&config_map(), namespace, name, Some(&dead))
                .await;
            let config_maps = config_map().collection(namespace);
            self.delete(&format!("{config_maps}/dead-{name}")).await;
            self.until_gone(&format!("{config_maps}/{name}"), controllers)
                .await;
        }
        let of_web = format!("{}/of-web", owned.collection(namespace));
        assert_eq!(
            self.admin().get(&of_web).await.code(),
            200,
            "its owner lives"
        );
        // In batch/v1beta1 the default is to leave behind what is owned.
        let owner = format!("{}/web", owner.collection(namespace));
        self.delete(&format!("{owner}?propagationPolicy=Background"))
            .await;
        self.until_gone(&of_web, controllers).await;
    }

    /// Requests at A's proxy for what A does not serve.
    async fn served_by_peers(&self) -> f64 {
        let name = "kube_interop_proxy_requests_total";
        self.a.proxy.metric(name, &[("decision", "peers")]).await
    }

    async fn rerouted(&self, group: &str) -> f64 {
        self.a.proxy.metric(REROUTED, &[("group", group)]).await
    }
}

impl Kind {
    fn collection(&self, namespace: &str) -> String {
        format!("{}/namespaces/{namespace}/{}", self.path, self.resource)
    }
}

fn reference(owner: &Value) -> Value {
    json!({"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"]})
}

fn revision(object: &Value) -> i64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

/// Without the proxy: the namespace goes, what was in it stays behind.
async fn what_is_lost_without_the_proxy(mixed: &Mixed, kind: &Kind) {
    mixed.create_namespace("lost").await;
    mixed.create_object(kind, "lost", "web", None).await;
    let dir = tempfile::tempdir().unwrap();
    let (pki, a) = (&mixed.a.ground.pki, mixed.a.server.addr());
    let direct = ControllerManager::start(dir.path(), pki, a, &["namespace"], &[]).await;
    let namespace = format!("{NAMESPACES}/lost");
    mixed.delete(&namespace).await;
    mixed.until_gone(&namespace, &direct).await;
    let orphans = mixed.stored(kind, "lost").await;
    println!(
        "kube-controller-manager straight at A: namespace gone, {orphans} autoscaler orphaned in etcd"
    );
    assert_eq!(orphans, 1, "A itself cannot know of it");
}

/// What a newer B has added, what a newer A has removed, and what both serve: first while only A has a proxy.
#[tokio::test]
async fn what_is_in_a_namespace_goes_with_it_and_what_is_owned_with_its_owner() {
    let mut mixed = Mixed::where_b_is_bare().await;
    what_is_lost_without_the_proxy(&mixed, &autoscaler()).await;
    one_proxy_is_enough(&mixed).await;
    let _proxy_b = mixed.where_both_have_proxies().await;
    with_a_proxy_for_each(&mixed).await;
}

async fn one_proxy_is_enough(mixed: &Mixed) {
    let controllers = mixed.controllers().await;
    let added = autoscaler();
    mixed
        .a_namespace_goes_after_its_object(&added, &controllers)
        .await;
    mixed
        .what_is_owned_goes_with_its_owner("one-proxy", &config_map(), &added, &controllers)
        .await;
    assert!(mixed.rerouted("autoscaling").await >= 1.0);
}

async fn with_a_proxy_for_each(mixed: &Mixed) {
    let controllers = mixed.controllers().await;
    let added = autoscaler();
    mixed
        .a_namespace_goes_after_its_object(&added, &controllers)
        .await;
    println!(
        "kube-controller-manager at A's proxy: the autoscaler gone, then the namespace, 0 orphaned"
    );
    assert!(mixed.rerouted("autoscaling").await >= 1.0);
    assert!(mixed.served_by_peers().await >= 1.0);
    mixed
        .what_is_owned_goes_with_its_owner("added", &config_map(), &added, &controllers)
        .await;
    mixed
        .a_namespace_goes_after_its_object(&config_map(), &controllers)
        .await;

    if mixed.b.abilities().serves(REMOVED) {
        let removed = cron_job();
        mixed
            .a_namespace_goes_after_its_object(&removed, &controllers)
            .await;
        assert!(mixed.rerouted("batch").await >= 1.0);
        mixed
            .what_is_owned_goes_with_its_owner("removed", &removed, &config_map(), &controllers)
            .await;
    }
}
