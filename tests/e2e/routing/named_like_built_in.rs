//! Who may create CustomResourceDefinitions names one like a built-in resource that only another apiserver serves. Real
//! kube-apiservers: A without `coordination.k8s.io`, B with it.

use std::time::{Duration, Instant};

use k8s_pb::apimachinery::pkg::apis::meta::v1::{APIResource, APIResourceList};
use k8s_pb::apimachinery::pkg::runtime::Unknown;
use prost::Message;
use serde_json::{Value, json};

use super::real_apiservers::LONGER;
use testkit::client::Client;
use testkit::cluster::{assert_refused, lists};
use testkit::kube::{self, Need};
use testkit::kubectl::Kubectl;
use testkit::pair::Pair;
use testkit::wait::{eventually, holds};

/// With a dot, as CRDs need one, and nothing that apiservers of 1.20 need themselves, without alpha gates.
const GROUP: &str = "coordination.k8s.io";
const DOCUMENT: &str = "/apis/coordination.k8s.io/v1";
const LEASES: &str = "/apis/coordination.k8s.io/v1/leases";
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Several reads of discovery.
const SOME_READS: Duration = Duration::from_secs(5);

/// With one Lease.
async fn pair() -> Pair {
    let pair = Pair::options().a(|options| {
        let options = options.runtime_config("coordination.k8s.io/v1=false");
        options
            .without_identity()
            .feature_gate("StorageVersionAPI=false")
    });
    let pair = pair.start().await;
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "one", "namespace": "default"}, "spec": {}});
    let path = format!("{DOCUMENT}/namespaces/default/leases");
    let b = pair.b.admin();
    let made = b.request("POST", &path, lease.to_string()).await;
    assert_eq!(made.code(), 201, "{}", made.text());
    until_b_is_listed(&pair).await;
    pair
}

async fn b_is_listed(pair: &Pair) -> bool {
    lists(&pair.proxy_a.statusz().await, "b", GROUP)
}

async fn until_b_is_listed(pair: &Pair) {
    let what = "A's proxy knows what B serves";
    eventually(what, LONGER, async || b_is_listed(pair).await).await;
}

/// A CRD of this version and plural, whose resource A serves then. It is of another kind, scope, and set of
/// subresources than any built-in resource.
async fn define(pair: &Pair, version: &str, plural: &str) {
    let version = json!({"name": version, "served": true, "storage": true, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object"}}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}"),
            "annotations": {"api-approved.kubernetes.io": "unapproved, x"}},
        "spec": {"group": GROUP, "scope": "Cluster", "names": {"plural": plural, "kind": format!("Custom-{plural}")},
            "versions": [version]},
    });
    let admin = pair.a.admin();
    let made = admin
        .request("POST", DEFINITIONS, definition.to_string())
        .await;
    assert_eq!(made.code(), 201, "{}", made.text());
    let path = format!(
        "/apis/{GROUP}/{}/{plural}",
        definition["spec"]["versions"][0]["name"].as_str().unwrap()
    );
    eventually("A serves the custom resource", LONGER, async || {
        let answer = admin.get(&path).await;
        match answer.code() {
            200 => Ok(()),
            _ => Err(answer.text()),
        }
    })
    .await;
    for proxy in [&pair.proxy_a, &pair.proxy_b] {
        eventually("the proxies know the definition", LONGER, async || {
            proxy.statusz().await["custom"]["definitions"][GROUP].is_array()
        })
        .await;
    }
}

/// An APIService for the group version of the built-in resource, of a service that does not exist.
async fn aggregate(pair: &Pair) {
    let spec = json!({"group": GROUP, "version": "v1", "insecureSkipTLSVerify": true,
        "groupPriorityMinimum": 100, "versionPriority": 100,
        "service": {"name": "nobody", "namespace": "default"}});
    let service = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": format!("v1.{GROUP}")}, "spec": spec});
    let admin = pair.a.admin();
    let path = format!("{API_SERVICES}/v1.{GROUP}");
    // B may have made one for what it serves itself.
    let patch = admin.header("content-type", "application/merge-patch+json");
    eventually("the APIService is there", LONGER, async || {
        let made = admin
            .request("POST", API_SERVICES, service.to_string())
            .await;
        let changed = patch.request("PATCH", &path, service.to_string()).await;
        match (made.code(), changed.code()) {
            (201, _) | (_, 200) => Ok(()),
            _ => Err(format!("{} {}", made.text(), changed.text())),
        }
    })
    .await;
    for proxy in [&pair.proxy_a, &pair.proxy_b] {
        eventually("the proxies know it", LONGER, async || {
            !proxy.statusz().await["custom"]["aggregated"][0].is_null()
        })
        .await;
    }
}

/// The built-in resource is B's again, and A has nothing in its place.
async fn remove_api_service(pair: &Pair) {
    let (a, b) = (pair.a.admin(), pair.b.admin());
    let path = format!("{API_SERVICES}/v1.{GROUP}");
    assert_eq!(a.request("DELETE", &path, "").await.code(), 200);
    eventually("it is gone everywhere", LONGER, async || {
        let codes = (a.get(DOCUMENT).await.code(), b.get(LEASES).await.code());
        let mut gone = codes == (404, 200);
        for proxy in [&pair.proxy_a, &pair.proxy_b] {
            gone &= proxy.statusz().await["custom"]["aggregated"][0].is_null();
        }
        gone
    })
    .await;
    until_b_is_listed(pair).await;
}

async fn delete_definition(pair: &Pair, plural: &str) {
    let path = format!("{DEFINITIONS}/{plural}.{GROUP}");
    assert_eq!(
        pair.a.admin().request("DELETE", &path, "").await.code(),
        200
    );
    eventually("the proxy knows that it is deleted", LONGER, async || {
        let known = &pair.proxy_a.statusz().await["custom"]["definitions"][GROUP];
        !known.to_string().contains(plural)
    })
    .await;
}

fn kill_b(pair: &mut Pair) {
    pair.b.kill();
    pair.proxy_b.kill();
}

async fn start_b(pair: &mut Pair) {
    pair.b.start_again();
    pair.b.wait_ready().await;
    pair.proxy_b.start_again().await;
    eventually("B is a target again", LONGER, async || {
        pair.proxy_a.statusz().await["peers"][0]["target"] == true
    })
    .await;
}

/// A's proxy starts again. What it does not know yet it does not pass on.
async fn restart_a(pair: &mut Pair) {
    pair.proxy_a.terminate().await;
    let client = pair.admin();
    let refused = async {
        loop {
            for path in [LEASES, DOCUMENT] {
                // Nobody listens at first.
                if let Ok(answer) = client.try_get(path).await {
                    assert_eq!(answer.code(), 503, "{path}: {}", answer.text());
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = refused => {}
        () = pair.proxy_a.start_again() => {}
    }
    keeps_refusing(pair).await;
}

/// What only B serves is there through A's proxy, with its objects and its document. On a busy machine B may need longer
/// for the document than clients are to wait; then it is refused, and nothing else is ever there in its place.
async fn serves_the_built_in_one(pair: &Pair, client: &Client) -> Result<(), String> {
    let (listed, document) = (client.get(LEASES).await, client.get(DOCUMENT).await);
    if listed.code() == 503 {
        assert_refused(&listed, "");
    }
    for answer in [&listed, &document] {
        if answer.code() == 503 {
            return Err(answer.text());
        }
        assert_eq!(answer.code(), 200, "{}", answer.text());
    }
    let items = listed.json()["items"].take();
    let mut items = items.as_array().unwrap().iter();
    assert!(
        items.any(|item| item["metadata"]["name"] == "one"),
        "{}",
        listed.text()
    );
    let document = document.json();
    assert!(is_the_built_in_one(&document), "{document}");
    let listed = b_is_listed(pair).await;
    listed.then_some(()).ok_or("B is not listed".to_owned())
}

/// B is gone: unreachable is not gone.
async fn keeps_refusing(pair: &Pair) {
    let client = pair.admin();
    holds("it is refused", SOME_READS, async || {
        let answer = client.get(LEASES).await;
        assert_refused(&answer, "");
        let document = client.get(DOCUMENT).await;
        let head = client.request("HEAD", DOCUMENT, "").await;
        assert_eq!(head.code(), document.code(), "{}", document.text());
        document.code() == 503 && !document.headers.contains_key("retry-after")
    })
    .await;
}

/// Whether this list of resources has the built-in resource, as a CRD cannot describe it, and nothing else of its name.
fn is_the_built_in_one(document: &Value) -> bool {
    let of_name = |it: &&Value| it["name"].as_str().unwrap().starts_with("leases");
    let mut found = document["resources"].as_array().unwrap().iter();
    let found: Vec<_> = found.by_ref().filter(of_name).collect();
    matches!(*found, [it] if it["kind"] == "Lease" && it["namespaced"] == true && it["shortNames"].is_null())
}

/// B dies, and is gone at the end.
async fn a_crd_changes_nothing(pair: &mut Pair, version: &str) {
    define(pair, version, "leases").await;
    let client = pair.admin();
    let end = Instant::now() + SOME_READS;
    eventually("B serves it all the time", LONGER, async || {
        serves_the_built_in_one(pair, &client).await?;
        (Instant::now() >= end)
            .then_some(())
            .ok_or("for some reads".to_owned())
    })
    .await;
    if version == "v1" {
        discovery_lists_the_built_in_one(pair).await;
    }
    kill_b(pair);
    eventually("B is gone", LONGER, async || {
        if client.get(DOCUMENT).await.code() == 200 {
            return Err("its document is there".to_owned());
        }
        let answer = client.get(LEASES).await;
        let status = pair.proxy_a.statusz().await;
        match answer.code() {
            200 => Err(format!(
                "{} {} {}",
                answer.text(),
                status["peers"],
                status["local"]
            )),
            _ => Ok(()),
        }
    })
    .await;
    keeps_refusing(pair).await;
    restart_a(pair).await;
    delete_definition(pair, "leases").await;
    keeps_refusing(pair).await;
}

#[tokio::test]
async fn nothing_that_is_named_like_a_built_in_resource_takes_its_place() {
    // Later ones: untried, and from 1.26 on they need the group themselves.
    if kube::lacks(&[Need::Before(21)]) {
        return;
    }
    let mut pair = pair().await;
    an_api_service_makes_no_404_while_a_proxy_restarts(&mut pair).await;
    remove_api_service(&pair).await;
    // A serves the CRD's resource, which has no objects. B serves the built-in one under the same name.
    a_crd_changes_nothing(&mut pair, "v1").await;
    start_b(&mut pair).await;
    a_crd_changes_nothing(&mut pair, "v9").await;
}

/// In place of the CRD. What is nobody's built-in resource stays in the same document.
async fn discovery_lists_the_built_in_one(pair: &Pair) {
    define(pair, "v1", "gadgets").await;
    let own = pair.a.admin().get(DOCUMENT).await.json();
    assert!(!is_the_built_in_one(&own), "A has the CRD's: {own}");
    let pki = &pair.ground.pki;
    let client = pair.admin();
    let protobuf = client.header("accept", PROTOBUF);
    eventually("both are listed", LONGER, async || {
        let json = client.get(DOCUMENT).await.json();
        let list = protobuf.get(DOCUMENT).await;
        assert_eq!(list.header("content-type"), PROTOBUF);
        let of_json: Vec<_> = json["resources"]
            .as_array()
            .unwrap()
            .iter()
            .map(described)
            .collect();
        assert_eq!(of_protobuf(&list.body), of_json);
        let gadgets = ["gadgets", "gadgets/status"]
            .map(|name| (name.to_owned(), "Custom-gadgets".to_owned(), false));
        let both = is_the_built_in_one(&json) && gadgets.iter().all(|it| of_json.contains(it));
        if both { Ok(()) } else { Err(json.to_string()) }
    })
    .await;
    let kubectl = Kubectl::new(pair.proxy_a.addr(), pki, pair.ground.dir.path()).cert(pki, "admin");
    let found = kubectl
        .run(&["get", "leases", "-n", "default", "-o", "name"])
        .await;
    assert!(found.contains("lease.coordination.k8s.io/one"), "{found}");
    kubectl.run(&["get", "gadgets"]).await;
    delete_definition(pair, "gadgets").await;
}

/// Name, kind and scope.
fn described(resource: &Value) -> (String, String, bool) {
    let text = |field: &str| resource[field].as_str().unwrap().to_owned();
    (text("name"), text("kind"), resource["namespaced"] == true)
}

fn of_protobuf(body: &[u8]) -> Vec<(String, String, bool)> {
    let raw = Unknown::decode(&body[4..]).unwrap().raw.unwrap();
    let list = APIResourceList::decode(&*raw).unwrap();
    let resources = list.resources.iter();
    let described =
        |it: &APIResource| (it.name().to_owned(), it.kind().to_owned(), it.namespaced());
    resources.map(described).collect()
}

/// An APIService takes B's group version, though its server does not exist. B's proxy starts again meanwhile, and A's
/// proxy knows of B only what that reads then.
async fn an_api_service_makes_no_404_while_a_proxy_restarts(pair: &mut Pair) {
    aggregate(pair).await;
    let client = pair.admin();
    let no_404 = async || {
        for path in [LEASES, DOCUMENT] {
            let answer = client.get(path).await;
            assert_ne!(answer.code(), 404, "{path}: {}", answer.text());
        }
    };
    let watched = async {
        loop {
            no_404().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let restart = async {
        pair.proxy_b.terminate().await;
        pair.proxy_b.start_again().await;
    };
    tokio::select! {
        () = watched => {}
        () = restart => {}
    }
    holds("nothing is denied", SOME_READS, async || {
        no_404().await;
        true
    })
    .await;
}
