//! The identity Lease (KEP-1965) that the proxy keeps, with everything in Kubernetes v1.20.2 that reads such Leases:
//! kubectl, kube-apiserver's Lease collector, kube-controller-manager's collector of storage versions.

use kube_interop_proxy::cluster::codec::{RENEWAL, renewal};
use serde_json::{Value, json};

use testkit::cluster::LONG;
use testkit::kcm::ControllerManager;
use testkit::kube::{self, KubeOptions, Need};
use testkit::kubectl::Kubectl;
use testkit::node::Node;
use testkit::wait::eventually;

const ID: &str = "cp-a";
const GATES: [&str; 2] = ["APIServerIdentity=true", "StorageVersionAPI=true"];
const STORAGE_VERSIONS: &str = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions";

/// Later ones have a Lease under the host's name, and the proxy keeps none.
const OLD_IDENTITY: [Need; 2] = [
    Need::Before(26),
    Need::Flag("identity-lease-duration-seconds"),
];

/// A kube-apiserver that collects expired identity Leases every 3 seconds: as often as its own would expire. The
/// proxy's Lease would, without renewal, too.
async fn collecting() -> Node {
    Node::options()
        .server(|options| {
            let options = options
                .arg("--identity-lease-duration-seconds=3")
                .arg("--identity-lease-renew-interval-seconds=1");
            GATES.into_iter().fold(options, KubeOptions::feature_gate)
        })
        .proxy(|options| {
            options
                .server_id(ID)
                .set("identity.publishLease", "Auto")
                .set("identity.renewInterval", "300ms")
                .set("identity.leaseDuration", "3s")
        })
        .start()
        .await
}

fn kubectl(node: &Node) -> Kubectl {
    let pki = &node.ground.pki;
    Kubectl::new(node.server.addr(), pki, node.ground.dir.path()).cert(pki, "admin")
}

/// As kubectl shows them.
async fn leases(node: &Node, namespace: &str) -> Vec<Value> {
    let arguments = ["-n", namespace, "get", "leases", "-o", "json"];
    let list: Value = serde_json::from_str(&kubectl(node).run(&arguments).await).unwrap();
    list["items"].as_array().unwrap().clone()
}

/// The one of this name; `None` if there is none.
async fn lease(node: &Node, namespace: &str, name: &str) -> Option<Value> {
    let mut leases = leases(node, namespace).await.into_iter();
    leases.find(|lease| lease["metadata"]["name"] == name)
}

async fn until_kept(node: &Node) -> Value {
    eventually("the proxy's Lease is there", LONG, async || {
        let lease = lease(node, "kube-system", ID).await;
        lease.ok_or_else(|| node.proxy.log_tail())
    })
    .await
}

async fn create(node: &Node, object: &Value) {
    let (arguments, object) = (["create", "-f", "-"], object.to_string());
    let output = kubectl(node).output_with_input(&arguments, &object).await;
    assert!(output.success, "{}", output.stderr);
}

async fn until_gone(node: &Node, namespace: &str, name: &str) {
    eventually(&format!("{namespace}/{name} is gone"), LONG, async || {
        lease(node, namespace, name).await.is_none()
    })
    .await;
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
    let node = collecting().await;
    it_is_renewed_and_makes_no_server(&node).await;
    collectors_take_the_dead_and_leave_the_lease_alone(&node).await;
    it_is_there_while_the_proxy_is(node).await;
}

/// Nor do the apiserver's own Lease and its StorageVersions, which name it.
async fn it_is_renewed_and_makes_no_server(node: &Node) {
    until_kept(node).await;
    let renewed = "apiserver_identity_lease_success_count";
    let often = |count: f64| count >= 10.0;
    node.proxy.until_metric(renewed, &[], often).await;
    let failed = "apiserver_identity_lease_failure_count";
    assert_eq!(node.proxy.metric(failed, &[]).await, 0.0);
    assert_eq!(node.proxy.statusz().await["peers"], json!([]));
}

async fn it_is_there_while_the_proxy_is(mut node: Node) {
    let first = until_kept(&node).await;
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
        node.proxy.addr().to_string()
    );
    eventually("the version is told", LONG, async || {
        let lease = lease(&node, "kube-system", ID).await.ok_or("no Lease")?;
        let told = &lease["metadata"]["annotations"]["kube-interop-proxy/binary-version"];
        if *told == node.server.abilities().version {
            Ok(())
        } else {
            Err(format!("{lease:#}"))
        }
    })
    .await;

    eventually("it is renewed", LONG, async || {
        let lease = lease(&node, "kube-system", ID).await;
        lease.is_some_and(|lease| {
            let later = lease["spec"]["renewTime"].as_str() > first["spec"]["renewTime"].as_str();
            later && uid(&lease) == uid(&first)
        })
    })
    .await;

    let arguments = ["-n", "kube-system", "delete", "lease", ID];
    kubectl(&node).run(&arguments).await;
    let second = until_kept(&node).await;
    assert_ne!(uid(&second), uid(&first));
    let holder = |lease: &Value| lease["spec"]["holderIdentity"].clone();
    assert_eq!(holder(&second), holder(&first));

    node.proxy.terminate().await;
    assert_eq!(lease(&node, "kube-system", ID).await, None);
    let left = leases(&node, "kube-system").await;
    assert!(
        left.iter().any(is_of_apiserver),
        "the apiserver's own stays: {left:#?}"
    );
}

async fn collectors_take_the_dead_and_leave_the_lease_alone(node: &Node) {
    let manager = ControllerManager::start(
        node.ground.dir.path(),
        &node.ground.pki,
        node.server.addr(),
        &["storage-version-gc"],
        &GATES,
    )
    .await;
    let first = until_kept(node).await;
    let (past, future) = ("2020-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z");

    // Labelled as an apiserver's, long dead by the apiserver's clock: its collector's.
    let labels = json!({"k8s.io/component": "kube-apiserver"});
    let object = dead("kube-system", "dead-apiserver", &labels, past);
    create(node, &object).await;
    until_gone(node, "kube-system", "dead-apiserver").await;

    // Where that collector does not look, and renewed in times to come: of a proxy whose clock was wrong.
    let namespace = "kube-apiserver-lease";
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    create(node, &object).await;
    let labels = json!({"apiserver.kubernetes.io/identity": "kube-apiserver",
        "app.kubernetes.io/managed-by": "kube-interop-proxy"});
    // As dead, but nobody's: neither collector's.
    let object = dead(namespace, "nobodys", &json!({}), past);
    create(node, &object).await;
    let mut object = dead(namespace, "dead-proxy", &labels, future);
    object["metadata"]["annotations"] = json!({RENEWAL: renewal("dead-proxy", future)});
    create(node, &object).await;
    until_gone(node, namespace, "dead-proxy").await;
    assert!(lease(node, namespace, "nobodys").await.is_some());

    storage_versions_of_the_lease_count(node, &manager).await;

    let now = until_kept(node).await;
    assert_eq!(uid(&now), uid(&first));
}

/// kube-controller-manager removes what servers without an identity Lease say; ours counts as one.
async fn storage_versions_of_the_lease_count(node: &Node, manager: &ControllerManager) {
    let admin = node.server.admin();
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
