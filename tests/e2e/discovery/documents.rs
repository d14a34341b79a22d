//! Discovery documents with the resources of peers (KEP-4020): A lacks what B has.

use serde_json::Value;

use testkit::client::Client;
use testkit::cluster::{Ground, LONG};
use testkit::double::{Double, Phase, Preset, v1_20, v1_26, v1_36};
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::wait::eventually;

pub const INITIALIZED: &str = "kube_interop_proxy_apiserver_initialized";
pub const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
pub const BETA: &str = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// A lacks a group, a resource of a version that both serve, and a subresource of a resource that both serve.
pub struct Mixed {
    pub a: Double,
    pub b: Double,
    pub proxy_a: Proxy,
    pub proxy_b: Proxy,
    pub ground: Ground,
}

impl Mixed {
    pub async fn new(preset: Preset) -> Self {
        Self::with(preset, |options| options).await
    }

    pub async fn with(preset: Preset, change: impl Fn(ProxyOptions) -> ProxyOptions) -> Self {
        let ground = Ground::new().await;
        let less = preset
            .clone()
            .without_group("autoscaling")
            .without_resource("apps", "controllerrevisions")
            .without_subresource("", "pods", "eviction");
        let (a, b) = tokio::join!(ground.double(less), ground.double(preset));
        let options = |id, double: &Double| {
            let options = change(ground.proxy(id, double.addr()));
            // They ask what they need at their own times; the tests count what clients ask.
            options
                .set("apiServer.discoveryInterval", "300ms")
                .until(Until::Ready)
        };
        let (proxy_a, proxy_b) = tokio::join!(
            Proxy::start(options("a", &a)),
            Proxy::start(options("b", &b)),
        );
        Self {
            a,
            b,
            proxy_a,
            proxy_b,
            ground,
        }
    }

    /// With documents of B known at A's proxy.
    pub async fn merged(preset: Preset) -> Self {
        let mixed = Self::new(preset).await;
        mixed.until_merged().await;
        mixed
    }

    pub async fn until_merged(&self) {
        let admin = self.admin();
        eventually("A's proxy adds what B's documents say", LONG, async || {
            let document = admin.get("/apis/apps/v1").await.json();
            let resources = document["resources"].as_array().unwrap().iter();
            // By name it is listed before that.
            resources
                .filter(|resource| resource["kind"] != "")
                .any(|resource| resource["name"] == "controllerrevisions")
        })
        .await;
    }

    /// A's apiserver begins again and is not ready until it is told so; its proxy has noticed.
    pub async fn restart_a_without_end(&mut self) {
        self.a.set_phase(Phase::NotReady);
        self.a.restart().await;
        eventually("A is seen to start", LONG, async || {
            self.proxy_a.metric(INITIALIZED, &[]).await == 0.0
        })
        .await;
        self.a.take_requests();
    }

    /// The administrator at A's proxy.
    pub fn admin(&self) -> Client {
        self.proxy_a.client(&self.ground.pki).cert("admin")
    }

    /// The administrator at A itself.
    pub fn direct(&self) -> Client {
        Client::new(self.a.addr(), &self.ground.pki).cert("admin")
    }
}

/// Names of groups of `/apis`, in either form, in order.
pub fn groups(document: &Value) -> Vec<String> {
    let (list, name) = match document["kind"].as_str() {
        Some("APIGroupList") => ("groups", "/name"),
        _ => ("items", "/metadata/name"),
    };
    let groups = document[list].as_array().expect("groups").iter();
    groups
        .map(|group| {
            group
                .pointer(name)
                .and_then(Value::as_str)
                .unwrap_or("")
                .to_owned()
        })
        .collect()
}

#[tokio::test]
async fn aggregated_discovery_has_what_either_has_in_the_form_that_is_asked_for() {
    for (preset, accept, form) in [
        (v1_36(), V2.to_owned(), V2),
        (v1_36(), format!("{V2},{BETA},application/json"), V2),
        (v1_36(), format!("{BETA},{V2},application/json"), V2),
        (v1_26(), format!("{V2},{BETA},application/json"), BETA),
        (v1_26(), format!("{BETA},application/json"), BETA),
    ] {
        let mixed = Mixed::merged(preset).await;
        let client = mixed.admin().header("accept", &accept);
        let direct = mixed.direct().header("accept", &accept);

        let (merged, local) = (client.get("/apis").await, direct.get("/apis").await);
        assert_eq!(merged.header("content-type"), form, "{accept}");
        assert_eq!(merged.header("vary"), "Accept");
        assert_ne!(merged.header("etag"), local.header("etag"));
        assert_eq!(
            merged.header("content-length"),
            merged.body.len().to_string()
        );
        assert_eq!(merged.json()["apiVersion"], local.json()["apiVersion"]);
        let (names, before) = (groups(&merged.json()), groups(&local.json()));
        assert_eq!(names[..before.len()], before, "local groups come first");
        assert_eq!(names[before.len()..], ["autoscaling"]);
        let added = merged.json()["items"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()
            .clone();
        assert_eq!(added["versions"][0]["freshness"], "Current");
        assert_eq!(
            added["versions"][0]["resources"][0]["resource"],
            "horizontalpodautoscalers"
        );

        let core = client.get("/api").await;
        assert!(core.text().contains("\"eviction\""), "{}", core.text());
        assert!(!direct.get("/api").await.text().contains("\"eviction\""));
    }
}

#[tokio::test]
async fn legacy_documents_have_what_either_has() {
    for preset in [v1_20(), v1_36()] {
        let mixed = Mixed::merged(preset).await;
        let (client, direct) = (mixed.admin(), mixed.direct());

        let (merged, local) = (client.get("/apis").await, direct.get("/apis").await);
        assert_eq!(merged.header("content-type"), "application/json");
        assert!(
            !merged.headers.contains_key("etag"),
            "legacy documents have none"
        );
        let (names, before) = (groups(&merged.json()), groups(&local.json()));
        assert_eq!(names[..before.len()], before);
        assert_eq!(names[before.len()..], ["autoscaling"]);

        assert_eq!(direct.get("/apis/autoscaling").await.code(), 404);
        for path in ["/apis/autoscaling", "/apis/autoscaling/"] {
            let group = client.get(path).await;
            assert_eq!(group.code(), 200, "{path}: {}", group.text());
            assert_eq!(group.header("content-type"), "application/json");
            assert_eq!(group.json()["kind"], "APIGroup");
            assert_eq!(group.json()["name"], "autoscaling");
        }

        let apps = client.get("/apis/apps/v1").await.json();
        let names = |document: &Value| -> Vec<String> {
            let resources = document["resources"].as_array().unwrap().iter();
            resources
                .map(|resource| resource["name"].as_str().unwrap().to_owned())
                .collect()
        };
        let before = names(&direct.get("/apis/apps/v1").await.json());
        assert!(names(&apps).contains(&"controllerrevisions".to_owned()));
        assert!(before.iter().all(|name| names(&apps).contains(name)));
        assert!(names(&client.get("/api/v1").await.json()).contains(&"pods/eviction".to_owned()));
        // There is nothing to add to this one.
        let versions = [client.get("/api").await, direct.get("/api").await];
        assert_eq!(versions[0].body, versions[1].body);
    }
}

#[tokio::test]
async fn a_version_that_only_the_peer_has_comes_from_it() {
    for preset in [v1_20(), v1_36()] {
        let mixed = Mixed::merged(preset).await;
        mixed.b.take_requests();
        let answer = mixed.admin().get("/apis/autoscaling/v1").await;
        assert_eq!(answer.code(), 200, "{}", answer.text());
        assert_eq!(answer.json()["groupVersion"], "autoscaling/v1");
        let asked = mixed.b.requests();
        let asked = asked
            .iter()
            .find(|asked| asked.path == "/apis/autoscaling/v1" && asked.user == "kubernetes-admin");
        let asked = asked.expect("B was asked as the caller");
        assert_eq!(asked.header_values("x-kubernetes-peer-proxied"), ["true"]);
        let labels = [
            ("code", "200"),
            ("group", "autoscaling"),
            ("version", "v1"),
            ("resource", ""),
        ];
        let (rerouted, once) = (testkit::cluster::REROUTED, |count| count == 1.0);
        mixed.proxy_a.until_metric(rerouted, &labels, once).await;
        assert_eq!(mixed.admin().get("/apis/autoscaling/v9").await.code(), 404);
        assert_eq!(mixed.admin().get("/apis/nobodys/v1").await.code(), 404);
        assert_eq!(mixed.admin().get("/apis/nobodys").await.code(), 404);
    }
}

#[tokio::test]
async fn a_client_that_has_a_document_is_not_sent_it_again() {
    let mixed = Mixed::merged(v1_36()).await;
    let client = mixed.admin().header("accept", V2);
    let first = client.get("/apis").await;
    let etag = first.header("etag").to_owned();
    assert_eq!(etag.len(), 130, "as long as kube-apiserver's: {etag}");

    mixed.a.take_requests();
    let again = client.header("if-none-match", &etag).get("/apis").await;
    assert_eq!((again.code(), again.body.len()), (304, 0));
    assert_eq!(
        (again.header("etag"), again.header("vary")),
        (&*etag, "Accept")
    );
    assert!(!again.headers.contains_key("content-type"));
    // The apiserver confirmed its own document: nothing was sent or put together.
    let local = mixed
        .direct()
        .header("accept", V2)
        .get("/apis")
        .await
        .header("etag")
        .to_owned();
    let asked = mixed.a.requests();
    let asked = asked
        .iter()
        .find(|asked| asked.path == "/apis" && asked.headers["accept"] == V2)
        .unwrap();
    assert_eq!(asked.header_values("if-none-match"), [&*local]);

    let other = client.header("if-none-match", &local).get("/apis").await;
    assert_eq!(
        (other.code(), other.body),
        (200, first.body),
        "the local ETag is not ours"
    );

    mixed.a.add_resource(testkit::double::ServedResource::new(
        "new.example",
        "v1",
        "things",
        "Thing",
    ));
    let changed = client.header("if-none-match", &etag).get("/apis").await;
    assert_eq!(changed.code(), 200);
    assert!(changed.text().contains("new.example") && changed.text().contains("autoscaling"));
    assert_ne!(changed.header("etag"), etag);
}

#[tokio::test]
async fn head_has_the_header_and_no_body() {
    let mixed = Mixed::merged(v1_20()).await;
    for client in [mixed.admin().http1(), mixed.admin().http2()] {
        for (path, code) in [
            ("/apis", 200),
            ("/apis/apps", 200),
            ("/apis/autoscaling", 200),
            ("/apis/nobodys", 404),
            ("/openapi/v2", 200),
            ("/api/v1", 405),
        ] {
            let answer = client.request("HEAD", path, "").await;
            assert_eq!((answer.code(), answer.body.len()), (code, 0), "{path}");
            assert_eq!(
                client.get("/version").await.code(),
                200,
                "the connection goes on"
            );
        }
    }
}

#[tokio::test]
async fn without_peers_contents_it_is_the_local_document() {
    let mixed = Mixed::merged(v1_36()).await;
    for accept in [
        format!("{V2};profile=nopeer,application/json"),
        format!("{V2};profile=nopeer,{V2}"),
    ] {
        for path in ["/api", "/apis"] {
            let merged = mixed.admin().header("accept", V2).get(path).await;
            let client = mixed.admin().header("accept", &accept);
            let (through, direct) = (
                client.get(path).await,
                mixed.direct().header("accept", &accept).get(path).await,
            );
            assert_eq!(through.body, direct.body, "{accept} {path}");
            assert_ne!(through.body, merged.body);
            assert_eq!(through.header("etag"), direct.header("etag"));
            let etag = through.header("etag").to_owned();
            assert_eq!(
                client.header("if-none-match", &etag).get(path).await.code(),
                304
            );
        }
    }
    let legacy = mixed
        .admin()
        .header("accept", "application/json;profile=nopeer");
    assert!(!legacy.get("/apis").await.text().contains("autoscaling"));
}

#[tokio::test]
async fn open_api_documents_have_what_either_has() {
    let mixed = Mixed::merged(v1_36()).await;
    let client = mixed.admin();
    // Nobody needed B's document before: the first who does waits for it.
    let first = client.get("/openapi/v2").await;
    assert!(first.text().contains("/apis/autoscaling/v1/"));
    let json = client.get("/openapi/v2").await;
    assert_eq!(json.header("content-type"), "application/json");
    assert!(json.json()["paths"].as_object().unwrap().len() > 50);
    let etag = json.header("etag").to_owned();
    assert_eq!(
        client
            .header("if-none-match", &etag)
            .get("/openapi/v2")
            .await
            .code(),
        304
    );

    let index = client.get("/openapi/v3").await.json();
    let url = index["paths"]["apis/autoscaling/v1"]["serverRelativeURL"]
        .as_str()
        .unwrap();
    assert!(index["paths"]["apis/apps/v1"].is_object());
    let document = client.get(url).await;
    assert_eq!(document.code(), 200, "{url}: {}", document.text());
    assert!(document.text().contains("/apis/autoscaling/v1/"));
    assert_eq!(client.get("/openapi/v3/apis/nobodys/v1").await.code(), 404);
}

/// Whether a resource of a document can be listed.
pub fn is_listable(resource: &Value) -> bool {
    let verbs = resource["verbs"].as_array().into_iter().flatten();
    verbs.into_iter().any(|verb| verb == "list")
}
