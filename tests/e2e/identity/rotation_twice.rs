//! Replaces all certificates twice while the cluster is in use, like operators: first new CAs beside the old ones,
//! then all leaf certificates, then the old CAs are removed.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use x509_parser::prelude::{FromDer as _, X509Certificate};

use testkit::client::Client;
use testkit::cluster::{Cluster, Ground, HPAS, LONG, REROUTED};
use testkit::double::v1_20;
use testkit::pki::{LeafOptions, Pki, SERVER_NAME};
use testkit::proxy::Proxy;
use testkit::steady::Steady;
use testkit::streaming::Streaming;
use testkit::tls::certificates;
use testkit::upgraded::Upgraded;
use testkit::wait::eventually;

const PODS: &str = "/api/v1/pods";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const EXEC: &str = "/api/v1/namespaces/default/pods/x/exec";
const EXPIRATION: &str = "kube_interop_proxy_certificate_expiration_timestamp_seconds";
const LOADED: &str = "kube_interop_proxy_certificates_loaded_total";
const DRAIN: Duration = Duration::from_secs(3);
const HOUR: Duration = Duration::from_secs(3600);

/// File of a bundle, and who is in it.
struct Bundle {
    file: &'static str,
    cas: Vec<String>,
}

/// Requests a second; 2,000 is for a machine of its own.
fn rate() -> f64 {
    std::env::var("ROTATION_RATE").map_or(200.0, |rate| rate.parse().expect("a number"))
}

/// The administrator with the certificate of the moment, over connections that some tasks share.
#[derive(Clone)]
struct Admins(Arc<Mutex<Vec<Client>>>);

impl Admins {
    fn of(proxy: &Proxy, pki: &Pki, count: usize) -> Self {
        let admin = proxy.client(pki).cert("admin");
        Self(Arc::new(Mutex::new(
            (0..count).map(|_| admin.fresh()).collect(),
        )))
    }

    fn get(&self, index: usize) -> Client {
        self.0.lock().unwrap()[index].clone()
    }

    /// From the next request on, with the files of this moment.
    fn renew(&self) {
        for client in &mut *self.0.lock().unwrap() {
            *client = client.fresh();
        }
    }
}

/// What is asked all the time: local reads and writes, over HTTP/2 and HTTP/1.1, and reads that are rerouted.
fn load(cluster: &Cluster, admins: &Admins) -> Vec<Steady> {
    const TASKS: usize = 40;
    const MOST: usize = 1_000_000;
    let pause = Duration::from_secs_f64(TASKS as f64 / rate());
    let bearer = cluster.client().token("tok-admin");
    (0..TASKS)
        .map(|task| {
            let (admins, bearer) = (admins.clone(), bearer.fresh());
            let mut number = 0;
            Steady::start(&format!("task {task}"), pause, MOST, move || {
                number += 1;
                let (admin, bearer) = (admins.get(task / 4), bearer.clone());
                let body = serde_json::json!({"metadata": {"name": format!("of-{task}-{number}")}});
                async move {
                    let (wanted, answer) = match task % 4 {
                        0 => (200, admin.try_get(PODS).await),
                        1 => (200, admin.try_get(HPAS).await),
                        2 => {
                            let body = body.to_string();
                            (201, admin.try_request("POST", CONFIG_MAPS, body).await)
                        }
                        _ => (200, bearer.try_get(PODS).await),
                    };
                    match answer {
                        Ok(answer) if answer.code() == wanted => Ok(()),
                        Ok(answer) => Err(format!("{}: {}", answer.code(), answer.text())),
                        Err(error) => Err(format!("{error:#}")),
                    }
                }
            })
        })
        .collect()
}

/// The first end in a file of certificates, in Unix seconds.
fn first_end(pki: &Pki, file: &str) -> f64 {
    let ends = certificates(&pki.path(file)).into_iter().map(|der| {
        let (_, certificate) = X509Certificate::from_der(&der).unwrap();
        certificate.validity().not_after.timestamp()
    });
    ends.min().unwrap() as f64
}

/// Waits until both proxies use what is in these files.
async fn in_use(cluster: &Cluster, files: &[(&str, &str)]) {
    for proxy in [&cluster.proxy_a, &cluster.proxy_b] {
        for (key, file) in files {
            let end = first_end(&cluster.ground.pki, file);
            let what = format!("{key} is in use");
            eventually(&what, LONG, async || {
                let seen = proxy.metric(EXPIRATION, &[("file", key)]).await;
                if seen == end {
                    Ok(())
                } else {
                    Err(format!("{seen} and not {end}"))
                }
            })
            .await;
        }
    }
}

/// Long-running requests, each of which stands on something else.
struct LongRunning {
    local: Streaming,
    rerouted: Streaming,
    bearer: Streaming,
    exec: Upgraded,
}

impl LongRunning {
    async fn open(cluster: &Cluster) -> Self {
        let (admin, watch) = (cluster.client().cert("admin"), "?watch=1");
        let bearer = cluster.client().token("tok-admin");
        let post = format!(
            "POST {EXEC} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n"
        );
        let opened = Self {
            local: admin.open(&format!("{PODS}{watch}")).await,
            rerouted: admin.open(&format!("{HPAS}{watch}")).await,
            bearer: bearer.open(&format!("{PODS}{watch}")).await,
            exec: Upgraded::open(&admin, &post, b"").await.unwrap(),
        };
        for stream in [&opened.local, &opened.rerouted, &opened.bearer] {
            assert_eq!(stream.status, 200);
        }
        opened
    }

    async fn assert_quiet(&mut self) {
        for stream in [&mut self.local, &mut self.rerouted, &mut self.bearer] {
            assert!(stream.is_quiet(Duration::from_millis(500)).await);
        }
        self.exec.send(b"still here").await.unwrap();
        self.exec.expect(b"still here").await.unwrap();
    }
}

/// What was said and done before the clean end of a watch.
async fn ends_cleanly(what: &str, mut stream: Streaming) {
    let end = Instant::now() + LONG;
    while let Some(_event) = stream
        .next_chunk(end.saturating_duration_since(Instant::now()))
        .await
        .unwrap_or_else(|error| panic!("{what}: {error:#}"))
    {}
}

async fn all_end_cleanly(running: LongRunning, with_bearer: bool) -> Option<Streaming> {
    let LongRunning {
        local,
        rerouted,
        mut bearer,
        exec,
    } = running;
    let upgraded = async {
        let ended = tokio::time::timeout(LONG, exec.count()).await;
        ended.expect("exec ends").expect("exec ends cleanly");
    };
    tokio::join!(
        ends_cleanly("local", local),
        ends_cleanly("rerouted", rerouted),
        upgraded
    );
    if with_bearer {
        ends_cleanly("bearer", bearer).await;
        return None;
    }
    assert!(bearer.is_quiet(Duration::from_millis(500)).await);
    Some(bearer)
}

/// Everybody's certificates, from the newest CAs; each time they end at another moment.
fn issue(cluster: &Cluster, round: u64, bundles: &[Bundle; 3]) {
    let [ca, front_proxy, etcd] = bundles.each_ref().map(|bundle| bundle.cas.last().unwrap());
    let pki = &cluster.ground.pki;
    let life = 10 * HOUR - Duration::from_secs(60 * round);
    let client = |cn| LeafOptions::client(cn).for_another(life);
    let names = [SERVER_NAME, "localhost", "127.0.0.1"];
    let server = LeafOptions::server("kube-apiserver", &names).for_another(life);
    pki.leaf("apiserver", ca, &server);
    let admin = client("kubernetes-admin").org("system:masters");
    pki.leaf("admin", ca, &admin);
    pki.leaf(
        "front-proxy-client",
        front_proxy,
        &client("front-proxy-client"),
    );
    pki.leaf("etcd-client", etcd, &client("etcd-client"));
    let address = cluster.ground.etcd.addr().ip();
    let member = LeafOptions::server("etcd-server", &["localhost"]).san(address);
    pki.leaf(&format!("etcd-{address}"), etcd, &member.for_another(life));
}

async fn reload_servers(cluster: &mut Cluster) {
    for double in [&cluster.a, &cluster.b] {
        double.reload_certificates();
        // Nobody looks at what arrived so far.
        double.take_requests();
    }
    // It reads certificates at each handshake, but CAs only at its start.
    cluster.ground.etcd.restart().await;
}

const CERTIFICATES: [(&str, &str); 3] = [
    ("serving.certFile", "apiserver.crt"),
    ("apiServer.proxyClientCertFile", "front-proxy-client.crt"),
    ("etcd.certFile", "etcd-client.crt"),
];
const BUNDLES: [(&str, &str); 5] = [
    ("serving.clientCAFile", "ca.crt"),
    ("serving.requestHeaderClientCAFile", "front-proxy-ca.crt"),
    ("apiServer.caFile", "ca.crt"),
    ("peer.caFile", "ca.crt"),
    ("etcd.caFile", "etcd-ca.crt"),
];

async fn rotate(cluster: &mut Cluster, admins: &Admins, bundles: &mut [Bundle; 3], round: u64) {
    let mut running = LongRunning::open(cluster).await;

    // New CAs beside the old ones: nothing ends.
    for bundle in &mut *bundles {
        let name = format!("{}-{round}", bundle.file);
        let like = LeafOptions::client(&name).for_another(20 * HOUR - HOUR * (round as u32));
        cluster.ground.pki.add_ca_like(&name, &like);
        bundle.cas.push(name);
        cluster.ground.pki.bundle(bundle.file, &bundle.cas);
    }
    in_use(cluster, &BUNDLES).await;
    reload_servers(cluster).await;
    running.assert_quiet().await;

    // New certificates: what the proxy client certificate was presented for ends.
    let old_admin = cluster.client().cert("admin");
    assert_eq!(old_admin.get(PODS).await.code(), 200);
    issue(cluster, round, bundles);
    for double in [&cluster.a, &cluster.b] {
        double.reload_certificates();
    }
    in_use(cluster, &CERTIFICATES).await;
    let bearer = all_end_cleanly(running, false).await.unwrap();
    admins.renew();
    let old = old_admin.open(&format!("{PODS}?watch=1")).await;
    let running = LongRunning::open(cluster).await;

    // The old CAs go, and with them what was connected while they were trusted, and who has only their certificates.
    let before = loads(cluster).await;
    for bundle in &mut *bundles {
        bundle.cas.remove(0);
        cluster.ground.pki.bundle(bundle.file, &bundle.cas);
    }
    eventually("the old CAs are gone", LONG, async || {
        let now = loads(cluster).await;
        now.iter().zip(&before).all(|(now, before)| now > before)
    })
    .await;
    eventually("the old certificate counts no more", LONG, async || {
        old_admin.get(PODS).await.code() == 401
    })
    .await;
    reload_servers(cluster).await;
    tokio::join!(
        ends_cleanly("old certificate", old),
        ends_cleanly("old CA", bearer),
        async {
            assert!(all_end_cleanly(running, true).await.is_none());
        }
    );
    is_followed(cluster, round).await;
}

async fn loads(cluster: &Cluster) -> Vec<f64> {
    let mut all = Vec::new();
    for proxy in [&cluster.proxy_a, &cluster.proxy_b] {
        for group in ["serving", "upstream", "etcd"] {
            all.push(proxy.metric(LOADED, &[("files", group)]).await);
        }
    }
    all
}

/// etcd is followed and written to, with the new certificates only: what B serves now is known to A.
async fn is_followed(cluster: &Cluster, round: u64) {
    let group = format!("round-{round}.example");
    let new = testkit::double::ServedResource::new(&group, "v1", "things", "Thing");
    cluster.b.add_resource(new);
    cluster.until_a_knows("b", &group).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_certificates_are_replaced_twice_and_no_request_fails() {
    let drain = format!("{}s", DRAIN.as_secs());
    let change = |_: &str, options: testkit::proxy::ProxyOptions| {
        options
            .set("shutdown.drain", &drain)
            .set("peer.leaseTTL", "10s")
    };
    let mut cluster = Cluster::on(Ground::new().await, v1_20(), change).await;
    let mut bundles = ["ca", "front-proxy-ca", "etcd-ca"].map(|name| {
        // The name of a bundle's file does not change, what is in it does.
        let first = format!("{name}-0");
        let pki = &cluster.ground.pki;
        std::fs::copy(
            pki.path(&format!("{name}.crt")),
            pki.path(&format!("{first}.crt")),
        )
        .unwrap();
        let file = match name {
            "ca" => "ca.crt",
            "front-proxy-ca" => "front-proxy-ca.crt",
            _ => "etcd-ca.crt",
        };
        Bundle {
            file,
            cas: vec![first],
        }
    });
    let lists = async |cluster: &Cluster| {
        let mut lists = Vec::new();
        for proxy in [&cluster.proxy_a, &cluster.proxy_b] {
            lists.push(
                proxy
                    .metric("kube_interop_proxy_etcd_lists_total", &[])
                    .await,
            );
        }
        lists
    };
    let before = lists(&cluster).await;
    let admins = Admins::of(&cluster.proxy_a, &cluster.ground.pki, 10);
    let (load, started) = (load(&cluster, &admins), Instant::now());
    for round in 1..=2 {
        rotate(&mut cluster, &admins, &mut bundles, round).await;
    }
    let mut count = 0;
    for task in load {
        count += task.stop().await;
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{count} requests in {seconds:.0} s, {:.0} a second",
        count as f64 / seconds
    );
    assert_eq!(lists(&cluster).await, before, "etcd was listed again");
    for proxy in [&cluster.proxy_a, &cluster.proxy_b] {
        let failovers = "kube_interop_proxy_failovers_total";
        assert_eq!(proxy.metric(failovers, &[]).await, 0.0);
        let broken = "kube_interop_proxy_certificates_broken";
        assert_eq!(proxy.metric(broken, &[]).await, 0.0);
        assert!(proxy.is_ready().await);
    }
    // Only what A does not serve went to B.
    assert_eq!(cluster.b.count(PODS), 0);
    let elsewhere = cluster.proxy_a.metric(REROUTED, &[]).await;
    let hpas = cluster
        .proxy_a
        .metric(REROUTED, &[("resource", "horizontalpodautoscalers")])
        .await;
    assert_eq!(elsewhere, hpas);
}
