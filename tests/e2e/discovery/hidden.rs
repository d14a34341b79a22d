//! Merged discovery lists what the local apiserver serves, even if the apiserver's own lists of groups lack it.

use std::io::Read as _;
use std::time::Duration;

use flate2::read::GzDecoder;
use serde_json::Value;

use crate::discovery::documents::{BETA, INITIALIZED, V2, groups};
use testkit::client::Client;
use testkit::cluster::{Ground, LONG, assert_refused};
use testkit::double::{Double, Fault, Preset, ServedResource, v1_20, v1_36};
use testkit::proxy::{Proxy, Until};
use testkit::registry::Registry;
use testkit::wait::{eventually, holds};

/// Longer than several reads of discovery, with the interval of [`proxy`].
const A_WHILE: Duration = Duration::from_secs(2);

/// B serves everything. A serves no apps. Its lists lack batch and the version v1 of autoscaling.
struct Hiding {
    a: Double,
    proxy_a: Proxy,
    _b: Double,
    _proxy_b: Proxy,
    ground: Ground,
}

impl Hiding {
    async fn new(preset: Preset) -> Self {
        let ground = Ground::new().await;
        let less = preset.clone().without_group("apps");
        let (a, b) = tokio::join!(ground.double(less), ground.double(preset));
        hide(&a);
        let (proxy_a, proxy_b) = tokio::join!(proxy(&ground, "a", &a), proxy(&ground, "b", &b));
        let hiding = Self {
            a,
            proxy_a,
            _b: b,
            _proxy_b: proxy_b,
            ground,
        };
        eventually("A's proxy adds what B has", LONG, async || {
            let names = groups(&hiding.admin().get("/apis").await.json());
            names.contains(&"apps".to_owned())
        })
        .await;
        hiding
    }

    /// The administrator at A's proxy.
    fn admin(&self) -> Client {
        admin(&self.proxy_a, &self.ground)
    }

    /// The administrator at A itself.
    fn direct(&self) -> Client {
        direct(&self.a, &self.ground)
    }

    /// A peer that rerouted a request of the administrator to A's proxy.
    fn peer(&self) -> Client {
        let peer = self.proxy_a.client(&self.ground.pki);
        peer.cert("front-proxy-client")
            .header("x-kubernetes-peer-proxied", "true")
            .header("x-remote-user", "kubernetes-admin")
            .header("x-remote-group", "system:masters")
    }
}

fn hide(double: &Double) {
    double.hide_from_group_list("batch");
    double.hide_from_group_list("autoscaling/v1");
}

async fn proxy(ground: &Ground, id: &str, double: &Double) -> Proxy {
    let options = ground.proxy(id, double.addr());
    let often = options.set("apiServer.discoveryInterval", "300ms");
    let proxy = Proxy::start(often.until(Until::Ready)).await;
    eventually("it knows what its apiserver serves", LONG, async || {
        proxy.statusz().await["discovery"]["current"] == true
    })
    .await;
    proxy
}

fn admin(proxy: &Proxy, ground: &Ground) -> Client {
    proxy.client(&ground.pki).cert("admin")
}

fn direct(double: &Double, ground: &Ground) -> Client {
    Client::new(double.addr(), &ground.pki).cert("admin")
}

/// Versions of a group of a document of a list of groups, in either form.
fn versions(list: &Value, name: &str) -> Vec<String> {
    let index = groups(list).iter().position(|group| group == name);
    let index = index.unwrap_or_else(|| panic!("no {name}: {list}"));
    let all = list["groups"].as_array().or(list["items"].as_array());
    let versions = all.unwrap()[index]["versions"].as_array().unwrap().iter();
    let names = versions.map(|version| version["version"].as_str().unwrap());
    names.map(str::to_owned).collect()
}

/// The double's order of the group's versions, the hidden one last.
fn autoscaling(preset: &Preset) -> Vec<&str> {
    match preset.aggregated.is_empty() {
        true => vec!["v2beta1", "v2beta2", "v1"],
        false => vec!["v2", "v1"],
    }
}

#[tokio::test]
async fn lists_name_what_the_apiserver_serves_and_then_what_peers_have() {
    for preset in [v1_20(), v1_36()] {
        let hiding = Hiding::new(preset.clone()).await;
        let local = groups(&hiding.direct().get("/apis").await.json());
        assert!(!local.contains(&"batch".to_owned()), "{local:?}");

        let merged = hiding.admin().get("/apis").await.json();
        let names = groups(&merged);
        assert_eq!(names[..local.len()], local, "listed groups come first");
        assert_eq!(names[local.len()..], ["batch", "apps"]);
        assert_eq!(versions(&merged, "autoscaling"), autoscaling(&preset));
        for group in merged["groups"].as_array().unwrap() {
            let path = format!("/apis/{}", group["name"].as_str().unwrap());
            let whole = hiding.admin().get(&path).await.json();
            assert_eq!(whole["versions"], group["versions"], "{path}");
            assert_eq!(whole["preferredVersion"], group["preferredVersion"]);
        }
        let batch = hiding.admin().get("/apis/batch/v1").await;
        assert_eq!(batch.body, hiding.direct().get("/apis/batch/v1").await.body);

        // Of peers nothing is added for who asks for one server, and for peers.
        let for_one = hiding
            .admin()
            .header("accept", "application/json;profile=nopeer");
        for client in [for_one, hiding.peer()] {
            let list = client.get("/apis").await.json();
            assert_eq!(groups(&list)[..local.len()], local);
            assert_eq!(groups(&list)[local.len()..], ["batch"]);
            assert_eq!(versions(&list, "autoscaling"), autoscaling(&preset));
            let group = client.get("/apis/autoscaling").await.json();
            let known = group["versions"].as_array().unwrap().len();
            assert_eq!(known, autoscaling(&preset).len(), "{group}");
        }
        assert_eq!(hiding.peer().get("/apis/apps").await.code(), 404);
        // Both came in the same form: the one is not given to the other.
        assert!(
            hiding
                .admin()
                .get("/apis")
                .await
                .text()
                .contains("\"apps\"")
        );
        assert!(!hiding.peer().get("/apis").await.text().contains("\"apps\""));
    }
}

#[tokio::test]
async fn what_is_hidden_at_any_moment_is_listed_and_what_is_not_passes_as_it_is() {
    let ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let proxy = proxy(&ground, "a", &double).await;
    let (client, direct) = (admin(&proxy, &ground), direct(&double, &ground));
    for path in ["/apis", "/apis/autoscaling", "/apis/batch"] {
        let (through, local) = (client.get(path).await, direct.get(path).await);
        assert_eq!(through.body, local.body, "{path}");
        assert_eq!(through.header("content-type"), local.header("content-type"));
    }
    let before = client.get("/apis").await.json();
    for _ in 0..20 {
        // Nothing is read in between.
        hide(&double);
        let list = client.get("/apis").await.json();
        assert_eq!(versions(&list, "batch"), versions(&before, "batch"));
        assert!(versions(&list, "autoscaling").contains(&"v1".to_owned()));
        let group = client.get("/apis/autoscaling").await;
        assert!(
            group.text().contains("\"autoscaling/v1\""),
            "{}",
            group.text()
        );
        double.hide_nothing();
        assert_eq!(
            client.get("/apis").await.body,
            direct.get("/apis").await.body
        );
    }
}

#[tokio::test]
async fn aggregated_discovery_that_lacks_nothing_is_left_alone() {
    let ground = Ground::new().await;
    let double = ground.double(v1_36()).await;
    hide(&double);
    let proxy = proxy(&ground, "a", &double).await;
    let client = admin(&proxy, &ground);
    double.take_requests();
    for accept in [
        V2.to_owned(),
        format!("{V2};profile=nopeer,application/json"),
    ] {
        let client = client
            .header("accept", &accept)
            .header("accept-encoding", "br");
        let through = client.get("/apis").await;
        let local = direct(&double, &ground)
            .header("accept", &accept)
            .get("/apis")
            .await;
        assert_eq!(through.body, local.body);
        assert_eq!(through.header("etag"), local.header("etag"));
    }
    let asked = double.requests();
    let mut asked = asked
        .iter()
        .filter(|asked| asked.header("accept-encoding") == "br");
    assert_eq!(asked.by_ref().count(), 2, "the request passed as it was");

    // An older client: this form is refused, and the next one is legacy.
    let old = client.header("accept", &format!("{BETA},application/json"));
    let list = old.get("/apis").await.json();
    assert_eq!(list["kind"], "APIGroupList");
    assert!(groups(&list).contains(&"batch".to_owned()));
}

#[tokio::test]
async fn aggregated_discovery_that_lacks_something_is_completed() {
    let ground = Ground::new().await;
    let double = ground.double(v1_36()).await;
    // Long enough to be compressed.
    for number in 0..700 {
        let (resource, kind) = (format!("things{number}"), format!("Thing{number}"));
        double.add_resource(ServedResource::new("long.example", "v1", &resource, &kind));
    }
    hide(&double);
    double.hide_from_aggregated();
    let proxy = proxy(&ground, "a", &double).await;
    let client = admin(&proxy, &ground).header("accept", V2);
    let direct = direct(&double, &ground).header("accept", V2);
    let local = direct.get("/apis").await;
    for accept in [
        V2.to_owned(),
        format!("{V2};profile=nopeer,application/json"),
    ] {
        let client = admin(&proxy, &ground).header("accept", &accept);
        let whole = client.get("/apis").await;
        assert_eq!(whole.header("content-type"), V2);
        assert!(whole.header("vary").contains("Accept"));
        let (names, before) = (groups(&whole.json()), groups(&local.json()));
        assert_eq!(names[..before.len()], before);
        assert_eq!(names[before.len()..], ["batch"]);
        assert_eq!(versions(&whole.json(), "autoscaling"), ["v2", "v1"]);
        let batch = &whole.json()["items"][before.len()]["versions"][0];
        assert_eq!(
            (&batch["version"], &batch["freshness"]),
            (&"v1".into(), &"Current".into())
        );
        let names: Vec<_> = batch["resources"].as_array().unwrap().iter().collect();
        assert_eq!(names.len(), 2, "{batch}");

        assert_ne!(whole.header("etag"), local.header("etag"));
        let known = client.header("if-none-match", whole.header("etag"));
        assert_eq!(known.get("/apis").await.code(), 304);
        let packed = client.header("accept-encoding", "gzip").get("/apis").await;
        assert_eq!(packed.header("content-encoding"), "gzip");
        let mut plain = Vec::new();
        GzDecoder::new(&*packed.body)
            .read_to_end(&mut plain)
            .unwrap();
        assert!(plain == whole.body && packed.body.len() < whole.body.len() / 4);
    }
    let jobs = client.get("/apis/batch/v1/jobs").await;
    assert_eq!(jobs.code(), 200, "{}", jobs.text());

    double.hide_nothing();
    eventually("it is the local document again", LONG, async || {
        let (through, local) = (client.get("/apis").await, direct.get("/apis").await);
        through.body == local.body && through.header("etag") == local.header("etag")
    })
    .await;
}

#[tokio::test]
async fn custom_resources_and_aggregated_apis_do_not_come_back() {
    let ground = Ground::new().await;
    let registry = Registry::new(ground.etcd.client().await, "/registry");
    let double = ground.double(v1_20()).await;
    let proxy = proxy(&ground, "a", &double).await;
    let client = admin(&proxy, &ground);
    let lists = async |group: &str| {
        let list = client.get("/apis").await.json();
        groups(&list).contains(&group.to_owned())
    };
    let custom = |group| ServedResource::custom(group, "v1", "widgets", "Widget");
    let api_service = registry.api_service("v1.metrics.example");
    let by_service = r#"{"kind":"APIService","apiVersion":"apiregistration.k8s.io/v1",
        "spec":{"service":{"name":"metrics","namespace":"default"}}}"#;
    registry.put_definition("widgets.crd.example").await;
    registry.put(&api_service, by_service).await;
    eventually("both are known", LONG, async || {
        let custom = &proxy.statusz().await["custom"];
        custom["definitions"]["crd.example"].is_array() && !custom["aggregated"][0].is_null()
    })
    .await;
    for group in ["crd.example", "metrics.example"] {
        double.add_resource(custom(group));
        eventually("it is listed as the apiserver lists it", LONG, async || {
            lists(group).await
        })
        .await;
    }
    // An aggregated API whose server is gone, and a CRD that is not served any more, or not yet.
    for group in ["crd.example", "metrics.example"] {
        double.hide_from_group_list(group);
        holds("it is not added", A_WHILE, async || !lists(group).await).await;
    }
    double.hide_nothing();
    // They are deleted, and the apiserver does not serve them any more.
    double.remove_group("crd.example");
    double.remove_group("metrics.example");
    registry
        .delete(&registry.definition("widgets.crd.example"))
        .await;
    registry.delete(&api_service).await;
    holds("they stay away", A_WHILE, async || {
        !lists("crd.example").await && !lists("metrics.example").await
    })
    .await;
}

#[tokio::test]
async fn a_peer_is_refused_lists_until_it_is_known_what_they_lack() {
    let mut hiding = Hiding::new(v1_20()).await;
    assert_eq!(hiding.peer().get("/apis").await.code(), 200);
    // What the next process serves cannot be read.
    let unread = Some(Fault::Status(500, None));
    hiding.a.set_fault("/apis/events.k8s.io/v1", unread);
    hiding.a.restart().await;
    eventually("A is seen to start", LONG, async || {
        hiding.proxy_a.metric(INITIALIZED, &[]).await == 0.0
    })
    .await;
    hiding.a.set_ready(true);
    eventually("a peer is told to ask another", LONG, async || {
        hiding.peer().get("/apis").await.code() == 503
    })
    .await;
    holds(
        "it is never given what may lack something",
        A_WHILE,
        async || {
            let list = hiding.peer().get("/apis").await;
            let group = hiding.peer().get("/apis/autoscaling").await;
            list.code() == 503 && group.code() == 503
        },
    )
    .await;
    assert_refused(&hiding.peer().get("/apis").await, "starting");
    // Clients get B's list.
    let list = groups(&hiding.admin().get("/apis").await.json());
    for name in ["apps", "batch"] {
        assert!(list.contains(&name.to_owned()), "{list:?}");
    }
    hiding.a.set_fault("/apis/events.k8s.io/v1", None);
    eventually("it is known again", LONG, async || {
        hiding
            .peer()
            .get("/apis")
            .await
            .text()
            .contains("\"batch\"")
    })
    .await;
}
