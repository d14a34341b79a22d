//! Servers that are stopped (SIGSTOP): alive on TCP, and nothing comes from them. Real kube-apiservers v1.20.2, two of
//! three with autoscaling, which are busy and die, too; and doubles.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::load;
use super::peers::Three;
use crate::routing::real_apiservers::{LONGER, without_autoscaling};
use testkit::addr::Loopback;
use testkit::client::Client;
use testkit::cluster::{Ground, HPAS_IN_DEFAULT, LONG, lists, patient};
use testkit::cut::Cut;
use testkit::double::{Fault, ScriptedAnswer, v1_20};
use testkit::kube::{self, KubeApiServer, Need};
use testkit::process::Signal;
use testkit::proxy::{Proxy, Until};
use testkit::streaming::Streaming;
use testkit::wait::eventually;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// 0.8 s until the server is asked, 1 s for its answer, and a busy machine. Without suspicion it would be 10 s or more.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// Until requests go again to who is frozen no longer: it is asked every half second. Else that could last until its
/// connections break off, 40 s.
const BACK: Duration = Duration::from_secs(20);
const FAILOVERS: &str = "kube_interop_proxy_failovers_total";
const READERS: usize = 8;

impl Three<KubeApiServer> {
    async fn real() -> Self {
        let ground = Ground::bootstrapped().await;
        let start = |options| KubeApiServer::start(options, &ground.pki);
        let b = start(ground.kube("cp-b")).await;
        let c = start(ground.kube("cp-c")).await;
        let a = start(without_autoscaling(ground.kube("cp-a"))).await;
        let addrs = [a.addr(), b.addr(), c.addr()];
        let three = Self::with_proxies(ground, [a, b, c], addrs, |options| options).await;
        three.until_a_knows_both().await;
        three
    }

    /// The administrator, on a connection of its own.
    fn patient_admin(&self) -> Client {
        self.admin().http2().timeout(LONGER)
    }

    /// Clients of which some are rerouted to each peer, connected.
    async fn readers(&self, path: &str) -> Vec<Client> {
        let readers: Vec<_> = (0..READERS).map(|_| self.patient_admin()).collect();
        for reader in &readers {
            assert_eq!(reader.get(path).await.code(), 200);
        }
        readers
    }

    /// Nobody waits long once, and then nobody asks who is frozen.
    async fn nobody_waits(&self, what: &str, path: &str, readers: &[Client]) {
        let first = longest(path, readers).await;
        let moved = self.moved().await;
        let later = longest(path, readers).await;
        println!("{what}: {path}: at first {first:?}, later {later:?}");
        assert!(first < LONGEST_WAIT, "{what}: {first:?}");
        assert!(later < LONGEST_WAIT, "{what}: {later:?}");
        // Who asked it would wait, and be moved then.
        assert_eq!(self.moved().await, moved, "{what}: asked again");
    }

    /// Until A's proxy would ask both others, neither of them last.
    async fn until_all_are_back(&self, patience: Duration) {
        eventually("both others are back", patience, async || {
            let status = self.proxies[0].statusz().await;
            let peers = status["peers"].as_array().unwrap().iter();
            let back = |it: &&Value| it["target"] == true && it["unhealthy"] == false;
            peers.filter(back).count() == 2
        })
        .await;
    }

    /// Until A's apiserver answers its proxy's clients.
    async fn until_local_serves(&self, patience: Duration) {
        let admin = self.patient_admin();
        eventually("the local apiserver serves again", patience, async || {
            let before = self.served_locally().await;
            admin.get(CONFIG_MAPS).await;
            self.served_locally().await > before
        })
        .await;
    }

    /// Requests that A's proxy sent elsewhere: nothing came from a server, or nothing from the apiserver of a peer's proxy.
    async fn moved(&self) -> f64 {
        self.failovers("frozen").await + self.failovers("not_executed").await
    }

    async fn served_locally(&self) -> f64 {
        let labels = [
            ("decision", "local"),
            ("code", "200"),
            ("verb_class", "list"),
        ];
        let name = "kube_interop_proxy_requests_total";
        self.proxies[0].metric(name, &labels).await
    }
}

/// The longest of one read by each of the readers at the same time. All are answered.
async fn longest(path: &str, readers: &[Client]) -> Duration {
    let reads = readers.iter().map(|reader| {
        let (reader, path) = (reader.clone(), path.to_owned());
        tokio::spawn(async move {
            let begun = Instant::now();
            let answer = reader.get(&path).await;
            assert_eq!(answer.code(), 200, "{}", answer.text());
            begun.elapsed()
        })
    });
    let mut longest = Duration::ZERO;
    for read in reads.collect::<Vec<_>>() {
        longest = longest.max(read.await.unwrap());
    }
    longest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_do_not_notice_servers_that_freeze_or_are_busy_or_die() {
    let mut three = Three::real().await;
    reads_do_not_wait_for_who_is_frozen(&mut three).await;
    three.until_local_serves(LONGER).await;
    three.until_all_are_back(LONGER).await;
    a_busy_apiserver_loses_no_watch_and_no_write_and_gives_no_error(&three).await;
    if kube::lacks_for_a_part(&[Need::Reads("horizontalpodautoscalers")]) {
        return;
    }
    three.until_all_are_back(LONGER).await;
    load::a_server_and_its_proxy_die(&mut three).await;
}

async fn reads_do_not_wait_for_who_is_frozen(three: &mut Three<KubeApiServer>) {
    a_local_apiserver(three).await;
    a_peer(three).await;
    all_of_them(three).await;
}

async fn a_local_apiserver(three: &mut Three<KubeApiServer>) {
    let readers = three.readers(CONFIG_MAPS).await;
    let admin = three.patient_admin();
    let mut watch = admin.open(&format!("{CONFIG_MAPS}?watch=true")).await;
    let writing = admin.clone();

    let frozen = Instant::now();
    three.servers[0].process().signal(Signal::Stop);
    let write = tokio::spawn(async move {
        let object = json!({"metadata": {"generateName": "written-"}}).to_string();
        writing.request("POST", CONFIG_MAPS, object).await
    });
    three.nobody_waits("local", CONFIG_MAPS, &readers).await;
    let moved = three.failovers("frozen").await;
    assert!(moved >= 1.0);
    assert!(!write.is_finished(), "a write that was sent stays");
    let later = r#"{"metadata": {"name": "later"}}"#;
    let rerouted = admin.fresh().request("POST", CONFIG_MAPS, later).await;
    assert_eq!(rerouted.code(), 201, "a new one goes elsewhere");
    assert_eq!(three.failovers("frozen").await, moved, "it has not waited");
    assert!(frozen.elapsed() < Duration::from_secs(10));
    three.servers[0].process().signal(Signal::Cont);

    let answer = write.await.unwrap();
    assert_eq!(answer.code(), 201, "{}", answer.text());
    let list = admin.get(CONFIG_MAPS).await.json();
    let items = list["items"].as_array().unwrap();
    let name = |it: &Value| it["metadata"]["name"].as_str().unwrap().to_owned();
    let written = items.iter().map(name);
    assert_eq!(written.filter(|it| it.starts_with("written-")).count(), 1);
    three.until_local_serves(BACK).await;
    // The watch has lived through it.
    loop {
        let event = watch.next_event(LONGER).await.unwrap().unwrap();
        if event["object"]["metadata"]["name"] == "later" {
            break;
        }
    }
}

async fn a_peer(three: &mut Three<KubeApiServer>) {
    let readers = three.readers(HPAS_IN_DEFAULT).await;
    three.servers[1].process().signal(Signal::Stop);
    three
        .nobody_waits("a peer's apiserver", HPAS_IN_DEFAULT, &readers)
        .await;
    three.servers[1].process().signal(Signal::Cont);
    three.until_all_are_back(BACK).await;

    three.proxies[2].process().signal(Signal::Stop);
    three
        .nobody_waits("a peer's proxy", HPAS_IN_DEFAULT, &readers)
        .await;
    three.proxies[2].process().signal(Signal::Cont);
    three.until_all_are_back(BACK).await;
}

/// Then it is as if none were.
async fn all_of_them(three: &mut Three<KubeApiServer>) {
    let readers = three.readers(CONFIG_MAPS).await;
    for server in &mut three.servers {
        server.process().signal(Signal::Stop);
    }
    let reading = tokio::spawn(async move { longest(CONFIG_MAPS, &readers).await });
    let wait = Duration::from_secs(4);
    tokio::time::sleep(wait).await;
    assert!(!reading.is_finished());
    for server in &mut three.servers {
        server.process().signal(Signal::Cont);
    }
    assert!(reading.await.unwrap() < wait + LONGEST_WAIT);
}

/// Reads events of new objects until so many have come whose names begin so.
async fn added(watch: &mut Streaming, prefix: &str, count: usize) {
    let mut there = 0;
    while there < count {
        let event = watch.next_event(LONGER).await.unwrap();
        let event = event.expect("it goes on");
        assert_eq!(event["type"], "ADDED");
        let name = event["object"]["metadata"]["name"].as_str().unwrap();
        there += usize::from(name.starts_with(prefix));
    }
}

/// Both cores are busy with other work, and the apiservers with lists of megabytes.
async fn a_busy_apiserver_loses_no_watch_and_no_write_and_gives_no_error(
    three: &Three<KubeApiServer>,
) {
    const OBJECTS: usize = 200;
    const WRITES: usize = 40;
    let admin = three.patient_admin();
    let create = async |name: String, length: usize| {
        let object = json!({"metadata": {"name": name}, "data": {"x": "x".repeat(length)}});
        let answer = admin.request("POST", CONFIG_MAPS, object.to_string()).await;
        assert_eq!(answer.code(), 201, "{}", answer.text());
    };
    for number in 0..OBJECTS {
        create(format!("large-{number}"), 20_000).await;
    }
    let mut watch = admin.open(&format!("{CONFIG_MAPS}?watch=true")).await;
    // Newer apiservers cut a watch off whose client is behind with what there was, as soon as that changes: so it begins before
    // they are busy, and is read all the time.
    added(&mut watch, "large-", OBJECTS).await;
    let watching = tokio::spawn(async move { added(&mut watch, "busy-", WRITES).await });
    let before = three.failovers("frozen").await;
    let busy = Arc::new(AtomicBool::new(true));
    let burners = (0..4).map(|_| {
        let busy = busy.clone();
        std::thread::spawn(move || while busy.load(Ordering::Relaxed) {})
    });
    let burners: Vec<_> = burners.collect();
    let readers = (0..16).map(|_| {
        let (reader, busy) = (three.patient_admin(), busy.clone());
        tokio::spawn(async move {
            let mut slowest = Duration::ZERO;
            while busy.load(Ordering::Relaxed) {
                slowest = slowest.max(longest(CONFIG_MAPS, std::slice::from_ref(&reader)).await);
            }
            slowest
        })
    });
    let readers: Vec<_> = readers.collect();
    for number in 0..WRITES {
        create(format!("busy-{number}"), 1).await;
    }
    busy.store(false, Ordering::Relaxed);
    let mut slowest = Duration::ZERO;
    for reader in readers {
        slowest = slowest.max(reader.await.unwrap());
    }
    let moved = three.failovers("frozen").await - before;
    println!("busy: {slowest:?}, {moved} reads moved");
    for burner in burners {
        burner.join().unwrap();
    }
    watching.await.unwrap();
}

/// An apiserver that is only slow: its handlers wait, those of `/livez` too.
#[tokio::test]
async fn a_server_that_is_only_slow_is_not_left() {
    let three = Three::with(|options| options).await;
    let pods = "/api/v1/namespaces/default/pods";
    let slow = Duration::from_secs(4);
    for path in [pods, "/livez"] {
        three.servers[0].set_fault(path, Some(Fault::Delay(slow)));
    }
    let before = three.servers[0].count(pods);
    let begun = Instant::now();
    assert_eq!(three.admin().get(pods).await.code(), 200);
    assert!(begun.elapsed() >= slow);
    assert_eq!(three.servers[0].count(pods), before + 1);
    assert_eq!(three.failovers("frozen").await, 0.0);
}

/// A's apiserver is behind a link that falls silent. Nobody reads.
#[tokio::test]
async fn a_write_that_waits_shows_that_its_server_is_frozen() {
    let ground = Ground::new().await;
    let (a, b) = tokio::join!(ground.double(v1_20()), ground.double(v1_20()));
    let link = Cut::start(Loopback::new(), a.addr()).await;
    let proxy = |id, addr| Proxy::start(patient(ground.proxy(id, addr)).until(Until::Ready));
    let (proxy_a, proxy_b) = tokio::join!(proxy("a", link.addr()), proxy("b", b.addr()));
    let has_ready_peer = async |of: &Proxy| of.statusz().await["peers"][0]["ready"] == true;
    eventually("they know each other", LONG, async || {
        lists(&proxy_a.statusz().await, "b", "apps")
            && has_ready_peer(&proxy_a).await
            && has_ready_peer(&proxy_b).await
    })
    .await;
    let path = "/api/v1/namespaces/default/pods";
    let admin = proxy_a.client(&ground.pki).cert("admin").http2();
    let admin = admin.timeout(LONGER);
    let create = async |admin: &Client, name: &str| {
        let object = json!({"metadata": {"name": name}}).to_string();
        let answer = admin.request("POST", path, object).await;
        assert_eq!(answer.code(), 201, "{}", answer.text());
    };
    create(&admin, "first").await;
    a.take_requests();

    link.silence();
    let elsewhere = async {
        eventually("A's live key says that it is not ready", LONG, async || {
            !has_ready_peer(&proxy_b).await
        })
        .await;
        let begun = Instant::now();
        create(&admin.fresh(), "third").await;
        assert!(begun.elapsed() < LONGEST_WAIT, "{:?}", begun.elapsed());
        assert_eq!((a.count(path), b.count(path)), (0, 1));
        // It has not asked A first.
        assert_eq!(proxy_a.metric(FAILOVERS, &[]).await, 0.0);
        link.restore();
    };
    // On the connection of the first one: it is sent.
    tokio::join!(create(&admin, "second"), elsewhere);
    assert_eq!((a.count(path), b.count(path)), (1, 1), "it stayed");
    eventually("it is ready again", BACK, async || {
        has_ready_peer(&proxy_b).await
    })
    .await;
}

/// The header of the document has come, and then its server freezes.
#[tokio::test]
async fn the_rest_of_a_document_that_is_merged_is_not_waited_for() {
    let ground = Ground::new().await;
    let without = v1_20().without_group("autoscaling");
    let (a, b) = tokio::join!(ground.double(without), ground.double(v1_20()));
    let link = Cut::start(Loopback::new(), a.addr()).await;
    let proxy = |id, addr| Proxy::start(patient(ground.proxy(id, addr)).until(Until::Ready));
    let (proxy_a, _proxy_b) = tokio::join!(proxy("a", link.addr()), proxy("b", b.addr()));
    let admin = proxy_a.client(&ground.pki).cert("admin").http2();
    eventually("B's group is merged", LONG, async || {
        admin.get("/apis").await.text().contains("autoscaling")
    })
    .await;
    let begins = ScriptedAnswer::new(200).header("content-type", "application/json");
    let begins = begins.body("{").then_hang();
    a.set_fault("/apis", Some(Fault::Answer(Box::new(begins))));
    a.take_requests();
    let readers: Vec<_> = (0..READERS)
        .map(|_| admin.fresh().timeout(LONGER))
        .collect();
    let reading = tokio::spawn(async move { longest("/apis", &readers).await });
    eventually("A is asked for all", LONG, async || {
        a.count("/apis") >= READERS
    })
    .await;
    link.silence();
    let longest = reading.await.unwrap();
    println!("a document that is merged: {longest:?}");
    assert!(longest < LONGEST_WAIT, "{longest:?}");
}
