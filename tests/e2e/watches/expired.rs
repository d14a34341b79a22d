//! A watch that one apiserver answers with 410 goes on at another one. The apiservers are doubles whose history begins
//! where a test says: the proxies know nothing of it, as with the caches of custom resources.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::failover::peers::Three;
use testkit::client::Client;
use testkit::cluster::{HPAS, LONG, REROUTED};
use testkit::double::{Fault, ScriptedAnswer, ServedResource, Store};
use testkit::process::Signal;
use testkit::proxy::ProxyOptions;
use testkit::registry::Registry;
use testkit::streaming::Streaming;
use testkit::wait::eventually;

const PODS: &str = "/api/v1/namespaces/default/pods";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const EXPIRED: &str = "kube_interop_proxy_expired_watches_total";
const FAILOVERS: &str = "kube_interop_proxy_failovers_total";
const JSON: &str = "application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Above every revision of the test's etcd: each history is known to reach back.
const EARLY: u64 = 1000;

/// Three that also serve widgets, and a revision before one change of each resource.
async fn start() -> (Three, u64) {
    start_with(|options| options).await
}

/// `change`: of all proxies' options.
async fn start_with(change: impl Fn(ProxyOptions) -> ProxyOptions) -> (Three, u64) {
    let store = Store::new();
    let widgets = || ServedResource::custom("example.com", "v1", "widgets", "Widget");
    let three = Three::start(&store, |preset| preset.with(widgets()), change).await;
    let registry = Registry::new(three.ground.etcd.client().await, "/registry");
    registry.put_definition("widgets.example.com").await;
    while store.tick() < EARLY {}
    let seen = store.revision();
    three.until_a_knows_both().await;
    eventually("A's proxy knows the rest", LONG, async || {
        let status = three.proxies[0].statusz().await;
        // The doubles have served widgets before there was a CRD.
        let is_custom_everywhere = status["custom"].to_string().contains("\"widgets\"")
            && !status["resources"].to_string().contains("\"widgets\"");
        // Until its own history is known, an older watch goes to another server first.
        status["server"]["historyStart"].is_i64() && is_custom_everywhere
    })
    .await;
    three.create("missed").await;
    (three, seen)
}

fn watch_path(path: &str, seen: u64) -> String {
    format!("{path}?watch=true&allowWatchBookmarks=true&resourceVersion={seen}")
}

impl Three {
    /// Creates an object of each resource, at B itself.
    async fn create(&self, name: &str) {
        let b = self.direct(1);
        for path in [PODS, WIDGETS, HPAS] {
            let path = path.replace("/v1/horizontal", "/v1/namespaces/default/horizontal");
            let object = json!({"metadata": {"name": name}}).to_string();
            assert_eq!(b.request("POST", &path, object).await.code(), 201, "{path}");
        }
        self.servers.iter().for_each(|double| {
            double.take_requests();
        });
    }

    /// From now on these apiservers have no history before now.
    fn expire(&self, doubles: &[usize]) {
        for index in doubles {
            let double = &self.servers[*index];
            double.set_history_start(double.store().revision() + 1 + *index as u64);
        }
    }

    fn as_status(&self, is_status: bool) {
        let doubles = self.servers.iter();
        doubles.for_each(|double| double.set_expired_as_status(is_status));
    }

    /// The administrator at an apiserver itself.
    fn direct(&self, server: usize) -> Client {
        Client::new(self.servers[server].addr(), &self.ground.pki).cert("admin")
    }

    /// Over HTTP/1.1 and HTTP/2, some of which ask B first and some C.
    fn of_each_version(&self) -> Vec<Client> {
        let each = (0..4).flat_map(|_| [self.admin().http1(), self.admin().http2()]);
        each.collect()
    }

    /// How many were served by others, and how many were not.
    async fn counted(&self) -> (f64, f64) {
        let of = async |result| self.proxies[0].metric(EXPIRED, &[("result", result)]).await;
        (of("avoided").await, of("passed").await)
    }

    /// Requests for `path` that the apiservers got.
    fn asked(&self, path: &str) -> [usize; 3] {
        self.servers.each_ref().map(|double| double.count(path))
    }
}

/// Of a built-in resource in both formats, and of a custom one.
const WATCHES: [(&str, &str); 3] = [(PODS, JSON), (PODS, PROTOBUF), (WIDGETS, JSON)];

/// Reads until the bytes contain this.
async fn until_contains(stream: &mut Streaming, text: &str) -> Vec<u8> {
    let mut read = Vec::new();
    while !contains(&read, text) {
        let piece = stream.next_chunk(LONG).await.unwrap();
        let so_far = String::from_utf8_lossy(&read).into_owned();
        read.extend_from_slice(&piece.unwrap_or_else(|| panic!("ended: {so_far}")));
    }
    read
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

#[tokio::test]
async fn it_goes_on_where_the_history_is() {
    let (three, seen) = start().await;
    three.expire(&[0, 1]);
    let mut open = Vec::new();
    for as_status in [false, true] {
        three.as_status(as_status);
        for (path, accept) in WATCHES {
            for client in three.of_each_version() {
                let client = client.header("accept", accept);
                let mut watch = client.open(&watch_path(path, seen)).await;
                assert_eq!(watch.status, 200);
                assert!(watch.header("content-type").starts_with(accept));
                let read = until_contains(&mut watch, "missed").await;
                assert!(contains(&read, "ADDED") && !contains(&read, "ERROR"));
                open.push(watch);
            }
        }
    }
    let watches = open.len();
    assert_eq!(three.counted().await, (watches as f64, 0.0));
    let [a, b, c] = [PODS, WIDGETS]
        .map(|path| three.asked(path))
        .into_iter()
        .fold([0; 3], |[a, b, c], [of_a, of_b, of_c]| {
            [a + of_a, b + of_b, c + of_c]
        });
    assert_eq!((a, c), (watches, watches));
    assert!((1..watches).contains(&b), "B is asked by some first: {b}");
    let expired = three.failovers("expired").await;
    assert_eq!(expired, (watches + b) as f64);

    // Each is an ordinary watch of C's now.
    three.create("later").await;
    for watch in &mut open {
        until_contains(watch, "later").await;
    }
    three.servers[2].bookmark_now();
    for watch in &mut open {
        until_contains(watch, "BOOKMARK").await;
    }
    drop(open);
    assert!(!three.is_unhealthy("b").await && !three.is_unhealthy("c").await);
    assert_eq!(three.counted().await, (watches as f64, 0.0));
    // The proxies that were asked for others pass a 410, and count nothing.
    for proxy in &three.proxies[1..] {
        for result in ["avoided", "passed"] {
            assert_eq!(proxy.metric(EXPIRED, &[("result", result)]).await, 0.0);
        }
    }
}

#[tokio::test]
async fn if_no_server_has_the_history_the_first_410_passes_unchanged() {
    let (three, seen) = start().await;
    three.expire(&[0, 1, 2]);
    let mut watches = 0.0;
    for as_status in [false, true] {
        three.as_status(as_status);
        for (path, accept) in WATCHES {
            let direct = three.direct(0).header("accept", accept);
            let direct = direct.get(&watch_path(path, seen)).await;
            for client in [three.admin().http1(), three.admin().http2()] {
                three
                    .servers
                    .iter()
                    .for_each(|double| drop(double.take_requests()));
                let answer = client
                    .header("accept", accept)
                    .get(&watch_path(path, seen))
                    .await;
                assert_eq!(answer.code(), if as_status { 410 } else { 200 });
                assert_eq!((answer.status, &answer.body), (direct.status, &direct.body));
                let content_type = "content-type";
                assert_eq!(answer.header(content_type), direct.header(content_type));
                assert!(contains(&answer.body, "too old resource version"));
                assert_eq!(three.asked(path), [1; 3], "each once");
                watches += 1.0;
            }
        }
    }
    assert_eq!(three.counted().await, (0.0, watches));
    assert!(!three.is_unhealthy("b").await && !three.is_unhealthy("c").await);
    assert_eq!(three.proxies[0].metric(REROUTED, &[]).await, 0.0);
}

/// An answer to a watch in JSON that has this much of a body.
fn scripted(body: impl Into<Bytes>) -> ScriptedAnswer {
    let answer = ScriptedAnswer::new(200).header("content-type", JSON);
    answer.body(body).in_pieces(20, Duration::ZERO)
}

/// A fault of an apiserver that is asked for another one.
fn answering(answer: ScriptedAnswer) -> Fault {
    Fault::Answer(Box::new(answer))
}

const HALF: &str = r#"{"type":"ERROR","object":{"kind":"Status","#;

#[tokio::test]
async fn another_servers_failure_is_none_of_the_clients() {
    let other = r#"{"type":"ERROR","object":{"kind":"Status","code":500}}"#;
    let text = ScriptedAnswer::new(200).header("content-type", "text/plain");
    others_fail(vec![
        ("404", Fault::Status(404, None)),
        ("503", Fault::Status(503, Some(1))),
        ("403", Fault::Status(403, None)),
        ("reset", Fault::Reset),
        ("other format", answering(text)),
        ("half an error, ends", answering(scripted(HALF))),
        (
            "half an error, breaks",
            answering(scripted(HALF).then_break()),
        ),
        ("nothing, breaks", answering(scripted("").then_break())),
        ("another error", answering(scripted(format!("{other}\n")))),
    ])
    .await;
}

#[tokio::test]
async fn another_servers_silence_is_waited_for_only_shortly() {
    others_fail(vec![("no header", Fault::Hang)]).await;
}

#[tokio::test]
async fn half_an_error_of_another_server_is_waited_for_only_shortly() {
    let half = scripted(HALF).then_hang();
    let endless = format!("{HALF}\"{}", "x".repeat(200 << 10));
    let endless = scripted(endless).in_pieces(8 << 10, Duration::ZERO);
    others_fail(vec![
        ("half an error", answering(half)),
        ("an error without an end", answering(endless.then_hang())),
    ])
    .await;
}

/// A's 410 is followed while one of the others, or both, have a fault.
async fn others_fail(faults: Vec<(&str, Fault)>) {
    let (three, seen) = start().await;
    three.expire(&[0]);
    for (what, fault) in faults {
        for as_status in [false, true] {
            three.as_status(as_status);
            one_of_two_fails(&three, seen, what, &fault).await;
            both_fail(&three, seen, what, &fault).await;
        }
    }
}

async fn one_of_two_fails(three: &Three, seen: u64, what: &str, fault: &Fault) {
    three.servers[1].set_fault(PODS, Some(fault.clone()));
    three.servers[2].set_fault(PODS, None);
    let opening = three.of_each_version().into_iter().map(async |client| {
        let mut watch = client.timeout(LONG).open(&watch_path(PODS, seen)).await;
        until_contains(&mut watch, "missed").await
    });
    for read in join_all(opening).await {
        assert!(read.starts_with(b"{\"type\":\"ADDED\""), "{what}: {read:?}");
    }
}

async fn both_fail(three: &Three, seen: u64, what: &str, fault: &Fault) {
    for peer in &three.servers[1..] {
        peer.set_fault(PODS, Some(fault.clone()));
    }
    let direct = three.direct(0).get(&watch_path(PODS, seen)).await;
    let asking = [three.admin().http1(), three.admin().http2()]
        .map(async |client| client.timeout(LONG).get(&watch_path(PODS, seen)).await);
    for answer in join_all(asking.into_iter()).await {
        if answer.code() == direct.code() {
            assert_eq!(answer.body, direct.body, "{what}");
        } else {
            // The client had a header of a server that failed then.
            assert_eq!((answer.code(), direct.code()), (200, 410), "{what}");
            let event = answer.json();
            assert_eq!(event["type"], "ERROR", "{what}");
            assert_eq!(event["object"], direct.json(), "{what}");
        }
    }
}

/// Runs them at the same time.
async fn join_all<T>(work: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut pinned: Vec<_> = work.map(|one| Box::pin(one)).collect();
    let mut done: Vec<Option<T>> = pinned.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (one, done) in pinned.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(result) = one.as_mut().poll(context)
            {
                *done = Some(result);
            }
        }
        match done.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[tokio::test]
async fn a_peer_that_is_dead_is_passed_over() {
    let (mut three, seen) = start().await;
    three.expire(&[0]);
    three.proxies[1].kill();
    for client in three.of_each_version() {
        let mut watch = client.open(&watch_path(WIDGETS, seen)).await;
        until_contains(&mut watch, "missed").await;
    }
    three.servers[2].stop().await;
    for client in three.of_each_version() {
        let answer = client.get(&watch_path(WIDGETS, seen)).await;
        assert!(contains(&answer.body, "too old resource version"));
    }
}

/// It may have the history, and nobody else has it.
#[tokio::test]
async fn nobody_waits_for_a_frozen_server() {
    let (mut three, seen) = start().await;
    three.expire(&[0, 2]);
    three.proxies[1].process().signal(Signal::Stop);
    let clients: Vec<_> = (0..16).map(|_| three.admin().http2()).collect();
    let path = watch_path(WIDGETS, seen);
    let mut moved = Vec::new();
    for _ in 0..2 {
        let before = three.proxies[0].metric(FAILOVERS, &[]).await;
        let asking = clients.iter().map(|client| client.get(&path));
        for answer in join_all(asking).await {
            assert!(contains(&answer.body, "too old resource version"));
        }
        moved.push(three.proxies[0].metric(FAILOVERS, &[]).await - before);
    }
    // All go from A to C. Some ask B, too, until it is known: 0.8 s until it is asked, and 1 s for its answer.
    let all = clients.len() as f64;
    assert!(moved[0] > all && moved[1] == all, "{moved:?}");
    three.proxies[1].process().signal(Signal::Cont);
}

#[tokio::test]
async fn the_header_of_a_quiet_watch_does_not_wait() {
    let (mut three, _) = start().await;
    three.expire(&[0]);
    let missed = three.servers[1].store().revision();
    let now = format!("{WIDGETS}?watch=true&resourceVersion={missed}");
    three.expire(&[0]);
    let after = three.servers[0].store().tick() + 5;
    let local = format!("{WIDGETS}?watch=true&resourceVersion={after}");
    for client in [three.admin().http1(), three.admin().http2()] {
        for path in [&now, &local] {
            let mut watch = client.open(path).await;
            assert_eq!(watch.status, 200);
            assert!(watch.is_quiet(Duration::from_millis(300)).await);
        }
    }
    // A quiet watch counts when it ends.
    three.proxies[0]
        .until_metric(EXPIRED, &[("result", "avoided")], |count| count == 2.0)
        .await;
    // Its server goes away: it is tried elsewhere, and ends in order.
    let mut watch = three.admin().open(&now).await;
    let open = async || three.servers[1].count(WIDGETS) + three.servers[2].count(WIDGETS) >= 3;
    eventually("another server is asked", LONG, open).await;
    three.servers[1].stop().await;
    three.servers[2].stop().await;
    let end = watch.next_event(LONG).await.unwrap();
    assert!(end.is_none_or(|event: Value| event["object"]["code"] == 410));
}

#[tokio::test]
async fn a_watch_that_was_rerouted_is_followed_by_the_first_proxy() {
    let (three, seen) = start().await;
    three.expire(&[1]);
    for as_status in [false, true] {
        three.as_status(as_status);
        for client in three.of_each_version() {
            let watch = format!("{}&timeoutSeconds=1", watch_path(HPAS, seen));
            let answer = client.get(&watch).await;
            assert_eq!(answer.code(), 200);
            assert!(contains(&answer.body, "missed") && !contains(&answer.body, "ERROR"));
        }
    }
    let [a, b, c] = three.asked(HPAS);
    assert_eq!((a, c), (0, 16));
    assert!((1..16).contains(&b), "{b}");
    assert_eq!(three.counted().await, (b as f64, 0.0));
    let labels = [("code", "200"), ("resource", "horizontalpodautoscalers")];
    three.proxies[0]
        .until_metric(REROUTED, &labels, |count| count == 16.0)
        .await;
    for proxy in &three.proxies[1..] {
        assert_eq!(proxy.metric(EXPIRED, &[]).await, 0.0);
    }
}

#[tokio::test]
async fn without_resume_routing_and_without_a_revision_a_410_passes() {
    let off = |options: ProxyOptions| options.set("watch.resumeRouting", "false");
    let (three, seen) = start_with(off).await;
    three.expire(&[0]);
    for as_status in [false, true] {
        three.as_status(as_status);
        let answer = three.admin().get(&watch_path(WIDGETS, seen)).await;
        assert!(contains(&answer.body, "too old resource version"));
    }
    assert_eq!(three.asked(WIDGETS), [2, 0, 0]);
    assert_eq!(three.counted().await, (0.0, 0.0));
}

#[tokio::test]
async fn other_watches_and_requests_are_not_looked_at() {
    let (three, _) = start().await;
    let expired = r#"{"type":"ERROR","object":{"kind":"Status","code":410}}"#.to_owned() + "\n";
    for answer in [
        scripted(expired.clone()),
        ScriptedAnswer::new(410).body(expired),
    ] {
        three.servers[0].set_fault(WIDGETS, Some(Fault::Answer(Box::new(answer))));
        for query in [
            "?watch=true",
            "?watch=true&resourceVersion=0",
            "?continue=x",
        ] {
            let answer = three.admin().get(&format!("{WIDGETS}{query}")).await;
            assert!(contains(&answer.body, "410"), "{query}");
        }
    }
    assert_eq!(three.asked(WIDGETS), [6, 0, 0]);
    assert_eq!(three.counted().await, (0.0, 0.0));
}
