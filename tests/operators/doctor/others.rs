//! Problems of other components: a peer, its certificate, a clock, a duplicate ID.

use std::net::SocketAddr;
use std::time::SystemTime;

use kube_interop_proxy::cluster::codec::{PeerEndpoint, encode_endpoints};
use tokio::net::TcpListener;

use super::{doctor, file_of, ground, pair, serving};
use testkit::addr::Loopback;
use testkit::balancer::Balancer;
use testkit::cluster::LONG;
use testkit::double::{Fault, ScriptedAnswer, v1_20};
use testkit::pki::SERVER_NAME;
use testkit::process::Signal;
use testkit::proxy::{Proxy, Until};
use testkit::registry::Registry;
use testkit::wait::eventually;

#[tokio::test]
async fn peers_that_cannot_be_reached_or_are_not_who_they_should_be_are_told_by_their_cause() {
    let mut cluster = pair().await;
    let config = file_of(&cluster.proxy_a);
    let dir = cluster.ground.dir.path().to_owned();
    let b = cluster.proxy_b.addr();
    doctor(&dir, &config, &[]).await.is_healthy();

    let pki = &cluster.ground.pki;
    pki.leaf("b-serving", "ca", &serving(&["cp-2.example"]));
    let named = |name: &'static str| {
        let client = cluster.proxy_b.client(pki).server_name(name);
        async move || client.fresh().try_get("/version").await.map(drop)
    };
    eventually("B has the other certificate", LONG, named("cp-2.example")).await;
    let said = doctor(&dir, &config, &[]).await;
    let about = format!("peer b {b}: certificate not valid for name \"{SERVER_NAME}\"");
    let case = "a peer's certificate lacks the verified name";
    let words = [&about, "cp-2.example", "(serving.certFile there)"];
    said.is(case, &[&words], &[]);
    pki.leaf("b-serving", "ca", &serving(&[SERVER_NAME]));
    eventually("B has its own again", LONG, named(SERVER_NAME)).await;

    cluster.b.set_ready(false);
    let not_ready = async || !cluster.proxy_b.is_ready().await;
    eventually("B's proxy knows that it is not ready", LONG, not_ready).await;
    let said = doctor(&dir, &config, &[]).await;
    let about = format!("peer b {b}: not ready");
    said.is("a peer is not ready", &[], &[&[&about]]);
    cluster.b.set_ready(true);
    let ready = async || cluster.proxy_b.is_ready().await;
    eventually("B's proxy knows that it is ready", LONG, ready).await;

    cluster.proxy_b.process().signal(Signal::Stop);
    let said = doctor(&dir, &config, &[]).await;
    cluster.proxy_b.process().signal(Signal::Cont);
    let about = format!("peer b {b}: no answer in time");
    said.is("a peer hangs", &[&[&about]], &[]);

    cluster.proxy_b.kill();
    let said = doctor(&dir, &config, &[]).await;
    let about = format!("peer b {b}: connection refused");
    said.is("a peer was killed", &[&[&about]], &[]);
}

/// `/readyz` says yes, at a time that is so many seconds from now.
fn at(seconds: i64) -> Option<Fault> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let then = i64::try_from(now.unwrap().as_secs()).unwrap() + seconds;
    let date = time::OffsetDateTime::from_unix_timestamp(then).unwrap();
    let (weekday, month) = (date.weekday().to_string(), date.month().to_string());
    let date = format!(
        "{}, {:02} {} {} {:02}:{:02}:{:02} GMT",
        &weekday[..3],
        date.day(),
        &month[..3],
        date.year(),
        date.hour(),
        date.minute(),
        date.second()
    );
    let scripted = ScriptedAnswer::new(200).header("date", &date).body("ok");
    Some(Fault::Answer(Box::new(scripted)))
}

#[tokio::test]
async fn clocks_that_are_off_are_told_with_whose_and_by_how_much() {
    let cluster = pair().await;
    let config = file_of(&cluster.proxy_a);
    let dir = cluster.ground.dir.path();
    // A proxy tells its own time, so it has to be one without.
    let native = cluster.ground.double(v1_20()).await;
    let entry = PeerEndpoint {
        server: "native".to_owned(),
        address: native.addr(),
    };
    let mut etcd = cluster.ground.etcd.client().await;
    let value = encode_endpoints(&entry, 1);
    etcd.put("/registry/peerserverleases/native", value, None)
        .await
        .unwrap();
    let said = doctor(dir, &config, &[]).await;
    said.is_healthy();
    let about = format!("peer native {}: ", native.addr());
    let without =
        format!("ok      {about}answers, and accepts this proxy's front-proxy credentials");
    assert!(said.all().contains(&without), "{}", said.all());
    native.set_fault("/readyz", at(20));
    let said = doctor(dir, &config, &[]).await;
    let about = format!("clock of {about}");
    said.is(
        "a peer's clock is ahead",
        &[],
        &[&[&about, " s ahead of this machine's"]],
    );
    native.set_fault("/readyz", None);

    cluster.a.set_fault("/readyz", at(-600));
    let said = doctor(dir, &config, &[]).await;
    let about = format!("clock of apiserver {}: ", cluster.a.addr());
    said.is(
        "the apiserver's clock is behind",
        &[&[&about, " s behind this machine's"]],
        &[],
    );
}

#[tokio::test]
async fn apiservers_without_a_proxy_are_named_with_whether_they_can_be_reached() {
    let cluster = pair().await;
    let config = file_of(&cluster.proxy_a);
    let dir = cluster.ground.dir.path();
    let mut bare = cluster.ground.double(v1_20()).await;
    let registry = Registry::new(cluster.ground.etcd.client().await, "/registry");
    for address in [cluster.proxy_a.addr(), cluster.proxy_b.addr(), bare.addr()] {
        registry.advertise(address).await;
    }
    let said = doctor(dir, &config, &[]).await;
    said.is_healthy();
    let about = format!("peer bare {}: ", bare.addr());
    let reached =
        format!("ok      {about}answers, and accepts this proxy's front-proxy credentials");
    assert!(said.all().contains(&reached), "{}", said.all());
    assert_eq!(said.all().matches("peer bare").count(), 1, "{}", said.all());

    bare.stop().await;
    let said = doctor(dir, &config, &[]).await;
    said.is(
        "a bare apiserver cannot be reached",
        &[],
        &[&[&about, "connection refused"]],
    );
    let ignored = [("rerouting.bareServers", "Ignore".to_owned())];
    doctor(dir, &config, &ignored).await.is_healthy();

    // A balancer before both proxies.
    let pki = &cluster.ground.pki;
    let proxies = [&cluster.proxy_a, &cluster.proxy_b];
    let servers = proxies.map(|proxy| (proxy.addr(), proxy.client(pki)));
    let balancer = Balancer::start(servers.into()).await;
    eventually("both are ready", LONG, async || balancer.ready() == 2).await;
    registry
        .delete(&registry.master_lease(bare.addr().ip()))
        .await;
    registry.advertise(balancer.addr()).await;
    let said = doctor(dir, &config, &[]).await;
    said.is_healthy();
    assert!(!said.all().contains("peer bare"), "{}", said.all());
}

#[tokio::test]
async fn an_apiserver_that_is_not_there_or_not_ready_is_told_so() {
    let mut cluster = pair().await;
    let config = file_of(&cluster.proxy_a);
    let dir = cluster.ground.dir.path().to_owned();
    let about = format!("apiserver {}: ", cluster.a.addr());
    let itself = "proxy here: a at ";
    cluster.a.set_ready(false);
    let not_ready = async || !cluster.proxy_a.is_ready().await;
    eventually("the proxy knows that it is not ready", LONG, not_ready).await;
    let said = doctor(&dir, &config, &[]).await;
    said.is(
        "the apiserver is not ready",
        &[&[
            &about,
            "not ready: /readyz says 500",
            "(poststarthook/rbac/bootstrap-roles)",
        ]],
        &[&[
            itself,
            "not ready: the last /readyz of the apiserver was not 200",
        ]],
    );

    cluster.a.stop().await;
    let gone = async || cluster.proxy_a.statusz().await["server"]["initialized"] == false;
    eventually("the proxy knows that it is gone", LONG, gone).await;
    let said = doctor(&dir, &config, &[]).await;
    said.is(
        "the apiserver is down",
        &[&[&about, "connection refused"]],
        &[&[itself, "not ready: "]],
    );
}

#[tokio::test]
async fn two_live_proxies_with_one_id_and_hostile_values_are_told() {
    let cluster = pair().await;
    let config = file_of(&cluster.proxy_a);
    let dir = cluster.ground.dir.path();
    let twin = Proxy::start(
        cluster
            .ground
            .proxy("b", cluster.a.addr())
            .until(Until::Ready),
    )
    .await;
    let claims = "/kube-interop-proxy/registry/claims/";
    let claimed = async || cluster.ground.etcd.below(claims).await.len() == 1;
    eventually("the twin says that it wants the ID", LONG, claimed).await;
    let said = doctor(dir, &config, &[]).await;
    let wants = format!("server ID b: the proxy at {} claims it", twin.addr());
    said.is("two live proxies with one ID", &[&[&wants]], &[]);
    drop(twin);

    // Keys and values can be anything.
    let nobody = Loopback::new().socket(6443);
    let live = "/kube-interop-proxy/registry/live/";
    let value = format!("{{\"endpoint\":\"{nobody}\",\"initialized\":true}}");
    let mut etcd = cluster.ground.etcd.client().await;
    etcd.put(
        format!("{live}evil\u{1b}[2J\nok      all is well"),
        value,
        None,
    )
    .await
    .unwrap();
    etcd.put(format!("{live}torn"), "{", None).await.unwrap();
    eventually("the twin's claim is over", LONG, async || !claimed().await).await;
    let said = doctor(dir, &config, &[]).await;
    said.is(
        "hostile keys",
        &[&[
            "peer evil\\u{1b}[2J\\nok      all is well ",
            "connection refused",
        ]],
        &[],
    );
    let text = said.all();
    assert!(
        text.chars().all(|c| c == '\n' || !c.is_control()),
        "{text:?}"
    );
}

/// Takes connections and never answers.
async fn hanging() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut taken = Vec::new();
        while let Ok((tcp, _)) = listener.accept().await {
            taken.push(tcp);
        }
    });
    address
}

#[tokio::test]
async fn where_nothing_answers_each_is_told_and_the_end_comes_soon() {
    let ground = ground().await;
    let [etcd, apiserver, admin, here] = [
        hanging().await,
        hanging().await,
        hanging().await,
        hanging().await,
    ];
    let config = ground.proxy("a", apiserver).config(&Loopback::new());
    let changes = [
        ("etcd.endpoints", format!("[https://{etcd}]")),
        ("admin.bindAddress", format!("\"{admin}\"")),
        ("serving.bindAddress", format!("\"{here}\"")),
        ("peer.advertiseAddress", format!("\"{here}\"")),
    ];
    let said = doctor(ground.dir.path(), &config, &changes).await;
    let [etcd, apiserver, admin, here] = [
        format!("etcd https://{etcd}: no answer in time"),
        format!("apiserver {apiserver}: no answer in time"),
        format!(
            "admin.bindAddress {admin}: taken by something that is not this program: no answer"
        ),
        format!("serving.bindAddress {here}: no answer in time"),
    ];
    said.is(
        "nothing answers",
        &[&[&etcd], &[&apiserver], &[&admin], &[&here]],
        &[],
    );
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_one_problem() {
    let dir = tempfile::tempdir().unwrap();
    let said = doctor(dir.path(), &serde_yaml::Value::Null, &[]).await;
    said.is(
        "an empty file",
        &[&["configuration ", "the file is empty"]],
        &[],
    );
}
