//! "No such resource" from a server that should have the resource, in every format: never passed on. The similar "no
//! such object": always passed on, byte for byte.

use std::io::Write as _;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use http::StatusCode;
use serde_json::json;

use testkit::client::{Client, Response};
use testkit::cluster::{Cluster, Ground, HPAS_IN_DEFAULT, LONG, Single, assert_refused, lists};
use testkit::double::status::Status;
use testkit::double::{Double, Fault, ScriptedAnswer, v1_20};
use testkit::kube::KubeApiServer;
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const REFUSAL: &str = "not known at the moment";

/// `status` in each form that has a body, with a name for it.
fn forms(status: &Status) -> Vec<(String, ScriptedAnswer)> {
    let scripted = |content_type: &str, body: Vec<u8>| {
        ScriptedAnswer::new(404)
            .header("content-type", content_type)
            .header("x-kept", "first")
            .header("x-kept", "second")
            .body(body)
    };
    let json = format!("{}\n", status.json()).into_bytes();
    let yaml = serde_yaml::to_string(&status.json()).unwrap();
    let whole = vec![
        ("JSON", scripted("application/json", json.clone())),
        (
            "JSON with a parameter",
            scripted("application/json; charset=utf-8", json.clone()),
        ),
        ("YAML", scripted("application/yaml", yaml.into_bytes())),
        ("protobuf", scripted(PROTOBUF, status.protobuf())),
        ("CBOR", scripted("application/cbor", cbor(status))),
        (
            "a watch in protobuf",
            scripted(
                "application/vnd.kubernetes.protobuf;stream=watch",
                status.protobuf(),
            ),
        ),
        (
            "gzip",
            scripted("application/json", gzip(&json)).header("content-encoding", "gzip"),
        ),
    ];
    let slow = whole
        .clone()
        .into_iter()
        .map(|(name, scripted)| (format!("{name} in pieces"), slowly(scripted)));
    let whole = whole
        .iter()
        .map(|(name, scripted)| ((*name).to_owned(), scripted.clone()));
    whole.chain(slow).collect()
}

fn slowly(scripted: ScriptedAnswer) -> ScriptedAnswer {
    scripted.in_pieces(50, Duration::from_millis(2))
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

/// As much of kube-apiserver's CBOR as tells.
fn cbor(status: &Status) -> Vec<u8> {
    let string = |value: &str| match u8::try_from(value.len()).unwrap() {
        length @ 0..24 => [&[0x40 | length], value.as_bytes()].concat(),
        length => [&[0x58, length], value.as_bytes()].concat(),
    };
    [
        b"\xd9\xd9\xf7\xa2".to_vec(),
        string("kind"),
        string("Status"),
        string("message"),
        string(&status.message),
    ]
    .concat()
}

/// Every form of "no such resource".
fn falsehoods() -> Vec<(String, ScriptedAnswer)> {
    let text = ScriptedAnswer::new(404)
        .header("content-type", "text/plain; charset=utf-8")
        .header("x-content-type-options", "nosniff")
        .body("404 page not found\n");
    let mut all = forms(&Status::no_such_resource());
    all.push(("text".to_owned(), text.clone()));
    all.push(("text in pieces".to_owned(), slowly(text)));
    all.push(("nothing at all".to_owned(), ScriptedAnswer::new(404)));
    let unreadable = ScriptedAnswer::new(404)
        .header("content-type", "application/json")
        .header("content-encoding", "br")
        .body("?");
    all.push(("an unknown encoding".to_owned(), unreadable));
    all
}

/// Every form of something that is true.
fn truths() -> Vec<(String, ScriptedAnswer)> {
    let about = |message: &str, name: &str| {
        Status::new(StatusCode::NOT_FOUND, "NotFound", message).about("autoscaling", "hpas", name)
    };
    let name = "the server could not find the requested resource";
    let statuses = [
        ("a missing object", about("hpas \"x\" not found", "x")),
        (
            "an object with a name of that kind",
            about(&format!("hpas \"{name}\" not found"), name),
        ),
        (
            "a webhook's own words",
            Status::new(
                StatusCode::NOT_FOUND,
                "",
                "admission webhook \"w\" denied the request: nowhere to be found",
            ),
        ),
        (
            "what a kubelet says of a pod",
            about(&format!("{name} ( pods/log x)"), "x"),
        ),
    ];
    let named = |(what, status): (&'static str, Status)| {
        forms(&status)
            .into_iter()
            .map(move |(form, scripted)| (format!("{what}, {form}"), scripted))
    };
    statuses.into_iter().flat_map(named).collect()
}

/// The answer of `double` below [`HPAS_IN_DEFAULT`], asked through the proxy.
async fn answered(
    double: &Double,
    client: &Client,
    scripted: &ScriptedAnswer,
    target: &str,
) -> Response {
    double.set_fault(
        HPAS_IN_DEFAULT,
        Some(Fault::Answer(Box::new(scripted.clone()))),
    );
    client.get(&format!("{HPAS_IN_DEFAULT}{target}")).await
}

async fn none_is_passed_on(double: &Double, clients: [Client; 2]) {
    nobody_reads_discovery(double);
    for client in clients {
        for (form, scripted) in falsehoods() {
            for target in ["", "/x", "?watch=true"] {
                let answer = answered(double, &client, &scripted, target).await;
                assert_eq!(answer.code(), 503, "{form} {target}: {}", answer.text());
                assert_refused(&answer, REFUSAL);
            }
        }
        let answer = client.request("HEAD", HPAS_IN_DEFAULT, "").await;
        assert_eq!((answer.code(), answer.body.len()), (503, 0));
        assert!(answer.headers.contains_key("retry-after"));
        writes(double, &client).await;
    }
}

/// Another server is asked to do it only if this one has said just what kube-apiserver says of an unknown resource. All
/// else may have been said by an aggregated API that has done something.
async fn writes(double: &Double, client: &Client) {
    for (form, scripted) in falsehoods() {
        double.set_fault(HPAS_IN_DEFAULT, Some(Fault::Answer(Box::new(scripted))));
        let answer = client.request("DELETE", HPAS_IN_DEFAULT, "").await;
        match form.as_str() {
            "nothing at all" | "an unknown encoding" => assert_eq!(answer.code(), 404, "{form}"),
            _ => assert_refused(&answer, REFUSAL),
        }
    }
}

/// From now on `double`'s discovery cannot be read.
fn nobody_reads_discovery(double: &Double) {
    double.set_fault("/version", Some(Fault::Status(500, None)));
}

async fn each_is_passed_on(double: &Double, direct: &Client, clients: [Client; 2]) {
    for client in clients {
        for (form, scripted) in truths() {
            for target in ["/x", "?watch=true"] {
                let answer = answered(double, &client, &scripted, target).await;
                let direct = direct.get(&format!("{HPAS_IN_DEFAULT}{target}")).await;
                assert_eq!(answer.code(), 404, "{form} {target}: {}", answer.text());
                assert_eq!(answer.body, direct.body, "{form} {target}");
                assert_eq!(headers(&answer), headers(&direct), "{form} {target}");
            }
        }
    }
}

/// Without what belongs to one connection, or to the moment.
fn headers(answer: &Response) -> http::HeaderMap {
    let mut headers = answer.headers.clone();
    for name in ["date", "transfer-encoding", "connection", "audit-id"] {
        headers.remove(name);
    }
    headers
}

fn pair(client: &Client) -> [Client; 2] {
    let client = client.cert("admin");
    [client.http1(), client.http2()]
}

#[tokio::test]
async fn what_a_local_apiserver_says_of_objects_is_passed_on_and_a_denial_of_what_it_lists_is_not()
{
    let world = Single::new().await;
    let direct = Client::new(world.double.addr(), &world.ground.pki).cert("admin");
    each_is_passed_on(&world.double, &direct, world.admins()).await;
    a_long_404_is_passed_on(&world).await;
    what_a_proxied_service_does_not_find_is_its_own_affair(&world).await;
    none_is_passed_on(&world.double, world.admins()).await;
}

#[tokio::test]
async fn what_a_peer_says_of_objects_is_passed_on_and_a_denial_of_what_it_lists_is_not() {
    let cluster = Cluster::new().await;
    let direct = Client::new(cluster.b.addr(), &cluster.ground.pki).cert("admin");
    each_is_passed_on(&cluster.b, &direct, pair(&cluster.client())).await;
    none_is_passed_on(&cluster.b, pair(&cluster.client())).await;
}

async fn a_long_404_is_passed_on(world: &Single) {
    let body = "no such page, and more of the kind; ".repeat(2000);
    let scripted = ScriptedAnswer::new(404)
        .header("content-type", "text/plain")
        .body(body.clone());
    for client in world.admins() {
        for scripted in [
            scripted.clone(),
            scripted.clone().in_pieces(5000, Duration::ZERO),
        ] {
            let answer = answered(&world.double, &client, &scripted, "/x").await;
            assert_eq!((answer.code(), answer.text()), (404, body.clone()));
        }
    }
}

#[tokio::test]
async fn a_404_that_does_not_come_to_its_end_is_not_passed_on() {
    let world = Single::new().await;
    let (_, scripted) = forms(&Status::not_found("autoscaling", "hpas", "x"))
        .into_iter()
        .next()
        .unwrap();
    let scripted = scripted.in_pieces(10, Duration::from_secs(30));
    let [client, _] = world.admins();
    let client = client.timeout(LONG);
    let answer = answered(&world.double, &client, &scripted, "/x").await;
    assert_refused(&answer, REFUSAL);
}

async fn what_a_proxied_service_does_not_find_is_its_own_affair(world: &Single) {
    let path = "/api/v1/namespaces/default/services/web/proxy/nosuch";
    for client in world.admins() {
        for (form, scripted) in falsehoods() {
            world
                .double
                .set_fault(path, Some(Fault::Answer(Box::new(scripted))));
            assert_eq!(client.get(path).await.code(), 404, "{form}");
        }
        assert_eq!(client.request("HEAD", path, "").await.code(), 404);
    }
}

/// A proxy to which etcd says that this kube-apiserver serves what it does not. Below its prefix there is nobody else.
async fn lied_to(server: &KubeApiServer, ground: &Ground) -> (Proxy, Double) {
    let local = v1_20()
        .without_group("autoscaling")
        .without_group("rbac.authorization.k8s.io");
    let local = ground.double(local).await;
    let options = ground.proxy("c", local.addr()).set("etcd.prefix", "/lies");
    let proxy = Proxy::start(options.until(Until::Ready)).await;
    let mut etcd = ground.etcd.client().await;
    let below = "/kube-interop-proxy/lies";
    let record = json!({"endpoint": server.addr(), "resources": {
        "autoscaling/v1": ["horizontalpodautoscalers", "horizontalpodautoscalers/status"],
        "no.such.group/v1": ["things"],
        "rbac.authorization.k8s.io/v1": ["clusterroles", "clusterroles/nosuch"]}});
    let written = etcd
        .put(format!("{below}/servers/b"), record.to_string(), None)
        .await
        .unwrap();
    let revision = written.header().unwrap().revision();
    let live = json!({"endpoint": server.addr(), "initialized": true, "recordRevision": revision});
    etcd.put(format!("{below}/live/b"), live.to_string(), None)
        .await
        .unwrap();
    eventually("the proxy knows of the server", LONG, async || {
        lists(&proxy.statusz().await, "b", "autoscaling")
    })
    .await;
    (proxy, local)
}

/// It does not serve `autoscaling/v1`.
pub async fn the_words_of_a_real_apiserver_are_understood(server: &KubeApiServer, ground: &Ground) {
    let (proxy, _local) = lied_to(server, ground).await;
    let through = pair(&proxy.client(&ground.pki));
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let accepts = [
        "application/json",
        "application/yaml",
        PROTOBUF,
        "application/vnd.kubernetes.protobuf;stream=watch,application/json;stream=watch",
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "nonsense",
    ];
    for client in &through {
        // To HEAD of what it serves it says something else, so that nothing true is lost.
        let head = async |path: &str| client.request("HEAD", path, "").await.code();
        assert_eq!(head(&format!("{roles}/missing")).await, 405);
        assert_eq!(head(&format!("{HPAS_IN_DEFAULT}/x")).await, 503);
    }
    for accept in accepts {
        let direct = server.admin().header("accept", accept);
        for client in &through {
            let client = client.header("accept", accept);
            for path in [
                HPAS_IN_DEFAULT.to_owned(),
                format!("{HPAS_IN_DEFAULT}?watch=true"),
                format!("{HPAS_IN_DEFAULT}/x"),
                format!("{HPAS_IN_DEFAULT}/x/status"),
                format!("{roles}/admin/nosuch"),
                "/apis/no.such.group/v1/things".to_owned(),
                "/apis/no.such.group/v1/things?watch=true".to_owned(),
            ] {
                let said = direct.get(&path).await;
                assert_eq!(said.code(), 404, "{accept} {path}: {}", said.text());
                assert_refused(&client.get(&path).await, REFUSAL);
            }
            // Something that is there, and is not.
            let path =
                format!("{roles}/the%20server%20could%20not%20find%20the%20requested%20resource");
            let (said, passed) = (direct.get(&path).await, client.get(&path).await);
            assert_eq!(passed.code(), said.code(), "{accept}: {}", passed.text());
            assert_eq!(passed.body, said.body, "{accept}");
            assert_eq!(headers(&passed), headers(&said), "{accept}");
        }
    }
}
