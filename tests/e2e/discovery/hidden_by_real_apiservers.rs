//! Real kube-apiservers v1.20.2 that hide what they serve: each that starts deletes the APIServices of group versions
//! that it does not know. A serves everything, B no batch, C no apps and not every version of autoscaling.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_pb::apimachinery::pkg::apis::meta::v1::APIGroupList;
use k8s_pb::apimachinery::pkg::runtime::Unknown;
use prost::Message;
use serde_json::{Value, json};

use crate::discovery::documents::groups;
use crate::discovery::walk::legacy_lists;
use crate::routing::real_apiservers::LONGER;
use testkit::client::Client;
use testkit::cluster::Ground;
use testkit::kube::{KubeApiServer, KubeOptions, Need};
use testkit::kubectl::Kubectl;
use testkit::proxy::{Proxy, Until};
use testkit::wait::{eventually, holds};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
/// Longer than several reads of discovery, with the interval of [`pair`].
const A_WHILE: Duration = Duration::from_secs(5);
/// Between two requests for what must be so at any moment.
const PAUSE: Duration = Duration::from_millis(50);

/// An apiserver and its proxy.
struct Pair {
    server: KubeApiServer,
    proxy: Proxy,
}

/// `without`: groups, and versions of groups, that it does not serve.
async fn pair(ground: &Ground, id: &str, without: &[&str]) -> Pair {
    let options = ground.kube(&format!("cp-{id}"));
    // Each version of these groups, as `each_form_is_complete` expects.
    let with_betas = ["autoscaling", "batch", "policy"].into_iter();
    let options = with_betas.fold(options, KubeOptions::betas_of);
    let options = without
        .iter()
        .fold(options, |options, name| match name.contains('/') {
            true => options.runtime_config(&format!("{name}=false")),
            false => options.without_group(name),
        });
    let server = KubeApiServer::start(options, &ground.pki).await;
    let proxy = ground.proxy(id, server.addr()).until(Until::Ready);
    let proxy = Proxy::start(proxy.set("apiServer.discoveryInterval", "1s")).await;
    Pair { server, proxy }
}

impl Pair {
    /// The administrator at the proxy.
    fn admin(&self, ground: &Ground) -> Client {
        self.proxy.client(&ground.pki).cert("admin").timeout(LONGER)
    }

    /// What the apiserver itself lists.
    async fn lists(&self) -> Vec<String> {
        groups(&self.server.admin().get("/apis").await.json())
    }
}

/// Everything that one of them serves.
const ALL: [&str; 4] = ["apps", "autoscaling", "batch", "policy"];

async fn lists_all(client: &Client) -> Result<(), String> {
    let list = client.get("/apis").await.json();
    let names = groups(&list);
    let missing: Vec<_> = ALL
        .iter()
        .filter(|name| !names.iter().any(|it| it == *name))
        .collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!("{missing:?} are missing: {names:?}")),
    }
}

fn versions(list: &Value, name: &str) -> Vec<String> {
    let mut groups = list["groups"].as_array().unwrap().iter();
    let group = groups
        .find(|group| group["name"] == name)
        .expect("the group");
    let versions = group["versions"].as_array().unwrap().iter();
    let names = versions.map(|version| version["version"].as_str().unwrap());
    names.map(str::to_owned).collect()
}

#[tokio::test]
async fn real_apiservers_hide_nothing_behind_proxies() {
    let ground = Ground::bootstrapped().await;
    let mut a = pair(&ground, "a", &[]).await;
    let at_a = a.admin(&ground);
    let alone = a.server.admin().get("/apis").await;
    assert_eq!(at_a.get("/apis").await.body, alone.body);
    eventually("A's proxy knows what A serves", LONGER, async || {
        a.proxy.statusz().await["discovery"]["current"] == true
    })
    .await;

    // The server that starts deletes the APIServices of what it does not serve.
    let mut b = nothing_is_missing(&at_a, pair(&ground, "b", &["batch"])).await;
    assert!(
        !a.lists().await.contains(&"batch".to_owned()),
        "it is hidden"
    );
    assert_eq!(
        a.server.admin().get("/apis/batch/v1/jobs").await.code(),
        200
    );
    lists_all(&at_a).await.expect("everything is listed");
    for pair in [&a, &b] {
        kubectl_finds_all(pair, &[&a, &b], &ground).await;
    }
    let without = ["apps", "autoscaling/v2beta1", "policy"];
    let c = nothing_is_missing(&at_a, pair(&ground, "c", &without)).await;
    for server in [&a, &b] {
        let listed = server.lists().await;
        for hidden in ["apps", "policy"] {
            assert!(!listed.contains(&hidden.to_owned()), "{listed:?}");
        }
    }
    for pair in [&a, &b, &c] {
        let client = pair.admin(&ground);
        eventually("everything is listed", LONGER, async || {
            lists_all(&client).await
        })
        .await;
        each_form_is_complete(&client, &[&a, &b, &c]).await;
        kubectl_finds_all(pair, &[&a, &b, &c], &ground).await;
    }
    let lists = legacy_lists(&at_a).await;
    for pair in [&b, &c] {
        assert_eq!(legacy_lists(&pair.admin(&ground)).await, lists);
    }
    what_is_removed_stays_away(&[&a, &b, &c], &ground).await;
    nothing_is_missing_while_a_restarts(&mut a, &b, &ground).await;
    // A, which was restarted, may be the only one of its version.
    eventually("A is a target again", LONGER, async || {
        let status = c.proxy.statusz().await;
        let mut peers = status["peers"].as_array().into_iter().flatten();
        peers.all(|peer| peer["target"] == true)
    })
    .await;
    for path in &lists {
        let answer = c.admin(&ground).get(path).await;
        assert_eq!(answer.code(), 200, "{path}: {}", answer.text());
    }
    // What a peer hides that is known and was away.
    nothing_is_missing(&at_a, b.server.restart()).await;
    assert!(!a.lists().await.contains(&"batch".to_owned()));
}

async fn each_form_is_complete(client: &Client, servers: &[&Pair; 3]) {
    let json = client.get("/apis").await.json();
    let served = |(group, of): (&str, &[&Pair])| {
        let versions = of
            .iter()
            .flat_map(|it| it.server.abilities().versions_of(group));
        versions.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let [a, _, c] = servers;
    for (group, of) in [("batch", &[*a, *c][..]), ("autoscaling", &servers[..])] {
        let listed: BTreeSet<_> = versions(&json, group).into_iter().collect();
        assert_eq!(listed, served((group, of)), "{group}");
    }

    let protobuf = client.header("accept", PROTOBUF);
    let raw = |body: &[u8]| Unknown::decode(&body[4..]).unwrap().raw.unwrap();
    let list = protobuf.get("/apis").await;
    assert_eq!(list.header("content-type"), PROTOBUF);
    let list = APIGroupList::decode(&*raw(&list.body)).unwrap();
    let names: Vec<_> = list
        .groups
        .iter()
        .map(|group| group.name().to_owned())
        .collect();
    assert_eq!(names, groups(&json));

    let policy = served(("policy", &servers[..2]));
    let policy = policy
        .iter()
        .map(|version| format!("/apis/policy/{version}/poddisruptionbudgets"));
    let others = ["/apis/apps/v1/deployments", "/apis/batch/v1/jobs"].map(str::to_owned);
    let paths: Vec<_> = policy.chain(others).collect();
    // The peers' documents are read one after the other: newer apiservers take seconds to make one.
    eventually("OpenAPI is complete", LONGER, async || {
        let document = client.get("/openapi/v2").await.json();
        let missing = paths.iter().find(|path| document["paths"][path].is_null());
        missing.map_or(Ok(()), |path| Err(path.to_owned()))
    })
    .await;
}

async fn kubectl_finds_all(pair: &Pair, all: &[&Pair], ground: &Ground) {
    let pki = &ground.pki;
    let kubectl = Kubectl::new(pair.proxy.addr(), pki, ground.dir.path()).cert(pki, "admin");
    let all_of_them = "jobs,cronjobs,deployments,hpa,pdb";
    kubectl.run(&["get", all_of_them]).await;
    // kubectl from 1.27 on reads only OpenAPI v3 where there is any; of what apiservers without it serve there is only v2.
    let has_v3 = |pair: &&Pair| pair.server.abilities().meets(Need::Since(24));
    if !has_v3(&pair) || all.iter().all(has_v3) {
        kubectl.run(&["explain", "jobs.spec"]).await;
    }
}

/// A CRD, and an API whose server nobody can reach.
async fn what_is_removed_stays_away(pairs: &[&Pair; 3], ground: &Ground) {
    let admin = pairs[0].admin(ground);
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.crd.example"},
        "spec": {"group": "crd.example", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    let service = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": "v1.dead.example"},
        "spec": {"group": "dead.example", "version": "v1", "insecureSkipTLSVerify": true,
            "groupPriorityMinimum": 100, "versionPriority": 100,
            "service": {"name": "dead", "namespace": "default"}}});
    for (path, object) in [(CRDS, definition), (API_SERVICES, service)] {
        let created = admin.request("POST", path, object.to_string()).await;
        assert_eq!(created.code(), 201, "{}", created.text());
    }
    let names = async |pair: &Pair| {
        let list = pair.admin(ground).get("/apis").await.json();
        let names = groups(&list);
        ["crd.example", "dead.example"].map(|name| names.contains(&name.to_owned()))
    };
    for pair in pairs {
        eventually("they are listed", LONGER, async || {
            names(pair).await == [true; 2]
        })
        .await;
    }
    for path in [
        format!("{CRDS}/widgets.crd.example"),
        format!("{API_SERVICES}/v1.dead.example"),
    ] {
        assert_eq!(admin.request("DELETE", &path, "").await.code(), 200);
    }
    for pair in pairs {
        eventually("they are gone", LONGER, async || {
            names(pair).await == [false; 2]
        })
        .await;
    }
    holds("they stay away", A_WHILE, async || {
        tokio::time::sleep(PAUSE).await;
        let [a, b, c] = pairs.map(names);
        let (a, b, c) = tokio::join!(a, b, c);
        [a, b, c] == [[false; 2]; 3]
    })
    .await;
}

/// Everything is listed at any moment in which this is under way.
async fn nothing_is_missing<T>(client: &Client, under_way: impl Future<Output = T>) -> T {
    let watch = async {
        loop {
            lists_all(client)
                .await
                .expect("nothing is missing at any moment");
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::select! {
        done = under_way => done,
        () = watch => panic!("it has no end"),
    }
}

/// The server that starts again creates the APIServices of what it serves.
async fn nothing_is_missing_while_a_restarts(a: &mut Pair, b: &Pair, ground: &Ground) {
    let (at_a, at_b) = (a.admin(ground), b.admin(ground));
    nothing_is_missing(&at_b, a.server.restart()).await;
    eventually("nothing is hidden by A any more", LONGER, async || {
        let listed = a.lists().await;
        ALL.iter().all(|name| listed.iter().any(|it| it == name))
    })
    .await;
    // Of another version B has groups that A does not know.
    let same = a.server.abilities() == b.server.abilities();
    eventually("its proxy gives its list as it is", LONGER, async || {
        let own = a.server.admin().get("/apis").await;
        let given = at_a.get("/apis").await;
        let names = groups(&given.json());
        let has_all = || groups(&own.json()).iter().all(|name| names.contains(name));
        given.body == own.body || !same && has_all()
    })
    .await;
}
