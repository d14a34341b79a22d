//! Leases in kube-system by users who may create Leases there, and the log of what they write.

use std::fs::File;
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use testkit::client::Client;
use testkit::cluster::{Ground, LONG};
use testkit::double::v1_20;
use testkit::kube::KubeApiServer;
use testkit::process::Signal;
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::registry::Registry;
use testkit::wait::eventually;

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const UNDECODABLE: &str = "kube_interop_proxy_etcd_undecodable_total";
const DROPPED: &str = "kube_interop_proxy_dropped_log_lines_total";
const WARNING: &str = "value cannot be decoded";
const REVISION: &str = "kube_interop_proxy_etcd_revision";
/// Of a holder.
const SIZE: usize = 1_000_000;
/// A day of the year 10000 in UTC.
const STRANGE_TIME: &str = "9999-12-31T23:59:59.000000-12:00";

/// A kube-apiserver whose namespace kube-system is there.
async fn apiserver() -> (Ground, KubeApiServer) {
    let ground = Ground::bootstrapped().await;
    let options = ground.kube("cp-a");
    let api = KubeApiServer::start(options, &ground.pki).await;
    let admin = api.admin();
    eventually("the namespace kube-system is there", LONG, async || {
        let answer = admin.get("/api/v1/namespaces/kube-system").await;
        answer.code() == 200
    })
    .await;
    (ground, api)
}

/// etcd is slow while much is written.
fn proxy_options(ground: &Ground, api: &KubeApiServer, id: &str) -> ProxyOptions {
    let options = ground.proxy(id, api.addr());
    let options = options.set("identity.publishLease", "Never");
    options.set("peer.leaseTTL", "60s").until(Until::Ready)
}

/// Creates an apiserver's Lease (`POST`), or changes it (`PATCH`).
async fn write(api: &KubeApiServer, verb: &str, name: &str, spec: Value) {
    let labels = json!({"apiserver.kubernetes.io/identity": "kube-apiserver"});
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "labels": labels}, "spec": spec});
    let (path, content_type, code) = match verb {
        "POST" => (PATH.to_owned(), "application/json", 201),
        _ => (
            format!("{PATH}/{name}"),
            "application/merge-patch+json",
            200,
        ),
    };
    let admin = api.admin().header("content-type", content_type);
    let answer = admin.request(verb, &path, lease.to_string()).await;
    assert_eq!(answer.code(), code, "{}", answer.text());
}

/// Puts the Lease `a000`, as the apiserver wrote it, into etcd under other numbers too: for each of them the apiserver
/// would have much to do. No faster than the proxy reads them.
async fn copy(ground: &Ground, numbers: Range<usize>, proxy: &Proxy) {
    let registry = Registry::new(ground.etcd.client().await, "/registry");
    let value = registry.get(&key("a000")).await.expect("a Lease");
    let mut parts = value.windows(4);
    // Its name comes first.
    let at = parts.position(|part| part == b"a000").unwrap();
    for number in numbers {
        let (name, mut copy) = (format!("a{number:03}"), value.clone());
        copy[at..at + 4].copy_from_slice(name.as_bytes());
        let revision = registry.put_bytes(&key(&name), &copy).await as f64;
        if number % 4 == 0 {
            let read = |seen| seen >= revision;
            proxy.until_metric(REVISION, &[], read).await;
        }
    }
}

/// Of a Lease in etcd.
fn key(name: &str) -> String {
    format!("/registry/leases/kube-system/{name}")
}

fn resident(proxy: &mut Proxy) -> usize {
    proxy.process().memory().unwrap() >> 10
}

/// Most MiB since it was last forgotten.
fn peak(proxy: &mut Proxy) -> usize {
    proxy.process().peak_memory().unwrap() >> 10
}

/// How many of the Leases a proxy knows.
async fn known(proxy: &Proxy) -> Vec<Value> {
    let status = proxy.statusz().await;
    status["facts"]["leases"].as_array().unwrap().clone()
}

async fn until_known(proxy: &Proxy, begin: char, count: usize) {
    let what = format!("{count} Leases are known");
    eventually(&what, LONG, async || {
        let leases = known(proxy).await;
        let holder = |lease: &&Value| lease["holder"].as_str().unwrap().starts_with(begin);
        let found = leases.iter().filter(holder).count();
        (found == count).then_some(()).ok_or(found)
    })
    .await;
}

#[tokio::test]
async fn leases_as_large_as_the_api_takes_cost_what_is_kept_of_them() {
    const LEASES: usize = 80;
    let (ground, api) = apiserver().await;
    let mut proxy = Proxy::start(proxy_options(&ground, &api, "a")).await;
    known(&proxy).await;
    let before = resident(&mut proxy);
    proxy.process().forget_peak();
    for (verb, letter) in [("POST", 'x'), ("PATCH", 'y')] {
        let spec = json!({"holderIdentity": letter.to_string().repeat(SIZE)});
        write(&api, verb, "a000", spec).await;
        copy(&ground, 1..LEASES, &proxy).await;
        until_known(&proxy, letter, LEASES).await;
    }
    let peak_of_changes = peak(&mut proxy);
    assert!(
        peak_of_changes < before + 48,
        "{before} {peak_of_changes} MiB"
    );
    eventually("the memory is given back", LONG, async || {
        let now = proxy.process().memory().unwrap() >> 10;
        (now < before + 12)
            .then_some(())
            .ok_or(format!("{before} {now} MiB"))
    })
    .await;
    let longest = known(&proxy).await;
    let longest = longest
        .iter()
        .map(|lease| lease["holder"].as_str().unwrap().len());
    assert_eq!(longest.max(), Some(96));

    // A proxy that starts reads all of them at once.
    let mut late = Proxy::start(proxy_options(&ground, &api, "b")).await;
    until_known(&late, 'y', LEASES).await;
    let peak_of_list = peak(&mut late);
    assert!(peak_of_list < before + 64, "{before} {peak_of_list} MiB");
    assert_eq!(late.metric(UNDECODABLE, &[]).await, 0.0);
}

/// Writes an apiserver's Lease straight into etcd.
async fn put(registry: &Registry, name: &str, holder: &str) {
    let labels = json!({"apiserver.kubernetes.io/identity": "kube-apiserver"});
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"labels": labels}, "spec": {"holderIdentity": holder}});
    registry.put(&key(name), &lease.to_string()).await;
}

#[tokio::test]
async fn large_values_are_read_in_parts_in_a_list_and_in_a_catch_up() {
    const LARGE: usize = 40;
    let ground = Ground::new().await;
    let registry = Registry::new(ground.etcd.client().await, "/registry");
    // So many small ones that large pages are asked for when the large ones come.
    for number in 0..340 {
        put(&registry, &format!("a{number:03}"), "small").await;
    }
    let large = |letter: char| letter.to_string().repeat(SIZE);
    for number in 0..LARGE {
        put(&registry, &format!("b{number:03}"), &large('x')).await;
    }
    let double = ground.double(v1_20()).await;
    let options = ground.proxy("a", double.addr()).set("peer.leaseTTL", "60s");
    let mut proxy = Proxy::start(options.until(Until::Ready)).await;
    until_known(&proxy, 's', 340).await;
    until_known(&proxy, 'x', LARGE).await;
    let lists = proxy
        .metric("kube_interop_proxy_etcd_lists_total", &[])
        .await;
    let peak_of_list = peak(&mut proxy);
    assert!(peak_of_list < 96, "{peak_of_list} MiB");

    proxy.process().forget_peak();
    proxy.process().signal(Signal::Stop);
    for letter in ['y', 'z'] {
        for number in 0..LARGE {
            put(&registry, &format!("b{number:03}"), &large(letter)).await;
        }
    }
    proxy.process().signal(Signal::Cont);
    until_known(&proxy, 'z', LARGE).await;
    let peak_of_changes = peak(&mut proxy);
    assert!(peak_of_changes < 96, "{peak_of_changes} MiB");
    let now = proxy
        .metric("kube_interop_proxy_etcd_lists_total", &[])
        .await;
    assert_eq!(now, lists, "nothing was listed again");
}

/// A pipe with a name that is full, and stays so while it is held.
fn full_pipe(path: &Path) -> File {
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
    // With both ends open nobody waits for the other one.
    let mut pipe = File::options().read(true).write(true).open(path).unwrap();
    pipe.write_all(&[b'\n'; 64 << 10]).unwrap();
    pipe
}

/// All pages and a request that is logged, a few times.
async fn assert_all_answer(proxy: &Proxy, client: &Client) {
    for _ in 0..3 {
        for page in ["/livez", "/readyz", "/metrics", "/statusz"] {
            assert_eq!(proxy.admin_get(page).await.code(), 200, "{page}");
        }
        assert_eq!(client.get("/version").await.code(), 200);
    }
}

/// Creates Leases that cannot be decoded.
async fn write_strange(api: &KubeApiServer, count: usize) {
    for number in 0..count {
        let spec = json!({"holderIdentity": "x", "renewTime": STRANGE_TIME});
        write(api, "POST", &format!("a{number:03}"), spec).await;
    }
}

const STRANGE: usize = 600;

async fn until_all_are_counted(proxy: &Proxy) {
    let all = |count: f64| count == STRANGE as f64;
    proxy.until_metric(UNDECODABLE, &[], all).await;
}

/// It takes 4 MiB: long lines, then short ones for what is left.
async fn ask_for_more_lines_than_the_queue_takes(client: &Client) {
    let long = format!("/version/{}", "x".repeat(4_000));
    let mut many = JoinSet::new();
    for _ in 0..10 {
        let (client, long) = (client.fresh(), long.clone());
        many.spawn(async move {
            for (path, count, code) in [(long.as_str(), 150, 404), ("/version", 20, 200)] {
                for _ in 0..count {
                    assert_eq!(client.get(path).await.code(), code);
                }
            }
        });
    }
    many.join_all().await;
}

#[tokio::test]
async fn values_that_cannot_be_decoded_fill_no_log_and_a_reader_that_hangs_stops_nothing() {
    let (ground, api) = apiserver().await;
    values_that_cannot_be_decoded_are_logged_once_a_minute(&ground, &api).await;
    a_log_whose_reader_hangs_stops_nothing(&ground, &api).await;
}

async fn values_that_cannot_be_decoded_are_logged_once_a_minute(
    ground: &Ground,
    api: &KubeApiServer,
) {
    let began = Instant::now();
    let mut proxy = Proxy::start(proxy_options(ground, api, "a")).await;
    write_strange(api, STRANGE).await;
    until_all_are_counted(&proxy).await;
    let log = std::fs::read_to_string(proxy.process().log()).unwrap();
    let lines = log.lines().filter(|line| line.contains(WARNING)).count();
    let most = 1 + usize::try_from(began.elapsed().as_secs() / 60).unwrap();
    assert!((1..=most).contains(&lines), "{lines} of {most}");
    let named = &proxy.statusz().await["facts"]["undecodable"];
    assert_eq!(
        named.as_array().unwrap().len(),
        100,
        "the others are counted"
    );
    assert_eq!(proxy.metric(DROPPED, &[]).await, 0.0);
    assert!(proxy.terminate().await.success());
}

/// Where there are the values that cannot be decoded.
async fn a_log_whose_reader_hangs_stops_nothing(ground: &Ground, api: &KubeApiServer) {
    let path = ground.dir.path().join("log");
    let pipe = full_pipe(&path);
    let shell = format!("exec \"$@\" 2>'{}'", path.display());
    let hanging = proxy_options(ground, api, "b").set("logging.filter", "info,access=info");
    let hanging = hanging.run_by(["sh", "-c", &shell, "sh"].map(str::to_owned).to_vec());
    let mut proxy = Proxy::start(hanging).await;
    until_all_are_counted(&proxy).await;
    let client = proxy.client(&ground.pki).cert("admin");
    assert_all_answer(&proxy, &client).await;
    ask_for_more_lines_than_the_queue_takes(&client).await;
    proxy.until_metric(DROPPED, &[], |count| count > 0.0).await;
    let dropped = proxy.metric(DROPPED, &[]).await;
    assert_all_answer(&proxy, &client).await;
    let later = move |count| count > dropped;
    proxy.until_metric(DROPPED, &[], later).await;
    // What follows etcd goes on too.
    write(api, "POST", "b", json!({"holderIdentity": "y"})).await;
    until_known(&proxy, 'y', 1).await;

    proxy.process().signal(Signal::Term);
    assert!(proxy.process().wait(LONG).await.success());
    drop(pipe);
}
