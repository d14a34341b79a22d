//! The identity Lease (KEP-1965) that the proxy keeps, with everything in Kubernetes v1.20.2 that reads such Leases:
//! kubectl, kube-apiserver's Lease collector, kube-controller-manager's collector of storage versions.

use kube_interop_proxy::cluster::codec::{RENEWAL, renewal};
use serde_json::{Value, json};

use testkit::cluster::{Ground, LONG};
use testkit::kcm::ControllerManager;
use testkit::kube::{self, KubeApiServer, KubeOptions, Need};
use testkit::kubectl::Kubectl;
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

const ID: &str = "cp-a";
const GATES: [&str; 2] = ["APIServerIdentity=true", "StorageVersionAPI=true"];
const STORAGE_VERSIONS: &str = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions";

/// Later ones have a Lease under the host's name, and the proxy keeps none.
const OLD_IDENTITY: [Need; 2] = [
    Need::Before(26),
    Need::Flag("identity-lease-duration-seconds"),
];

struct World {
    api: KubeApiServer,
    proxy: Proxy,
    kubectl: Kubectl,
    ground: Ground,
}

/// A kube-apiserver that collects expired identity Leases every 3 seconds: as often as its own would expire. The
/// proxy's Lease would, without renewal, too.
async fn world() -> World {
    let ground = Ground::bootstrapped().await;
    let options = ground
        .kube(ID)
        .arg("--identity-lease-duration-seconds=3")
        .arg("--identity-lease-renew-interval-seconds=1");
    let options = GATES.into_iter().fold(options, KubeOptions::feature_gate);
    let api = KubeApiServer::start(options, &ground.pki).await;
    let proxy = ground
        .proxy(ID, api.addr())
        .set("identity.publishLease", "Auto")
        .set("identity.renewInterval", "300ms")
        .set("identity.leaseDuration", "3s");
    let proxy = Proxy::start(proxy.until(Until::Ready)).await;
    let kubectl =
        Kubectl::new(api.addr(), &ground.pki, ground.dir.path()).cert(&ground.pki, "admin");
    World {
        api,
        proxy,
        kubectl,
        ground,
    }
}

impl World {
    /// As kubectl shows them.
    async fn leases(&self, namespace: &str) -> Vec<Value> {
        let arguments = ["-n", namespace, "get", "leases", "-o", "json"];
        let list: Value = serde_json::from_str(&self.kubectl.run(&arguments).await).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// The one of this name; `None` if there is none.
    async fn lease(&self, namespace: &str, name: &str) -> Option<Value> {
        let mut leases = self.leases(namespace).await.into_iter();
        leases.find(|lease| lease["metadata"]["name"] == name)
    }

    async fn until_kept(&self) -> Value {
        eventually("the proxy's Lease is there", LONG, async || {
            let lease = self.lease("kube-system", ID).await;
            lease.ok_or_else(|| self.proxy.log_tail())
        })
        .await
    }

    async fn create(&self, object: &Value) {
        let (arguments, object) = (["create", "-f", "-"], object.to_string());
        let output = self.kubectl.output_with_input(&arguments, &object).await;
        assert!(output.success, "{}", output.stderr);
    }

    async fn until_gone(&self, namespace: &str, name: &str) {
        eventually(&format!("{namespace}/{name} is gone"), LONG, async || {
            self.lease(namespace, name).await.is_none()
        })
        .await;
    }
}

/// A Lease of somebody dead.
fn dead(namespace: &str, name: &str, labels: &Value, renewed: &str) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 1, "renewTime": renewed}})
}

/// v1.20 calls its own Lease `kube-apiserver-` and a UUID.
fn is_of_apiserver(lease: &Value) -> bool {
    let name = lease["metadata"]["name"].as_str().unwrap();
    name.starts_with("kube-apiserver-")
}

fn uid(lease: &Value) -> &str {
    lease["metadata"]["uid"].as_str().unwrap()
}

#[tokio::test]
async fn the_lease_is_there_while_the_proxy_is_whoever_collects_others() {
    if kube::lacks(&OLD_IDENTITY) {
        return;
    }
    let world = world().await;
    it_is_renewed_and_makes_no_server(&world).await;
    collectors_take_the_dead_and_leave_the_lease_alone(&world).await;
    it_is_there_while_the_proxy_is(world).await;
}

/// Nor do the apiserver's own Lease and its StorageVersions, which name it.
async fn it_is_renewed_and_makes_no_server(world: &World) {
    world.until_kept().await;
    let renewed = "apiserver_identity_lease_success_count";
    let often = |count: f64| count >= 10.0;
    world.proxy.until_metric(renewed, &[], often).await;
    let failed = "apiserver_identity_lease_failure_count";
    assert_eq!(world.proxy.metric(failed, &[]).await, 0.0);
    assert_eq!(world.proxy.statusz().await["peers"], json!([]));
}

async fn it_is_there_while_the_proxy_is(mut world: World) {
    let first = world.until_kept().await;
    let metadata = &first["metadata"];
    for (label, value) in [
        ("apiserver.kubernetes.io/identity", "kube-apiserver"),
        ("k8s.io/component", "kube-apiserver"),
        ("app.kubernetes.io/managed-by", "kube-interop-proxy"),
    ] {
        assert_eq!(metadata["labels"][label], value, "{first:#}");
    }
    assert_eq!(
        metadata["annotations"]["kubernetes.io/peer-advertise-address"],
        world.proxy.addr().to_string()
    );
    eventually("the version is told", LONG, async || {
        let lease = world.lease("kube-system", ID).await.ok_or("no Lease")?;
        let told = &lease["metadata"]["annotations"]["kube-interop-proxy/binary-version"];
        if *told == world.api.abilities().version {
            Ok(())
        } else {
            Err(format!("{lease:#}"))
        }
    })
    .await;

    eventually("it is renewed", LONG, async || {
        let lease = world.lease("kube-system", ID).await;
        lease.is_some_and(|lease| {
            let later = lease["spec"]["renewTime"].as_str() > first["spec"]["renewTime"].as_str();
            later && uid(&lease) == uid(&first)
        })
    })
    .await;

    let arguments = ["-n", "kube-system", "delete", "lease", ID];
    world.kubectl.run(&arguments).await;
    let second = world.until_kept().await;
    assert_ne!(uid(&second), uid(&first));
    let holder = |lease: &Value| lease["spec"]["holderIdentity"].clone();
    assert_eq!(holder(&second), holder(&first));

    world.proxy.terminate().await;
    assert_eq!(world.lease("kube-system", ID).await, None);
    let left = world.leases("kube-system").await;
    assert!(
        left.iter().any(is_of_apiserver),
        "the apiserver's own stays: {left:#?}"
    );
}

async fn collectors_take_the_dead_and_leave_the_lease_alone(world: &World) {
    let manager = ControllerManager::start(
        world.ground.dir.path(),
        &world.ground.pki,
        world.api.addr(),
        &["storage-version-gc"],
        &GATES,
    )
    .await;
    let lease = world.until_kept().await;
    let (past, future) = ("2020-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z");

    // Labelled as an apiserver's, long dead by the apiserver's clock: its collector's.
    let labels = json!({"k8s.io/component": "kube-apiserver"});
    let object = dead("kube-system", "dead-apiserver", &labels, past);
    world.create(&object).await;
    world.until_gone("kube-system", "dead-apiserver").await;

    // Where that collector does not look, and renewed in times to come: of a proxy whose clock was wrong.
    let namespace = "kube-apiserver-lease";
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    world.create(&object).await;
    let labels = json!({"apiserver.kubernetes.io/identity": "kube-apiserver",
        "app.kubernetes.io/managed-by": "kube-interop-proxy"});
    // As dead, but nobody's: neither collector's.
    let object = dead(namespace, "nobodys", &json!({}), past);
    world.create(&object).await;
    let mut object = dead(namespace, "dead-proxy", &labels, future);
    object["metadata"]["annotations"] = json!({RENEWAL: renewal("dead-proxy", future)});
    world.create(&object).await;
    world.until_gone(namespace, "dead-proxy").await;
    assert!(world.lease(namespace, "nobodys").await.is_some());

    storage_versions_of_the_lease_count(world, &manager).await;

    let now = world.until_kept().await;
    assert_eq!(uid(&now), uid(&lease));
}

/// kube-controller-manager removes what servers without an identity Lease say; ours counts as one.
async fn storage_versions_of_the_lease_count(world: &World, manager: &ControllerManager) {
    let admin = world.api.admin();
    let said_by =
        |id: &str| json!({"apiServerID": id, "encodingVersion": "v1", "decodableVersions": ["v1"]});
    let mut object = json!({"apiVersion": "internal.apiserver.k8s.io/v1alpha1",
        "kind": "StorageVersion", "metadata": {"name": "example.com.things"}, "spec": {}});
    let created = admin
        .request("POST", STORAGE_VERSIONS, object.to_string())
        .await;
    assert_eq!(created.code(), 201, "{}", created.text());
    object["metadata"] = created.json()["metadata"].clone();
    object["status"] = json!({"storageVersions": [said_by("nobody"), said_by(ID)],
        "commonEncodingVersion": "v1"});
    let path = format!("{STORAGE_VERSIONS}/example.com.things");
    let told = admin
        .request("PUT", &format!("{path}/status"), object.to_string())
        .await;
    assert_eq!(told.code(), 200, "{}", told.text());

    eventually("nobody's storage version is gone", LONG, async || {
        let found = admin.get(&path).await.json();
        let said = found["status"]["storageVersions"].as_array();
        let ids: Vec<_> = said
            .unwrap()
            .iter()
            .map(|one| &one["apiServerID"])
            .collect();
        if ids.contains(&&json!("nobody")) {
            return Err(manager.log_tail());
        }
        assert_eq!(ids, [ID], "{found:#}");
        Ok(())
    })
    .await;
}
