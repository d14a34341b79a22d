//! What can go wrong where a watch goes on at another apiserver. These are doubles whose objects a real etcd keeps.
//! Whatever happens, a client gets each change once and in order, or a clean end after which it misses nothing.

use std::time::{Duration, Instant};

use etcd_client::Client as EtcdClient;
use serde_json::{Value, json};

use crate::watches::hand_over::patient;
use testkit::client::{Client, Streaming};
use testkit::cluster::{Ground, HPAS_IN_DEFAULT, LONG};
use testkit::double::kept::{key, write};
use testkit::double::watch::AT_FIRST_WATCH;
use testkit::double::{
    Double, DoubleOptions, Fault, KeptInEtcd, Phase, ScriptedAnswer, v1_20, v1_36,
};
use testkit::etcd::{Etcd, EtcdOptions};
use testkit::nodes::HANDED_OVER;
use testkit::process::Signal;
use testkit::proxy::{Proxy, Until, until_histories_are_known};
use testkit::wait::eventually;

const EXPIRED: &str = "kube_interop_proxy_expired_watches_total";
/// The namespace of what nothing is wrong with.
const USUAL: &str = "usual";

/// Doubles, each with a proxy. Watches are opened at the first one.
struct Nodes {
    doubles: Vec<Double>,
    proxies: Vec<Proxy>,
    etcd: EtcdClient,
    ground: Ground,
}

/// How they are started.
struct NodesOptions {
    doubles: Vec<DoubleOptions>,
    ground: Ground,
}

impl NodesOptions {
    /// `settings`: of all proxies.
    async fn start(self, settings: &[(&str, &str)]) -> Nodes {
        let ground = self.ground;
        let (mut doubles, mut proxies) = (Vec::new(), Vec::new());
        for (number, options) in self.doubles.into_iter().enumerate() {
            let double = Double::start(options).await;
            let mut options = patient(ground.proxy(&format!("s{number}"), double.addr()));
            for (key, value) in settings {
                options = options.set(key, value);
            }
            proxies.push(Proxy::start(options.until(Until::Ready)).await);
            doubles.push(double);
        }
        let all: Vec<_> = proxies.iter().collect();
        eventually("all are known", LONG, async || {
            let status = all[0].statusz().await;
            let peers = status["peers"].as_array().into_iter().flatten();
            peers.filter(|peer| peer["target"] == true).count() == all.len() - 1
        })
        .await;
        until_histories_are_known(&all).await;
        let etcd = ground.etcd.client().await;
        Nodes {
            doubles,
            proxies,
            etcd,
            ground,
        }
    }
}

impl Nodes {
    /// So many of 1.36, whose objects are in one etcd.
    async fn options(count: usize) -> NodesOptions {
        Self::options_on(Ground::new().await, count)
    }

    fn options_on(ground: Ground, count: usize) -> NodesOptions {
        let double = DoubleOptions::new(ground.pki.dir(), v1_36());
        NodesOptions {
            doubles: vec![double.kept(&KeptInEtcd::new(&ground.etcd)); count],
            ground,
        }
    }

    async fn new(count: usize) -> Self {
        Self::options(count).await.start(&[]).await
    }

    async fn write(&mut self, resource: &str, namespace: &str, name: &str) -> i64 {
        let object = json!({"data": {}});
        write(&mut self.etcd, &key(resource, namespace, name), &object).await
    }

    async fn revision(&mut self) -> i64 {
        write(&mut self.etcd, "/other", &json!(0)).await
    }

    /// A watch of a namespace's secrets from here on, that has got an event.
    async fn open(&mut self, namespace: &str) -> Told {
        let from = self.revision().await;
        let mut told = self
            .open_path(&format!("{}{from}", path(namespace, true)))
            .await;
        told.expect(self.write("secrets", namespace, "x").await)
            .await;
        told
    }

    async fn open_path(&self, path: &str) -> Told {
        Told::open(&self.admin(), path).await
    }

    /// Watches of usual secrets from here on. Each connection makes its own choice of a peer.
    async fn open_many(&mut self, count: usize) -> Vec<Told> {
        const OF_A_CONNECTION: usize = 10;
        let from = self.revision().await;
        let path = format!("{}{from}", path(USUAL, true));
        let mut watches = Vec::new();
        for _ in 0..count / OF_A_CONNECTION {
            let client = self.admin();
            for _ in 0..OF_A_CONNECTION {
                watches.push(Told::open(&client, &path).await);
            }
        }
        watches
    }

    /// With a connection of its own.
    fn admin(&self) -> Client {
        self.proxies[0].client(&self.ground.pki).cert("admin")
    }

    /// A watch from here on, for which all apiservers begin their watch caches.
    async fn come_back(&self, namespace: &str, since: i64) -> Told {
        for double in &self.doubles {
            double.set_history_start(AT_FIRST_WATCH);
        }
        let from = format!("{}{since}", path(namespace, true));
        self.open_path(&from).await
    }

    async fn expired(&self, result: &str) -> f64 {
        self.proxies[0].metric(EXPIRED, &[("result", result)]).await
    }

    async fn until_expired(&self, result: &str, count: f64) {
        eventually("another server was asked", LONG, async || {
            let now = self.expired(result).await;
            (now == count).then_some(()).ok_or(now)
        })
        .await;
    }

    /// Waits until the first proxy knows that its apiserver keeps secrets in etcd.
    async fn until_proved(&mut self) {
        let server = self.doubles[0].addr().to_string();
        self.until_proved_of(&server).await;
    }

    async fn until_proved_of(&mut self, server: &str) {
        let log = self.proxies[0].process().log().to_owned();
        eventually("it is proved", LONG, async || {
            let log = std::fs::read_to_string(&log).unwrap();
            let mut lines = log.lines();
            lines.any(|line| line.contains(server) && line.contains("stored_here: Some(true)"))
        })
        .await;
    }

    /// Waits until a proxy knows that the last server has this version, and lists so many resources more than `fewer`.
    async fn until_last_is(&self, proxy: usize, version: &str, fewer: u64) -> u64 {
        let id = format!("s{}", self.doubles.len() - 1);
        eventually("the peer is known", LONG, async || {
            let status = self.proxies[proxy].statusz().await;
            let mut peers = status["peers"].as_array().into_iter().flatten();
            let peer = peers.find(|peer| peer["id"] == id.as_str());
            let peer = peer.filter(|peer| peer["compatibilityVersion"] == version);
            let listed = peer.and_then(|peer| peer["resources"].as_u64());
            listed.filter(|listed| *listed > fewer).ok_or(status)
        })
        .await
    }

    /// The first apiserver is killed. One that is back before its proxy has noticed would be taken for the same process.
    async fn stop(&mut self) {
        self.doubles[0].stop().await;
        eventually("it is gone", LONG, async || {
            self.proxies[0].statusz().await["server"]["initialized"] == false
        })
        .await;
    }

    /// Waits until no connection keeps the apiserver of this number from ending.
    async fn until_nothing_holds(&self, number: usize) {
        let double = &self.doubles[number];
        eventually("nothing holds it back", LONG, async || {
            double.open_connections() == 0
        })
        .await;
    }

    /// The first apiserver is back, and its history begins.
    async fn restart(&mut self) {
        self.doubles[0].start_again().await;
        self.doubles[0].set_ready(true);
        // Not the others': some have died, and are absent soon.
        eventually("its history is known", LONG, async || {
            let status = self.proxies[0].statusz().await;
            let known = status["server"]["historyStart"].is_i64();
            known.then_some(()).ok_or(status)
        })
        .await;
    }

    async fn handed_over(&self, result: &str) -> f64 {
        self.proxies[0]
            .metric(HANDED_OVER, &[("result", result)])
            .await
    }

    /// Waits until the server of this number was asked for watches of these namespaces.
    async fn until_asked(&self, number: usize, namespaces: &[&str]) {
        for namespace in namespaces {
            let what = format!("it is asked for {namespace}");
            eventually(&what, LONG, async || {
                self.doubles[number].count(&path(namespace, false)) > 0
            })
            .await;
        }
    }
}

fn path(namespace: &str, with_query: bool) -> String {
    let query = match with_query {
        true => "?watch=true&allowWatchBookmarks=true&resourceVersion=",
        false => "",
    };
    format!("/api/v1/namespaces/{namespace}/secrets{query}")
}

/// What a client is told.
struct Told {
    stream: Streaming,
    /// Revisions.
    changes: Vec<i64>,
    bookmark: Option<i64>,
}

impl Told {
    async fn open(client: &Client, path: &str) -> Self {
        let stream = client.open(path).await;
        assert_eq!(stream.status, 200, "{path}");
        Self {
            stream,
            changes: Vec::new(),
            bookmark: None,
        }
    }

    /// The next change is this one.
    async fn expect(&mut self, revision: i64) {
        let before = self.changes.len();
        while self.changes.len() == before {
            assert!(self.next().await, "ended before {revision}");
        }
        assert_eq!(self.changes.last(), Some(&revision));
    }

    /// Whether there was another event.
    async fn next(&mut self) -> bool {
        let event = self.stream.next_event(LONG).await;
        let Some(event) = event.expect("a clean end") else {
            return false;
        };
        let revision = event["object"]["metadata"]["resourceVersion"].as_str();
        let revision = revision.and_then(|it| it.parse().ok());
        let revision: i64 = revision.unwrap_or_else(|| panic!("{event}"));
        assert!(Some(&revision) >= self.changes.last(), "{event}");
        assert!(Some(revision) >= self.bookmark, "{event}");
        match event["type"].as_str() {
            Some("BOOKMARK") => self.bookmark = Some(revision),
            _ => self.changes.push(revision),
        }
        true
    }

    /// Its clean end.
    async fn end(&mut self) {
        while self.next().await {}
    }
}

fn event(kind: &str, revision: i64, name: &str) -> Value {
    json!({"type": kind, "object": {"kind": "Secret", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "any", "resourceVersion": revision.to_string()}}})
}

fn stream(content_type: &str, body: String) -> Fault {
    let answer = ScriptedAnswer::new(200).header("content-type", content_type);
    let answer = answer.body(body).in_pieces(1 << 20, Duration::ZERO);
    Fault::Answer(Box::new(answer.then_break()))
}

/// What servers do that cannot go on with a watch, or must not.
fn refusals() -> Vec<(&'static str, Fault)> {
    let json = |body: String| stream("application/json", body);
    let expired = json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1",
        "metadata": {}, "status": "Failure", "reason": "Expired", "code": 410}});
    let whole = event("MODIFIED", 3, "x").to_string();
    vec![
        ("expired", Fault::Status(410, None)),
        ("expired-event", json(format!("{expired}\n"))),
        ("busy", Fault::Status(429, Some(1))),
        ("unavailable", Fault::Status(503, Some(1))),
        ("unauthorized", Fault::Status(401, None)),
        ("forbidden", Fault::Status(403, None)),
        ("hangs", Fault::Hang),
        ("breaks-off", Fault::Reset),
        ("goes-back", json(format!("{whole}\n"))),
        ("half-an-event", json(whole[..40].to_owned())),
        (
            "tells-of-another",
            json(format!("{}\n", event("ADDED", 1 << 40, "y"))),
        ),
        ("ends", json(String::new())),
        ("another-format", stream("text/html", "<p>".to_owned())),
        ("no-answer", json("{}\n".to_owned())),
    ]
}

/// Each of them in a namespace of its name, and a watch there whose apiserver has stopped.
async fn refused(nodes: &mut Nodes) -> Vec<(&'static str, Told)> {
    let mut watches = Vec::new();
    for (namespace, fault) in refusals() {
        nodes.doubles[1].set_fault(&path(namespace, false), Some(fault));
        watches.push((namespace, nodes.open(namespace).await));
    }
    nodes.until_proved().await;
    nodes.stop().await;
    let namespaces: Vec<_> = watches.iter().map(|(namespace, _)| *namespace).collect();
    nodes.until_asked(1, &namespaces).await;
    watches
}

#[tokio::test]
async fn a_server_that_refuses_or_lies_spoils_no_watch() {
    let mut nodes = Nodes::new(2).await;
    let mut watches = refused(&mut nodes).await;
    nodes.restart().await;
    for (namespace, told) in &mut watches {
        let revision = nodes.write("secrets", namespace, "x").await;
        told.expect(revision).await;
    }
    assert_eq!(nodes.handed_over("ended").await, 0.0);
}

/// Its apiserver says that it stops, and still serves it.
#[tokio::test]
async fn a_server_that_does_not_go_on_takes_no_watch_from_one_that_serves_it() {
    let mut nodes = Nodes::new(2).await;
    let mut watches = Vec::new();
    let begins = [
        ("goes-back", event("MODIFIED", 3, "x")),
        ("tells-of-another", event("ADDED", 1 << 40, "y")),
        ("no-answer", json!({})),
    ];
    for (namespace, first) in begins {
        let answer = ScriptedAnswer::new(200).header("content-type", "application/json");
        let answer = answer
            .body(format!("{first}\n"))
            .in_pieces(1 << 20, Duration::ZERO);
        let fault = Fault::Answer(Box::new(answer));
        nodes.doubles[1].set_fault(&path(namespace, false), Some(fault));
        watches.push((namespace, nodes.open(namespace).await));
    }
    nodes.until_proved().await;
    nodes.doubles[0].set_phase(Phase::Terminating);
    for (namespace, told) in &mut watches {
        nodes.until_asked(1, &[namespace]).await;
        let revision = nodes.write("secrets", namespace, "x").await;
        told.expect(revision).await;
    }
    assert_eq!(nodes.handed_over("continued").await, 0.0);
}

#[tokio::test]
async fn what_only_a_server_that_refuses_could_tell_is_not_jumped_over() {
    let options = Nodes::options(2).await;
    let mut nodes = options.start(&[("watch.handOverTimeout", "20s")]).await;
    let mut watches = refused(&mut nodes).await;
    let mut missed = Vec::new();
    for (namespace, _) in &watches {
        missed.push(nodes.write("secrets", namespace, "y").await);
    }
    nodes.restart().await;
    for ((namespace, told), missed) in watches.iter_mut().zip(missed) {
        told.end().await;
        let seen = told.changes[..].to_vec();
        assert_eq!(seen.len(), 1, "{namespace}");
        let from = told.bookmark.unwrap_or(seen[0]);
        assert!(seen[0] <= from && from < missed, "{namespace}: {from}");
        // It comes back.
        nodes.doubles[1].set_fault(&path(namespace, false), None);
        let again = format!("{}{from}", path(namespace, true));
        nodes.open_path(&again).await.expect(missed).await;
    }
}

/// Without a shutdown delay its `/readyz` never says that it stops: its port closes, and the process waits for its watches.
#[tokio::test]
async fn an_apiserver_that_has_closed_its_port_need_not_wait_for_its_watches() {
    let mut nodes = Nodes::new(2).await;
    let mut told = nodes.open(USUAL).await;
    nodes.until_proved().await;
    nodes.doubles[0].close_port();
    nodes.until_nothing_holds(0).await;
    told.expect(nodes.write("secrets", USUAL, "x").await).await;
    assert_eq!(nodes.handed_over("continued").await, 1.0);
    assert_eq!(nodes.handed_over("ended").await, 0.0);
}

#[tokio::test]
async fn the_only_apiserver_need_not_wait_for_its_watches_either() {
    let mut nodes = Nodes::new(1).await;
    let mut told = nodes.open(USUAL).await;
    nodes.until_proved().await;
    nodes.doubles[0].close_port();
    nodes.until_nothing_holds(0).await;
    nodes.restart().await;
    told.expect(nodes.write("secrets", USUAL, "x").await).await;
    assert_eq!(nodes.handed_over("continued").await, 1.0);
    assert_eq!(nodes.handed_over("ended").await, 0.0);
}

/// What changed in etcd is followed since the hand-over, and this etcd tells how far it is only if it is asked.
#[tokio::test]
async fn a_last_bookmark_is_not_as_old_as_the_hand_over_before_it() {
    let ground = Ground::with(EtcdOptions::v3_5()).await;
    let drain = [("shutdown.delay", "1s"), ("shutdown.drain", "2s")];
    let mut nodes = Nodes::options_on(ground, 1).start(&drain).await;
    let mut told = nodes.open(USUAL).await;
    nodes.until_proved().await;
    nodes.stop().await;
    nodes.restart().await;
    told.expect(nodes.write("secrets", USUAL, "y").await).await;
    assert_eq!(nodes.handed_over("continued").await, 1.0);
    let newest = nodes.revision().await;
    let ended = tokio::join!(nodes.proxies[0].terminate(), told.end());
    assert!(ended.0.success(), "{}", nodes.proxies[0].log_tail());
    assert!(told.bookmark >= Some(newest), "{:?}", told.bookmark);
}

/// Its client would come back with a revision that no apiserver has any more.
#[tokio::test]
async fn a_watch_that_was_handed_over_and_ends_is_told_how_far_it_has_come() {
    let mut nodes = Nodes::new(1).await;
    let mut told = nodes.open(USUAL).await;
    nodes.until_proved().await;
    nodes.stop().await;
    let newest = nodes.revision().await;
    nodes.restart().await;
    eventually("it goes on", LONG, async || {
        nodes.handed_over("continued").await == 1.0
    })
    .await;
    // As after `timeoutSeconds`.
    nodes.doubles[0].end_watches();
    told.end().await;
    assert!(told.bookmark >= Some(newest), "{:?}", told.bookmark);
}

/// Etcd would be waited for until after the drain.
#[tokio::test]
async fn a_watch_that_ends_while_the_proxy_stops_beside_a_frozen_etcd_ends_cleanly() {
    let drain = [("shutdown.delay", "2s"), ("shutdown.drain", "2s")];
    let mut nodes = Nodes::options(1).await.start(&drain).await;
    let mut told = nodes.open(USUAL).await;
    nodes.until_proved().await;
    nodes.ground.etcd.stop();
    nodes.proxies[0].process().signal(Signal::Term);
    eventually("it is stopping", LONG, async || {
        let readyz = nodes.proxies[0].admin_get("/readyz").await.text();
        readyz.contains("stopping").then_some(()).ok_or(readyz)
    })
    .await;
    nodes.doubles[0].end_watches();
    told.end().await;
}

/// A watch that is held may miss a change and end. Its client then comes back with the last bookmark, and needs a server that
/// has kept the history from there: a custom resource's begins with the first request for it.
#[tokio::test]
async fn before_a_watch_is_held_older_apiservers_begin_their_watch_caches() {
    const ASKED: &str = "/api/v1/secrets?limit=1";
    let mut nodes = Nodes::new(2).await;
    nodes.doubles[1].change_preset(|_| v1_20());
    nodes.until_last_is(0, "1.20", 0).await;
    let mut told = nodes.open(USUAL).await;
    nodes.until_proved().await;
    assert_eq!(nodes.doubles[1].count(ASKED), 0);
    nodes.doubles[0].close_port();
    nodes.until_nothing_holds(0).await;
    assert_eq!(nodes.doubles[1].count(ASKED), 1);
    nodes.restart().await;
    told.expect(nodes.write("secrets", USUAL, "x").await).await;
    assert_eq!(nodes.handed_over("continued").await, 1.0);
}

/// 1.36 ends them cleanly after a minute; 1.20 breaks them off.
#[tokio::test]
async fn a_watch_that_ends_because_the_only_apiserver_stops_waits_for_it() {
    let mut nodes = Nodes::new(1).await;
    let mut told = nodes.open(USUAL).await;
    nodes.until_proved().await;
    nodes.doubles[0].close_port();
    eventually("its port is closed", LONG, async || {
        nodes.proxies[0].statusz().await["server"]["initialized"] == false
    })
    .await;
    nodes.doubles[0].end_watches();
    nodes.until_nothing_holds(0).await;
    nodes.restart().await;
    told.expect(nodes.write("secrets", USUAL, "y").await).await;
    assert_eq!(nodes.handed_over("continued").await, 1.0);
    assert_eq!(nodes.handed_over("ended").await, 0.0);
}

#[tokio::test]
async fn a_watch_goes_on_from_and_at_an_apiserver_that_speaks_only_http1() {
    for number in 0..2 {
        let mut options = Nodes::options(2).await;
        options.doubles[number].alpn = vec!["http/1.1"];
        let mut nodes = options.start(&[]).await;
        let mut told = nodes.open(USUAL).await;
        nodes.until_proved().await;
        nodes.stop().await;
        told.expect(nodes.write("secrets", USUAL, "x").await).await;
        assert_eq!(nodes.handed_over("continued").await, 1.0);
    }
}

#[tokio::test]
async fn who_waits_for_a_busy_server_that_can_go_on_is_not_ended() {
    /// 64 are opened at a server at a time: the last ones after 9 s.
    const WATCHES: usize = 400;
    let options = Nodes::options(2).await;
    let mut nodes = options.start(&[("watch.handOverTimeout", "5s")]).await;
    let mut watches = nodes.open_many(WATCHES).await;
    let first = nodes.write("secrets", USUAL, "x").await;
    for told in &mut watches {
        told.expect(first).await;
    }
    nodes.until_proved().await;
    let slow = Fault::Delay(Duration::from_millis(1500));
    nodes.doubles[1].set_fault(&path(USUAL, false), Some(slow));
    nodes.stop().await;
    let second = nodes.write("secrets", USUAL, "x").await;
    for told in &mut watches {
        told.expect(second).await;
    }
    assert_eq!(nodes.handed_over("ended").await, 0.0);
}

/// Of two peers that can go on, one answers everything but that.
#[tokio::test]
async fn who_waits_for_a_server_that_answers_nobody_goes_on_elsewhere() {
    /// Half of them prefer each: several times as many as are opened there at a time.
    const WATCHES: usize = 600;
    const AT_A_TIME: usize = 64;
    /// From when these are opened until the server is tried again: they wait 5 s, and others go elsewhere for as long.
    const ROUND: u64 = 10;
    let mut nodes = Nodes::new(3).await;
    let mut watches = nodes.open_many(WATCHES).await;
    nodes.until_proved().await;
    nodes.doubles[1].set_fault(&path(USUAL, false), Some(Fault::Hang));
    let begun = Instant::now();
    nodes.stop().await;
    let seen = nodes.write("secrets", USUAL, "x").await;
    for told in &mut watches {
        told.expect(seen).await;
    }
    let asked = nodes.doubles[1].count(&path(USUAL, false));
    // Who comes when it has not been asked for a while tries it again. Else the 300 that prefer it would all ask, within 25 s.
    let rounds = (1 + begun.elapsed().as_secs() / ROUND).max(3) as usize;
    assert!((1..=rounds * AT_A_TIME).contains(&asked), "{asked}");
    assert_eq!(nodes.handed_over("ended").await, 0.0);
}

/// A file that is being written may lack the CA of its client for a moment.
#[tokio::test]
async fn a_watch_that_waits_does_not_end_because_a_file_is_half_written() {
    const LOADED: &str = "kube_interop_proxy_certificates_loaded_total";
    const HELD: &str = "kube_interop_proxy_watches_held";
    let mut options = Nodes::options(1).await;
    let pki = &mut options.ground.pki;
    pki.add_ca("other-ca", "another CA");
    let read = |file| std::fs::read(pki.path(file)).unwrap();
    let (good, other) = (read("ca.crt"), read("other-ca.crt"));
    let users = pki.path("users.crt");
    std::fs::write(&users, &good).unwrap();
    let own_users = [("serving.clientCAFile", users.to_str().unwrap())];
    let mut nodes = options.start(&own_users).await;
    let mut told = nodes.open(USUAL).await;
    nodes.until_proved().await;
    nodes.stop().await;
    let proxy = &nodes.proxies[0];
    proxy.until_metric(HELD, &[], |held| held == 1.0).await;
    for (number, file) in [&other, &good].into_iter().enumerate() {
        std::fs::write(&users, file).unwrap();
        let is_read = |loaded| loaded > number as f64;
        let serving = [("files", "serving")];
        proxy.until_metric(LOADED, &serving, is_read).await;
    }
    nodes.restart().await;
    told.expect(nodes.write("secrets", USUAL, "x").await).await;
    assert_eq!(nodes.handed_over("ended").await, 0.0);
}

/// The watch cache of a custom resource begins at its first use, after the history of its apiserver.
#[tokio::test]
async fn an_apiserver_whose_watch_cache_begins_when_it_is_asked_is_asked_again() {
    let mut nodes = Nodes::new(1).await;
    let mut told = nodes.open(USUAL).await;
    nodes.until_proved().await;
    nodes.stop().await;
    nodes.doubles[0].start_again().await;
    nodes.doubles[0].set_history_start(AT_FIRST_WATCH);
    nodes.doubles[0].set_ready(true);
    eventually("it goes on", LONG, async || {
        let [continued, ended] = [
            nodes.handed_over("continued").await,
            nodes.handed_over("ended").await,
        ];
        assert_eq!(ended, 0.0);
        continued == 1.0
    })
    .await;
    told.expect(nodes.write("secrets", USUAL, "x").await).await;
}

/// A client comes back from before the watch caches of all apiservers, as to a custom resource that nobody has watched there.
#[tokio::test]
async fn a_watch_that_comes_back_goes_on_from_where_etcd_shows_that_nothing_changed() {
    let mut nodes = Nodes::new(2).await;
    let since = nodes.revision().await;
    nodes.write("secrets", "other", "x").await;
    nodes.write("secrets", "changed", "x").await;
    // As leases are renewed.
    let mut etcd = nodes.ground.etcd.client().await;
    let renewing = tokio::spawn(async move {
        for _ in 0..600 {
            write(&mut etcd, "/other", &json!(0)).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let mut told = nodes.come_back(USUAL, since).await;
    nodes.until_expired("avoided", 1.0).await;
    told.expect(nodes.write("secrets", USUAL, "x").await).await;
    // Nobody has had the history from there, which may be that of another etcd.
    for (namespace, since) in [("changed", since), ("unchanged", 2)] {
        let before = nodes.expired("passed").await;
        let mut told = nodes.come_back(namespace, since).await;
        let event = told.stream.next_event(LONG).await.unwrap().unwrap();
        assert_eq!(event["object"]["code"], 410, "{namespace}: {event}");
        assert_eq!(told.stream.next_event(LONG).await.unwrap(), None);
        nodes.until_expired("passed", before + 1.0).await;
    }
    renewing.abort();
}

/// From 1.31 on an apiserver answers 429 while it builds a watch cache: that of a custom resource at its first use.
#[tokio::test]
async fn the_only_apiserver_is_asked_until_it_is_busy_no_more() {
    /// More than those are asked that answer otherwise.
    const TIMES: usize = 5;
    for status in [429, 503] {
        let mut nodes = Nodes::new(1).await;
        let mut told = nodes.open(USUAL).await;
        nodes.until_proved().await;
        nodes.stop().await;
        let busy = Fault::Status(status, Some(1));
        nodes.doubles[0].set_fault(&path(USUAL, false), Some(busy));
        let before = nodes.doubles[0].count(&path(USUAL, false));
        nodes.restart().await;
        eventually("it is asked again and again", LONG, async || {
            let asked = nodes.doubles[0].count(&path(USUAL, false)) - before;
            (asked >= TIMES).then_some(()).ok_or(asked)
        })
        .await;
        nodes.doubles[0].set_fault(&path(USUAL, false), None);
        told.expect(nodes.write("secrets", USUAL, "x").await).await;
        assert_eq!(nodes.handed_over("ended").await, 0.0);
    }
}

#[tokio::test]
async fn a_server_that_dies_when_it_is_asked_is_left_again() {
    let mut nodes = Nodes::new(2).await;
    let mut told = nodes.open(USUAL).await;
    nodes.until_proved().await;
    nodes.doubles[1].set_fault(&path(USUAL, false), Some(Fault::Hang));
    nodes.stop().await;
    nodes.until_asked(1, &[USUAL]).await;
    nodes.doubles[1].stop().await;
    nodes.proxies[1].kill();
    nodes.restart().await;
    told.expect(nodes.write("secrets", USUAL, "x").await).await;
}

#[tokio::test]
async fn while_etcd_is_away_a_watch_waits() {
    let mut nodes = Nodes::new(2).await;
    let mut told = nodes.open(USUAL).await;
    nodes.until_proved().await;
    nodes.ground.etcd.kill();
    nodes.stop().await;
    // Nothing proves that the other keeps it in the same etcd.
    assert!(told.stream.is_quiet(Duration::from_secs(3)).await);
    assert_eq!(nodes.doubles[1].count(&path(USUAL, false)), 0);
    nodes.ground.etcd.start_again().await;
    nodes.etcd = nodes.ground.etcd.client().await;
    told.expect(nodes.write("secrets", USUAL, "x").await).await;
    nodes.until_asked(1, &[USUAL]).await;
}

#[tokio::test]
async fn what_etcd_has_compacted_proves_nothing() {
    let mut nodes = Nodes::new(1).await;
    let mut told = nodes.open(USUAL).await;
    nodes.until_proved().await;
    let mut newest = 0;
    for _ in 0..3 {
        newest = nodes.revision().await;
    }
    nodes.etcd.compact(newest, None).await.unwrap();
    nodes.stop().await;
    nodes.restart().await;
    told.end().await;
    assert_eq!((told.changes.len(), told.bookmark), (1, None));
}

#[tokio::test]
async fn a_server_that_keeps_the_resource_in_another_etcd_is_not_asked() {
    let mut options = Nodes::options(2).await;
    let ground = &options.ground;
    let other = Etcd::start(&ground.dir.path().join("other"), &ground.pki).await;
    let mut ahead = other.client().await;
    for _ in 0..300 {
        write(&mut ahead, "/other", &json!(0)).await;
    }
    let elsewhere = DoubleOptions::new(ground.pki.dir(), v1_36());
    options.doubles[1] = elsewhere.kept(&KeptInEtcd::new(&other));
    let mut nodes = options.start(&[]).await;
    let mut told = nodes.open(USUAL).await;
    nodes.until_proved().await;
    nodes.stop().await;
    let proof = "/api/v1/secrets?limit=1";
    eventually("it is asked where it keeps them", LONG, async || {
        nodes.doubles[1].count(proof) > 0
    })
    .await;
    nodes.restart().await;
    told.expect(nodes.write("secrets", USUAL, "x").await).await;
    assert_eq!(nodes.doubles[1].count(&path(USUAL, false)), 0);
}

#[tokio::test]
async fn a_watch_of_what_is_in_another_etcd_ends_as_without_the_proxy() {
    let options = Nodes::options(2).await;
    let mut nodes = options.start(&[("etcd.otherResources", "[secrets]")]).await;
    let mut told = nodes.open(USUAL).await;
    nodes.stop().await;
    told.end().await;
    assert_eq!((told.changes.len(), told.bookmark), (1, None));
    assert_eq!(nodes.doubles[1].count("/api/v1/secrets?limit=1"), 0);
}

#[tokio::test]
async fn an_older_apiserver_that_comes_back_does_not_go_on() {
    let mut nodes = Nodes::new(1).await;
    let mut told = nodes.open(USUAL).await;
    nodes.until_proved().await;
    nodes.stop().await;
    // There is something newer to tell.
    nodes.revision().await;
    nodes.doubles[0].change_preset(|_| v1_20());
    nodes.restart().await;
    told.end().await;
    assert_eq!(told.changes.len(), 1);
    assert!(told.bookmark > told.changes.last().copied());
    assert_eq!(nodes.handed_over("ended").await, 1.0);
}

#[tokio::test]
async fn existing_objects_come_once_and_before_a_bookmark_nothing_goes_on() {
    let mut nodes = Nodes::new(2).await;
    let there = nodes.write("secrets", USUAL, "x").await;
    let base = "/api/v1/namespaces/usual/secrets?watch=true&allowWatchBookmarks=true";
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let mut begun = nodes.open_path(&format!("{base}&{initial}")).await;
    let mut of_zero = nodes.open_path(&format!("{base}&resourceVersion=0")).await;
    for told in [&mut begun, &mut of_zero] {
        told.expect(there).await;
    }
    assert!(begun.next().await && begun.bookmark >= Some(there));
    nodes.until_proved().await;
    nodes.stop().await;
    begun.expect(nodes.write("secrets", USUAL, "y").await).await;
    of_zero.end().await;
    assert_eq!((of_zero.changes, of_zero.bookmark), (vec![there], None));
    let asked = nodes.doubles[1].requests();
    let of_watches = asked.iter().filter(|it| it.path.contains("watch="));
    for request in of_watches {
        assert!(
            !request.path.contains("sendInitialEvents"),
            "{}",
            request.path
        );
    }
}

#[tokio::test]
async fn a_watch_that_was_rerouted_goes_on_at_the_other_peer() {
    let mut options = Nodes::options(3).await;
    options.doubles[0].preset = v1_36().without_group("autoscaling");
    let mut nodes = options.start(&[]).await;
    let from = nodes.revision().await;
    let hpas = "horizontalpodautoscalers";
    let path = format!("{HPAS_IN_DEFAULT}?watch=true&resourceVersion={from}");
    let mut told = nodes.open_path(&path).await;
    told.expect(nodes.write(hpas, "default", "x").await).await;
    let watches = |double: &Double| double.count(HPAS_IN_DEFAULT);
    let serves = 1 + usize::from(watches(&nodes.doubles[1]) == 0);
    let log = nodes.proxies[0].process().log().to_owned();
    eventually("it is proved", LONG, async || {
        let log = std::fs::read_to_string(&log).unwrap();
        log.contains("stored_here: Some(true)")
    })
    .await;
    nodes.doubles[serves].stop().await;
    told.expect(nodes.write(hpas, "default", "x").await).await;
    assert!(watches(&nodes.doubles[3 - serves]) > 0);
    assert_eq!(nodes.handed_over("continued").await, 1.0);
}

/// Its server is the only newer one: it is left when its port is closed. Others that list the resource are older.
#[tokio::test]
async fn a_rerouted_watch_that_nobody_can_go_on_with_ends_as_soon_as_its_server_is_back() {
    let older = || v1_20().without_group("autoscaling");
    let mut options = Nodes::options(3).await;
    options.doubles[0].preset = older();
    let mut nodes = options.start(&[]).await;
    nodes.doubles[2].change_preset(|_| older());
    let fewer = nodes.until_last_is(0, "1.20", 0).await;
    let from = nodes.revision().await;
    let hpas = "horizontalpodautoscalers";
    let path =
        format!("{HPAS_IN_DEFAULT}?watch=true&allowWatchBookmarks=true&resourceVersion={from}");
    let mut told = nodes.open_path(&path).await;
    let seen = nodes.write(hpas, "default", "x").await;
    told.expect(seen).await;
    let peer = nodes.proxies[1].addr().to_string();
    nodes.until_proved_of(&peer).await;
    nodes.doubles[2].change_preset(|_| v1_20());
    nodes.until_last_is(1, "1.20", fewer).await;
    nodes.doubles[1].close_port();
    nodes.until_nothing_holds(1).await;
    let missed = nodes.write(hpas, "default", "y").await;
    nodes.doubles[1].start_again().await;
    nodes.doubles[1].set_ready(true);
    told.end().await;
    assert!(told.bookmark >= Some(seen) && told.bookmark < Some(missed));
    assert_eq!(nodes.handed_over("ended").await, 1.0);
}
