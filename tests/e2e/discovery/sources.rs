//! Which server a discovery document comes from: while the local one starts, after a peer died, and in the other
//! modes.

use crate::discovery::documents::{Mixed, V2, groups};
use testkit::client::Client;
use testkit::cluster::{Ground, LONG, assert_refused, assert_refused_for_good};
use testkit::double::{Fault, Phase, ServedResource, v1_20, v1_36};
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

#[tokio::test]
async fn in_mode_local_nothing_is_added() {
    let mixed = Mixed::with(v1_36(), |options| options.set("discovery.mode", "Local")).await;
    eventually("A's proxy knows B", LONG, async || {
        testkit::cluster::lists(&mixed.proxy_a.statusz().await, "b", "autoscaling")
    })
    .await;
    let (client, direct) = (
        mixed.admin().header("accept", V2),
        mixed.direct().header("accept", V2),
    );
    for path in ["/api", "/apis", "/openapi/v2", "/openapi/v3"] {
        let (through, direct) = (client.get(path).await, direct.get(path).await);
        assert_eq!(
            (through.code(), &through.body),
            (direct.code(), &direct.body),
            "{path}"
        );
    }
    for path in [
        "/apis/autoscaling",
        "/apis/autoscaling/v1",
        "/openapi/v3/apis/autoscaling/v1",
    ] {
        assert_eq!(client.get(path).await.code(), 404, "{path}");
    }
}

#[tokio::test]
async fn in_mode_newest_documents_are_those_of_the_newest_server() {
    let ground = Ground::new().await;
    let (old, new) = tokio::join!(ground.double(v1_20()), ground.double(v1_36()));
    let options = |id, double: &testkit::double::Double| {
        let options = ground
            .proxy(id, double.addr())
            .set("discovery.mode", "Newest");
        options.until(Until::Ready)
    };
    let (proxy_old, mut proxy_new) = tokio::join!(
        Proxy::start(options("old", &old)),
        Proxy::start(options("new", &new)),
    );
    let client = |proxy: &Proxy| proxy.client(&ground.pki).cert("admin");
    let direct =
        |double: &testkit::double::Double| Client::new(double.addr(), &ground.pki).cert("admin");
    let paths = [
        "/api",
        "/apis",
        "/apis/apps",
        "/api/v1",
        "/openapi/v2",
        "/openapi/v3",
    ];
    eventually(
        "the old one's documents are the new one's",
        LONG,
        async || client(&proxy_old).get("/openapi/v3").await.code() == 200,
    )
    .await;
    for path in paths {
        let expected = direct(&new).get(path).await;
        for proxy in [&proxy_old, &proxy_new] {
            let answer = client(proxy).get(path).await;
            assert_eq!(
                (answer.code(), &answer.body),
                (200, &expected.body),
                "{path}"
            );
        }
    }
    assert_eq!(old.count("/openapi/v2"), 0, "the old one is not asked");
    proxy_new.kill();
    let left = client(&proxy_old).get("/apis").await;
    assert_eq!(left.body, direct(&old).get("/apis").await.body);
}

#[tokio::test]
async fn a_rerouted_request_gets_the_local_document() {
    let mixed = Mixed::merged(v1_36()).await;
    let peer = mixed
        .proxy_a
        .client(&mixed.ground.pki)
        .cert("front-proxy-client");
    for mark in [
        "X-Kubernetes-APIServer-Rerouted",
        "X-Kubernetes-Peer-Proxied",
    ] {
        let peer = peer
            .header(mark, "true")
            .header("X-Remote-User", "alice")
            .header("X-Remote-Group", "system:masters")
            .header("accept", V2);
        for path in [
            "/api",
            "/apis",
            "/apis/apps/v1",
            "/openapi/v2",
            "/openapi/v3",
        ] {
            let local = mixed.direct().header("accept", V2).get(path).await;
            let answer = peer.get(path).await;
            assert_eq!(
                (answer.code(), &answer.body),
                (local.code(), &local.body),
                "{mark} {path}"
            );
        }
        for path in ["/apis/autoscaling", "/apis/autoscaling/v1"] {
            assert_eq!(peer.get(path).await.code(), 404, "{mark} {path}");
        }
    }
}

#[tokio::test]
async fn what_the_caller_may_not_see_is_not_made_for_it() {
    let mixed = Mixed::merged(v1_36()).await;
    let nobody = mixed.proxy_a.client(&mixed.ground.pki);
    let wrong = nobody.token("tok-wrong");
    for path in [
        "/api",
        "/apis",
        "/apis/autoscaling",
        "/apis/autoscaling/v1",
        "/apis/apps/v1",
        "/openapi/v2",
        "/openapi/v3",
        "/openapi/v3/apis/autoscaling/v1",
    ] {
        let refused = nobody.get(path).await;
        assert_eq!(refused.code(), 403, "{path}: {}", refused.text());
        assert!(refused.text().contains("system:anonymous"));
        assert_eq!(wrong.get(path).await.code(), 401, "{path}");
        assert_eq!(
            nobody.token("tok-bob").get(path).await.code(),
            200,
            "{path}"
        );
    }
}

#[tokio::test]
async fn while_the_local_apiserver_starts_documents_are_a_peers() {
    let mut mixed = Mixed::merged(v1_20()).await;
    let client = mixed.admin();
    let of_b = Client::new(mixed.b.addr(), &mixed.ground.pki).cert("admin");
    mixed.restart_a_without_end().await;
    for path in [
        "/api",
        "/apis",
        "/apis/apps",
        "/apis/apps/v1",
        "/apis/autoscaling/v1",
        "/openapi/v2",
    ] {
        let (answer, expected) = (client.get(path).await, of_b.get(path).await);
        assert_eq!(
            (answer.code(), &answer.body),
            (200, &expected.body),
            "{path}"
        );
    }
    let asking = client
        .header("X-Kubernetes-If-Ready", "1")
        .get("/apis")
        .await;
    assert_refused(&asking, "starting");
    let asked = mixed.a.requests();
    let by_clients = asked
        .iter()
        .filter(|request| request.user == "kubernetes-admin");
    let by_clients: Vec<_> = by_clients.map(|request| &request.path).collect();
    assert!(
        by_clients.is_empty(),
        "a starting apiserver is asked for {by_clients:?}"
    );

    mixed.a.set_phase(Phase::Ready);
    mixed.until_merged().await;
}

#[tokio::test]
async fn what_only_a_starting_apiserver_has_stays_listed_as_stale() {
    let mut mixed = Mixed::merged(v1_36()).await;
    mixed
        .a
        .add_resource(ServedResource::new("only.a", "v1", "things", "Thing"));
    let at_b = mixed.proxy_b.client(&mixed.ground.pki).cert("admin");
    eventually("everybody knows what only A has", LONG, async || {
        at_b.get("/apis/only.a/v1").await.code() == 200
    })
    .await;
    mixed.restart_a_without_end().await;
    let client = mixed.admin();
    let document = client.header("accept", V2).get("/apis").await.json();
    let freshness = |name: &str| {
        let items = document["items"].as_array().unwrap();
        let group = items.iter().find(|item| item["metadata"]["name"] == name);
        group.map(|group| group["versions"][0]["freshness"].clone())
    };
    assert_eq!(freshness("only.a"), Some("Stale".into()));
    assert_eq!(freshness("autoscaling"), Some("Current".into()));
    assert!(groups(&client.get("/apis").await.json()).contains(&"only.a".to_owned()));
    assert_eq!(client.get("/apis/only.a").await.code(), 200);
    // There is only the starting apiserver itself to ask; that it does not know it yet means nothing.
    assert_eq!(client.get("/apis/only.a/v1").await.code(), 200);
    mixed.a.remove_group("only.a");
    assert_refused_for_good(&client.get("/apis/only.a/v1").await, "");
}

#[tokio::test]
async fn what_only_a_dead_peer_has_stays_listed_and_is_refused() {
    let mut mixed = Mixed::merged(v1_36()).await;
    let client = mixed.admin();
    mixed.proxy_b.kill();
    mixed.b.stop().await;
    // Nobody knows of its death yet.
    for path in ["/apis/autoscaling/v1", "/openapi/v3/apis/autoscaling/v1"] {
        assert_refused_for_good(&client.get(path).await, "");
    }
    assert!(groups(&client.get("/apis").await.json()).contains(&"autoscaling".to_owned()));

    eventually("it is known to be dead", LONG, async || {
        let document = client.header("accept", V2).get("/apis").await.json();
        let items = document["items"].as_array().unwrap();
        let group = items
            .iter()
            .find(|item| item["metadata"]["name"] == "autoscaling");
        group.expect("a group that is not gone")["versions"][0]["freshness"] == "Stale"
    })
    .await;
    assert!(groups(&client.get("/apis").await.json()).contains(&"autoscaling".to_owned()));
    assert_eq!(client.get("/apis/autoscaling").await.code(), 200);
    for path in ["/apis/autoscaling/v1", "/openapi/v3/apis/autoscaling/v1"] {
        assert_refused_for_good(&client.get(path).await, "can be reached");
    }
    // What both had is as complete as before, and answered.
    let apps = client.get("/apis/apps/v1").await;
    assert!(
        apps.text().contains("controllerrevisions"),
        "{}",
        apps.text()
    );
}

#[tokio::test]
async fn what_only_a_dead_peer_has_is_listed_by_a_proxy_that_knows_no_more_than_names() {
    for preset in [v1_20(), v1_36()] {
        let mut mixed = Mixed::merged(preset).await;
        let client = mixed.admin();
        mixed.proxy_b.kill();
        mixed.b.stop().await;
        eventually("B is known to be dead", LONG, async || {
            let answer = client.get("/apis/autoscaling/v1").await;
            answer.text().contains("can be reached")
        })
        .await;
        // What the local apiserver lists cannot be read for now.
        mixed
            .a
            .set_fault("/version", Some(Fault::Status(500, None)));
        mixed.proxy_a.kill();
        let options = mixed.ground.proxy("c", mixed.a.addr()).until(Until::Live);
        let proxy = Proxy::start(options.set("apiServer.discoveryInterval", "300ms")).await;
        let client = proxy.client(&mixed.ground.pki).cert("admin");
        eventually("what is in etcd is known", LONG, async || {
            let synced = proxy.metric("kube_interop_proxy_etcd_synced", &[]).await;
            synced == 1.0 && proxy.statusz().await["server"]["initialized"] == true
        })
        .await;
        // A's own proxy is a target until its key is gone, and is asked in vain.
        what_is_dead_is_listed_and_refused(&client).await;
        let status = proxy.statusz().await;
        assert_eq!(status["discovery"]["current"], false, "not read yet");

        mixed.a.set_fault("/version", None);
        eventually("the local apiserver was read", LONG, async || {
            proxy.statusz().await["discovery"]["current"] == true
        })
        .await;
        what_is_dead_is_listed_and_refused(&client).await;
        assert_eq!(client.get("/apis/nobodys").await.code(), 404);
    }
}

async fn what_is_dead_is_listed_and_refused(client: &Client) {
    for accept in [V2, "application/json"] {
        let client = client.header("accept", &format!("{accept},application/json"));
        let names = groups(&client.get("/apis").await.json());
        assert!(names.contains(&"autoscaling".to_owned()), "{names:?}");
        assert!(names.contains(&"apps".to_owned()), "{names:?}");
    }
    assert_eq!(client.get("/apis/autoscaling").await.code(), 200);
    assert_refused_for_good(&client.get("/apis/autoscaling/v1").await, "");

    // Whoever deletes all that is in a namespace is told that this cannot be done now.
    let apps = client.get("/apis/apps/v1").await.json();
    let resources = apps["resources"].as_array().unwrap();
    let named = |name: &str| resources.iter().find(|it| it["name"] == name);
    let dead = named("controllerrevisions").expect("a resource that is not gone");
    let verbs = dead["verbs"].as_array().unwrap();
    for verb in ["delete", "deletecollection", "list"] {
        assert!(verbs.contains(&verb.into()), "{dead}");
    }
    assert_eq!(dead["namespaced"], true, "{dead}");
    assert!(named("deployments").is_some());
}

#[tokio::test]
async fn a_document_that_cannot_be_read_is_refused_and_not_passed_on_with_less() {
    let mixed = Mixed::merged(v1_20()).await;
    let garbled = testkit::double::Fault::Stream(1 << 10);
    mixed.a.set_fault("/apis", Some(garbled));
    let answer = mixed.admin().get("/apis").await;
    assert_refused_for_good(&answer, "cannot be merged");
    mixed.a.set_fault("/apis", Some(Fault::Status(500, None)));
    assert_eq!(
        mixed.admin().get("/apis").await.code(),
        500,
        "its own errors pass"
    );
    mixed.a.set_fault("/apis", None);
    assert_eq!(mixed.admin().get("/apis").await.code(), 200);
}

#[tokio::test]
async fn a_document_whose_server_dies_while_it_is_read_may_be_asked_for_again() {
    let mixed = Mixed::merged(v1_36()).await;
    let half = testkit::double::ScriptedAnswer::new(200).header("content-type", V2);
    let half = half.body(b"{".to_vec()).then_break();
    mixed
        .a
        .set_fault("/apis", Some(Fault::Answer(Box::new(half))));
    for client in [mixed.admin().http1(), mixed.admin().http2()] {
        let answer = client.header("accept", V2).get("/apis").await;
        assert_refused(&answer, "Error while proxying request");
    }
    mixed.a.set_fault("/apis", None);
    assert_eq!(mixed.admin().get("/apis").await.code(), 200);
}

#[tokio::test]
async fn a_document_that_is_encoded_or_never_ends_is_refused() {
    let mixed = Mixed::merged(v1_36()).await;
    let scripted = |body: &[u8]| {
        let scripted = testkit::double::ScriptedAnswer::new(200).header("content-type", V2);
        scripted.body(body.to_vec())
    };
    let answer = |scripted| Some(Fault::Answer(Box::new(scripted)));
    let encoded = scripted(b"\x1f\x8b").header("content-encoding", "gzip");
    mixed.a.set_fault("/apis", answer(encoded));
    let client = mixed.admin().timeout(2 * LONG);
    for accept in [V2.to_owned(), format!("{V2};profile=nopeer")] {
        let refused = client.header("accept", &accept).get("/apis").await;
        assert_refused_for_good(&refused, "cannot be merged");
    }

    // More than are read at a time, and each for as long as a test may last.
    let slow = scripted(&[b' '; 1 << 10]).in_pieces(1, std::time::Duration::from_millis(500));
    mixed.a.set_fault("/apis", answer(slow));
    let asking = (0..6).map(|_| {
        let client = client.fresh().header("accept", V2);
        tokio::spawn(async move { client.get("/apis").await })
    });
    for refused in asking.collect::<Vec<_>>() {
        assert_refused_for_good(&refused.await.unwrap(), "cannot be merged");
    }
    mixed.a.set_fault("/apis", None);
    assert_eq!(client.get("/apis").await.code(), 200);
}
