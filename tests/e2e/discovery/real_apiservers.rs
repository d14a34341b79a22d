//! Merged discovery with real kube-apiservers v1.20.2: A without the autoscaling group, B with it.

use std::io::Read as _;

use flate2::read::GzDecoder;
use k8s_pb::apimachinery::pkg::apis::meta::v1::{APIGroupList, APIResourceList};
use k8s_pb::apimachinery::pkg::runtime::Unknown;
use prost::Message;

use crate::discovery::documents::{BETA, V2, groups};
use crate::discovery::openapi::{
    what_one_server_lacks_is_added_from_the_other, what_v1_20_answers,
};
use crate::discovery::peer_discovery::real_apiservers_tell_each_others_proxies;
use crate::discovery::walk::{legacy_lists, served};
use crate::routing::real_apiservers::LONGER;
use testkit::cluster::{REROUTED, assert_refused_for_good};
use testkit::kube::{KubeApiServer, Need};
use testkit::kubectl::Kubectl;
use testkit::notes;
use testkit::pair::Pair;
use testkit::streaming::Response;
use testkit::wait::eventually;

const GROUP: &str = "/apis/autoscaling";
const VERSION: &str = "/apis/autoscaling/v1";
const OPENAPI: &str = "/openapi/v2";
const OPENAPI_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

#[tokio::test]
async fn discovery_before_real_apiservers() {
    let pair = Pair::options().both(|options| options.betas_of("autoscaling"));
    let mut pair = pair.without_group_at_a("autoscaling").start().await;
    real_apiservers_tell_each_others_proxies(&pair).await;
    let admin = pair.admin();
    eventually("A's proxy adds what B has", LONGER, async || {
        admin.get(GROUP).await.code() == 200
    })
    .await;
    every_client_finds_the_group(&pair).await;
    // Nobody has asked for OpenAPI before.
    kubectl_can_use_it(&pair).await;
    let lists = legacy_lists(&pair.admin()).await;
    assert!(
        lists.contains("/apis/autoscaling/v1/horizontalpodautoscalers"),
        "{lists:?}"
    );
    for path in &lists {
        let answer = pair.admin().get(path).await;
        assert_eq!(answer.code(), 200, "{path}: {}", answer.text());
    }
    what_one_server_lacks_is_added_from_the_other(&pair.a, &pair.b).await;
    let mut servers = [&pair.b, &pair.a].into_iter();
    match servers.find(|it| it.abilities().meets(Need::Before(21))) {
        Some(server) => what_v1_20_answers(server, &pair.ground.pki).await,
        None => notes::part_skipped("neither apiserver is of 1.20"),
    }
    drop(servers);
    // Without OpenAPI v3, and with the forms that OpenAPI v2 had.
    if [&pair.a, &pair.b]
        .iter()
        .all(|it| it.abilities().meets(Need::Before(23)))
    {
        each_form_is_merged(&pair).await;
        open_api_is_merged(&pair).await;
        callers_see_what_they_may(&pair).await;
    }
    a_dead_peers_group_is_refused(&mut pair).await;
}

/// What clients of 1.20 to 1.36 send; they get the form that A itself would give them.
async fn every_client_finds_the_group(pair: &Pair) {
    for accept in [
        "application/json, */*".to_owned(),
        "application/json".to_owned(),
        format!("{BETA},application/json"),
        format!("{V2},{BETA},application/json"),
    ] {
        let client = pair.admin().header("accept", &accept);
        let direct = pair.a.admin().header("accept", &accept);
        let (merged, local) = (client.get("/apis").await, direct.get("/apis").await);
        let form = |answer: &Response| answer.header("content-type").to_owned();
        assert_eq!(
            (merged.code(), form(&merged)),
            (local.code(), form(&local)),
            "{accept}: {} / {}",
            local.text(),
            merged.text()
        );
        let (names, before) = (groups(&merged.json()), groups(&local.json()));
        assert_eq!(names[..before.len()], before);
        let added = &names[before.len()..];
        assert!(added.contains(&"autoscaling".to_owned()), "{added:?}");
        let version = |server: &KubeApiServer| server.abilities().version.clone();
        if version(&pair.a) == version(&pair.b) {
            assert_eq!(added.len(), 1, "{added:?}");
        }
        let version = served(&client, VERSION).await;
        assert_eq!(version.body, pair.b.admin().get(VERSION).await.body);
    }
    let labels = [
        ("code", "200"),
        ("group", "autoscaling"),
        ("version", "v1"),
        ("resource", ""),
    ];
    let all = |count| count >= 4.0;
    pair.proxy_a.until_metric(REROUTED, &labels, all).await;
}

async fn each_form_is_merged(pair: &Pair) {
    let yaml = pair.admin().header("accept", "application/yaml");
    let list = yaml.get("/apis").await;
    assert_eq!(list.header("content-type"), "application/yaml");
    let list: serde_json::Value = serde_yaml::from_slice(&list.body).unwrap();
    assert!(groups(&list).contains(&"autoscaling".to_owned()));

    let protobuf = pair.admin().header("accept", PROTOBUF);
    let raw = |body: &[u8]| Unknown::decode(&body[4..]).unwrap().raw.unwrap();
    let list = protobuf.get("/apis").await;
    assert_eq!(list.header("content-type"), PROTOBUF);
    let list = APIGroupList::decode(&*raw(&list.body)).unwrap();
    assert!(
        list.groups
            .iter()
            .any(|group| group.name() == "autoscaling")
    );
    let group = served(&protobuf, GROUP).await;
    assert_eq!(
        (group.code(), group.header("content-type")),
        (200, PROTOBUF)
    );
    let version = served(&protobuf, VERSION).await;
    let version = APIResourceList::decode(&*raw(&version.body)).unwrap();
    assert_eq!(version.group_version(), "autoscaling/v1");
}

async fn open_api_is_merged(pair: &Pair) {
    let json = pair.admin();
    let protobuf = json.header("accept", OPENAPI_PROTOBUF);
    let path = "/apis/autoscaling/v1/namespaces/{namespace}/horizontalpodautoscalers";
    for (client, form) in [
        (&json, "text/plain; charset=utf-8"),
        (&protobuf, "application/octet-stream"),
    ] {
        let whole = client.get(OPENAPI).await;
        assert_eq!(whole.header("content-type"), form);
        assert_eq!(whole.header("content-length"), whole.body.len().to_string());
        assert!(!whole.headers.contains_key("accept-ranges"));
        let local = pair.a.admin().header(
            "accept",
            if form.starts_with("text") {
                "*/*"
            } else {
                OPENAPI_PROTOBUF
            },
        );
        let local = local.get(OPENAPI).await;
        assert!(whole.text().contains(path), "the first is as good as any");
        assert!(whole.body.len() > local.body.len() && !local.text().contains(path));
        assert_ne!(whole.header("etag"), local.header("etag"));

        let known = client.header("if-none-match", whole.header("etag"));
        assert_eq!(known.get(OPENAPI).await.code(), 304);
        let stale = client.header("if-none-match", local.header("etag"));
        assert_eq!(stale.get(OPENAPI).await.code(), 200);

        let packed = client.header("accept-encoding", "gzip").get(OPENAPI).await;
        assert_eq!(packed.header("content-encoding"), "gzip");
        let vary: Vec<_> = packed.headers.get_all("vary").iter().collect();
        assert_eq!(vary, ["Accept-Encoding", "Accept"]);
        let mut plain = Vec::new();
        GzDecoder::new(&*packed.body)
            .read_to_end(&mut plain)
            .unwrap();
        assert!(plain == whole.body && packed.body.len() < whole.body.len() / 4);

        let part = client.header("range", "bytes=0-10").get(OPENAPI).await;
        assert_eq!((part.code(), part.body.len()), (200, whole.body.len()));
        let head = client.request("HEAD", OPENAPI, "").await;
        assert_eq!((head.code(), head.body.len()), (200, 0));
        assert_eq!(head.header("content-length"), whole.body.len().to_string());
        assert_eq!(head.header("etag"), whole.header("etag"));
    }
}

async fn callers_see_what_they_may(pair: &Pair) {
    let nobody = pair.proxy_a.client(&pair.ground.pki);
    let bob = nobody.token("tok-bob");
    for path in [
        "/api",
        "/apis",
        "/api/v1",
        "/apis/apps",
        "/apis/apps/v1",
        GROUP,
        VERSION,
        OPENAPI,
    ] {
        let refused = nobody.get(path).await;
        assert_eq!(refused.code(), 403, "{path}: {}", refused.text());
        assert!(refused.text().contains("system:anonymous"), "{path}");
        assert_eq!(
            nobody.token("tok-wrong").get(path).await.code(),
            401,
            "{path}"
        );
        served(&bob, path).await;
    }
    for path in [
        "/apis/nobodys",
        "/apis/nobodys/v1",
        "/apis/autoscaling/v9",
        "/openapi/v3",
    ] {
        let (through, direct) = (pair.admin().get(path).await, pair.a.admin().get(path).await);
        assert_eq!(through.code(), 404, "{path}");
        assert_eq!(
            through.header("content-type"),
            direct.header("content-type"),
            "{path}"
        );
    }
}

async fn kubectl_can_use_it(pair: &Pair) {
    let pki = &pair.ground.pki;
    let kubectl = Kubectl::new(pair.proxy_a.addr(), pki, pair.ground.dir.path()).cert(pki, "admin");
    // Nobody has needed OpenAPI before, and kubectl asks once.
    // A kubectl that is told of OpenAPI v3 asks for nothing else, and an apiserver before 1.24 has none to add.
    let has_v3 = |server: &KubeApiServer| server.abilities().meets(Need::Since(24));
    if has_v3(&pair.b) || !has_v3(&pair.a) {
        let explained = kubectl.run(&["explain", "hpa.spec.maxReplicas"]).await;
        assert!(explained.contains("maxReplicas"), "{explained}");
    }
    // Its discovery is fetched by the first and taken from its cache by the second.
    for _ in 0..2 {
        let resources = kubectl
            .run(&["api-resources", "--api-group=autoscaling"])
            .await;
        assert!(
            resources.contains("horizontalpodautoscalers"),
            "{resources}"
        );
    }
    kubectl.run(&["get", "hpa"]).await;
    for done in ["created", "unchanged"] {
        let applied = kubectl
            .output_with_input(&["apply", "-f", "-"], AUTOSCALER)
            .await;
        assert!(applied.success, "{}", applied.stderr);
        assert!(applied.stdout.contains(done), "{}", applied.stdout);
    }
    let wrong = AUTOSCALER.replace("maxReplicas", "maximum");
    let refused = kubectl
        .output_with_input(&["apply", "-f", "-"], &wrong)
        .await;
    // By what OpenAPI says of it; newer kubectls leave that to apiservers that can, from 1.27 on.
    let said = |why| refused.stderr.contains(why);
    let by_apiserver = pair.b.abilities().meets(Need::Since(27));
    assert!(
        said("error validating data") || by_apiserver && said("strict decoding error"),
        "{}",
        refused.stderr
    );
    let all = kubectl.run(&["get", "all"]).await;
    assert!(
        all.contains("horizontalpodautoscaler.autoscaling/applied"),
        "{all}"
    );
    kubectl.run(&["delete", "hpa", "applied"]).await;
}

const AUTOSCALER: &str = "apiVersion: autoscaling/v1
kind: HorizontalPodAutoscaler
metadata:
  name: applied
  namespace: default
spec:
  maxReplicas: 3
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: any}
";

async fn a_dead_peers_group_is_refused(pair: &mut Pair) {
    pair.b.kill();
    let admin = pair.admin();
    for path in [VERSION, VERSION] {
        let answer = admin.get(path).await;
        assert_refused_for_good(&answer, "");
    }
    eventually("B's apiserver is known to be gone", LONGER, async || {
        let version = admin.get(VERSION).await;
        version.code() == 503 && version.text().contains("can be reached")
    })
    .await;
    assert_eq!(admin.get(GROUP).await.code(), 200);
    assert!(groups(&admin.get("/apis").await.json()).contains(&"autoscaling".to_owned()));
}
