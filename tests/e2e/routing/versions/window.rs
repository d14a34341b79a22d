//! Requests without a version, while those of the servers differ: policies, newer clients, parameters, and answers that
//! only an older server gives.

use std::time::Duration;

use testkit::double::{Fault, ScriptedAnswer};
use testkit::wire::{Pieces, Wire, request};

use super::*;

/// The policy that makes the oldest or the newest server the first one.
async fn prefer(three: &mut Three, policy: &str) {
    for proxy in &mut three.proxies {
        proxy.reconfigure("versionAwareness.default", policy);
        proxy
            .until_setting("versionAwareness.default", policy)
            .await;
    }
}

async fn create(client: &Client, name: &str) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}});
    let written = client.request("POST", PODS, pod.to_string()).await;
    assert_eq!(written.code(), 201, "{}", written.text());
}

#[tokio::test]
async fn a_policy_or_a_newer_client_of_kubernetes_chooses_who_serves() {
    let mut three = Three::new().await;
    a_policy_sends_all_that_ask_for_nothing_to_the_oldest_or_the_newest(&mut three).await;
    a_newer_client_of_kubernetes_goes_to_a_server_that_is_not_older(&mut three).await;
}

async fn a_policy_sends_all_that_ask_for_nothing_to_the_oldest_or_the_newest(three: &mut Three) {
    for (policy, server) in [("Oldest", "a"), ("Newest", "c")] {
        prefer(three, policy).await;
        for at in 0..3 {
            assert_eq!(three.server_of(&three.plain(at), PODS).await, server);
            three
                .doubles
                .iter()
                .for_each(|double| drop(double.take_requests()));
            create(
                &three.plain(at),
                &format!("{}-{at}-{server}", policy.to_lowercase()),
            )
            .await;
            let written = NAMES.iter().zip(&three.doubles);
            let written = written.filter(|(_, double)| double.count(PODS) > 0);
            assert_eq!(written.map(|(name, _)| *name).collect::<String>(), server);
            let window = three.proxies[at].statusz().await["window"].clone();
            assert_eq!(window["versions"], json!(["1.31", "1.32", "1.33"]));
            assert_eq!(window["policy"], policy);
            assert!(window["since"].is_string(), "{window}");
            // Who asks for a version gets it.
            three.expect(at, PODS, &[("1.32", "b")]).await;
            // Its version is no client's.
            let old = three
                .plain(at)
                .header("user-agent", "kubelet/v1.32.0 (linux/amd64)");
            assert_eq!(three.server_of(&old, PODS).await, server);
        }
    }
    prefer(three, "Any").await;
    assert_eq!(three.server_of(&three.plain(1), PODS).await, "b");
}

#[tokio::test]
async fn a_class_that_has_nobody_ready_falls_through_to_the_next() {
    let mut three = Three::new().await;
    prefer(&mut three, "Newest").await;
    assert_eq!(three.server_of(&three.plain(0), PODS).await, "c");
    three.proxies[2].kill();
    for _ in 0..2 {
        assert_eq!(three.server_of(&three.plain(0), PODS).await, "b");
    }
    create(&three.plain(0), "one").await;
    three.proxies[1].kill();
    assert_eq!(three.server_of(&three.plain(0), PODS).await, "a");
    create(&three.plain(0), "two").await;
}

/// With the policy `Any`. C dies.
async fn a_newer_client_of_kubernetes_goes_to_a_server_that_is_not_older(three: &mut Three) {
    for (user_agent, served) in [
        (
            "kubelet/v1.32.9 (linux/amd64) kubernetes/abcdef0",
            ["b", "b", "c"],
        ),
        (
            "kube-controller-manager/v1.33.0 (linux/amd64) kubernetes/x/leader-election",
            ["c"; 3],
        ),
        // Nobody is moved to an older server, and nobody is as new as this.
        ("kubelet/v1.31.0", NAMES),
        ("kubectl/v1.34.0", NAMES),
        ("kubectl/v999.0.0", NAMES),
        ("curl/8.0 kubelet/v1.33.0", NAMES),
        ("kubelet/v1.33", NAMES),
        ("kubelet", NAMES),
    ] {
        for (at, server) in served.into_iter().enumerate() {
            let client = three.plain(at).header("user-agent", user_agent);
            assert_eq!(
                three.server_of(&client, PODS).await,
                server,
                "{user_agent} at {at}"
            );
        }
    }
    let newer = three.plain(0).header("user-agent", "kubelet/v1.33.0");
    // Another server's death leads to no 503.
    three.proxies[2].kill();
    assert_eq!(three.server_of(&newer, PODS).await, "a");
    create(&newer, "one").await;
    let middle = three.plain(0).header("user-agent", "kubelet/v1.32.0");
    assert_eq!(three.server_of(&middle, PODS).await, "b");
    three.proxies[0].reconfigure("versionAwareness.userAgents", "false");
    three.proxies[0]
        .until_setting("versionAwareness.userAgents", "false")
        .await;
    assert_eq!(three.server_of(&middle, PODS).await, "a");
}

/// Who serves this client at one of the proxies, over several connections.
async fn assert_serves(three: &Three, (at, user_agent): (usize, &str), server: &str) {
    for _ in 0..12 {
        let client = three.plain(at).header("user-agent", user_agent);
        assert_eq!(three.server_of(&client, PODS).await, server, "{user_agent}");
    }
}

#[tokio::test]
async fn nobody_is_moved_to_an_older_server_while_the_local_one_cannot_serve_or_is_not_known() {
    let mut three = Three::new().await;
    // B is down. Who is newer than all is not moved to an older one either.
    three.doubles[1].stop().await;
    three.knows(2, 1).await;
    for version in ["1.32", "1.33", "1.34"] {
        assert_serves(&three, (1, &format!("kubectl/v{version}.0")), "c").await;
    }
    three.doubles[1].start_again().await;
    three.doubles[1].set_ready(true);
    three.knows(2, 2).await;
    three.doubles[2].stop().await;
    assert_serves(&three, (2, "kubelet/v1.32.0"), "b").await;
    // C comes back as an older one, and is initialized before it tells its version.
    three.doubles[2].change_preset(|preset| preset.git_version("v1.31.4"));
    for fault in [Some(Fault::Hang), None] {
        let is_known = fault.is_none();
        three.doubles[2].set_fault("/version", fault);
        three.doubles[2].restart().await;
        three.doubles[2].set_ready(true);
        let wanted = json!([true, is_known]);
        eventually("C is initialized", LONG, async || {
            let server = three.proxies[2].statusz().await["server"].take();
            json!([server["initialized"], server["discoveryKnown"]]) == wanted
        })
        .await;
        assert_serves(&three, (2, "kubelet/v1.32.0"), "b").await;
    }
    let status = three.proxies[2].statusz().await;
    assert_eq!(status["server"]["compatibilityVersion"], "1.31");
}

#[tokio::test]
async fn a_peer_that_was_replaced_comes_after_those_that_have_told_their_versions() {
    let presets = ["v1.31.4", "v1.32.0", "v1.32.0"];
    let presets = presets.map(|version| v1_36().git_version(version));
    let mut three = Three::with(presets, |options| options).await;
    three.doubles[2].stop().await;
    three.knows(0, 1).await;
    three.doubles[2].change_preset(|preset| preset.git_version("v1.31.4"));
    three.doubles[2].set_fault("/version", Some(Fault::Hang));
    three.doubles[2].start_again().await;
    three.doubles[2].set_ready(true);
    eventually("C is a target, and unknown", LONG, async || {
        let status = three.proxies[0].statusz().await;
        let mut peers = status["peers"].as_array().into_iter().flatten();
        peers.any(|peer| peer["target"] == true && peer["known"] == false)
    })
    .await;
    assert_serves(&three, (0, "kubelet/v1.32.0"), "b").await;
}

#[tokio::test]
async fn a_read_with_a_parameter_goes_to_a_server_that_knows_it() {
    let presets = ["v1.24.0", "v1.30.0", "v1.36.1"].map(|version| v1_36().git_version(version));
    let mut three = Three::with(presets, |options| options).await;
    for policy in ["Any", "Oldest"] {
        prefer(&mut three, policy).await;
        for (query, server) in [
            ("?limit=5", "a"),
            ("?resourceVersionMatch=NotOlderThan&resourceVersion=0", "a"),
            ("?shardSelector=x", "c"),
            ("?fieldSelector=spec.hostNetwork%3Dtrue", "b"),
        ] {
            for double in &three.doubles {
                double.take_requests();
            }
            three.plain(0).get(&format!("{PODS}{query}")).await;
            let asked = NAMES.iter().zip(&three.doubles);
            let asked = asked.filter(|(_, double)| {
                double
                    .requests()
                    .iter()
                    .any(|seen| seen.path.starts_with(PODS))
            });
            let asked: String = asked.map(|(name, _)| *name).collect();
            assert_eq!(asked, server, "{policy} {query}");
        }
    }
}

const UNKNOWN_FIELD: &str = "\"spec.clusterIP\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"";
const UNKNOWN_FORMAT: &str = "the body of the request was in an unknown format - accepted media types include: \
    application/json-patch+json, application/merge-patch+json";

/// What an apiserver says that does not understand a request.
fn rejection(code: u16, message: &str) -> Fault {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "code": code,
    });
    let answer = ScriptedAnswer::new(code).header("content-type", "application/json");
    Fault::Answer(Box::new(answer.body(status.to_string())))
}

impl Three {
    /// Which servers are asked for pods.
    async fn asked(&self, request: impl Future<Output = Response>) -> (u16, String) {
        for double in &self.doubles {
            double.take_requests();
        }
        let code = request.await.code();
        let asked = NAMES.iter().zip(&self.doubles);
        let asked = asked.filter(|(_, double)| {
            let requests = double.requests();
            requests.iter().any(|seen| seen.path.starts_with(PODS))
        });
        (code, asked.map(|(name, _)| *name).collect())
    }

    fn without_faults(&self) {
        for double in &self.doubles {
            double.set_fault(PODS, None);
        }
    }
}

#[tokio::test]
async fn what_an_older_server_does_not_understand_is_asked_of_a_newer_one() {
    let mut three = Three::new().await;
    a_read_goes_on_to_all_newer_ones(&three).await;
    three.without_faults();
    a_write_goes_on_although_its_body_has_not_ended(&three).await;
    three.without_faults();
    other_rejections_pass_at_once_and_a_write_goes_on_only_after_415(&three).await;
    three.without_faults();
    a_newer_server_that_cannot_answer_leaves_the_first_answer(&mut three).await;
}

async fn a_read_goes_on_to_all_newer_ones(three: &Three) {
    let get = async |at: usize| {
        let client = three.plain(at);
        three
            .asked(client.get(&format!("{PODS}?fieldSelector=x%3Dy")))
            .await
    };
    for (code, message) in [
        (400, UNKNOWN_FIELD),
        (400, "field label not supported: spec.hostNetwork"),
        (
            406,
            "only the following media types are accepted: application/json",
        ),
        (415, UNKNOWN_FORMAT),
        (
            422,
            "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled",
        ),
    ] {
        three.doubles[0].set_fault(PODS, Some(rejection(code, message)));
        three.doubles[1].set_fault(PODS, Some(rejection(code, message)));
        // The nearest newer one, then the next.
        assert_eq!(get(0).await, (200, "abc".to_owned()), "{code}");
        assert_eq!(get(1).await, (200, "bc".to_owned()), "{code}");
        // A server is not asked because a newer one has rejected the request.
        three.doubles[2].set_fault(PODS, Some(rejection(code, message)));
        assert_eq!(get(2).await, (code, "c".to_owned()));
        // All say so: the first answer passes.
        three.doubles[0].set_fault(PODS, Some(rejection(code, &format!("{message}. first"))));
        let answer = three.plain(0).get(PODS).await;
        assert_eq!(answer.code(), code);
        assert!(answer.text().contains("first"), "{}", answer.text());
        three.doubles[2].set_fault(PODS, None);
    }
    let failovers = three.proxies[0].metric(
        "kube_interop_proxy_failovers_total",
        &[("reason", "not_understood")],
    );
    assert!(failovers.await >= 5.0);
}

async fn other_rejections_pass_at_once_and_a_write_goes_on_only_after_415(three: &Three) {
    let client = three.plain(0);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}}).to_string();
    for (code, message, asked) in [
        (400, "the object provided is unrecognized", "a"),
        (
            422,
            "Pod \"a\" is invalid: spec.containers: Required value",
            "a",
        ),
    ] {
        three.doubles[0].set_fault(PODS, Some(rejection(code, message)));
        assert_eq!(
            three.asked(client.get(PODS)).await,
            (code, asked.to_owned())
        );
    }
    for (code, message, expected) in [
        (400, UNKNOWN_FIELD, (400, "a")),
        (415, "a webhook does not like this", (415, "a")),
        (415, UNKNOWN_FORMAT, (201, "ab")),
    ] {
        three.doubles[0].set_fault(PODS, Some(rejection(code, message)));
        let created = client.request("POST", PODS, pod.clone());
        let (code, asked) = three.asked(created).await;
        assert_eq!((code, &*asked), expected, "{message}");
    }
    // A newer server that may have executed it is no reason to pass the older one's answer.
    three.doubles[1].set_fault(PODS, Some(Fault::Reset));
    let answer = client.request("POST", PODS, pod).await;
    assert_eq!(answer.code(), 503, "{}", answer.text());
    assert!(!answer.headers.contains_key("retry-after"));
}

async fn a_write_goes_on_although_its_body_has_not_ended(three: &Three) {
    for double in &three.doubles {
        double.set_fault(PODS, Some(rejection(415, UNKNOWN_FORMAT)));
    }
    let client = three.plain(0);
    let host = three.proxies[0].addr().to_string();
    for wire in Wire::each(&client) {
        let mut wire = wire.await;
        let body = Pieces::of(["{".into()]).unfinished();
        let answer = three
            .asked(async { wire.send(&host, request("POST", PODS, body)).await.unwrap() })
            .await;
        assert_eq!(answer, (415, "abc".to_owned()));
    }
}

async fn a_newer_server_that_cannot_answer_leaves_the_first_answer(three: &mut Three) {
    three.doubles[0].set_fault(PODS, Some(rejection(400, UNKNOWN_FIELD)));
    three.proxies[1].kill();
    three.proxies[2].kill();
    let answer = three.plain(0).get(PODS).await;
    assert_eq!(answer.code(), 400);
    assert!(
        answer.text().contains("known field selector"),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn one_version_costs_nothing() {
    let alike = ["v1.36.0", "v1.36.1", "v1.36.2"].map(|version| v1_36().git_version(version));
    let three = Three::with(alike, |options| {
        options.set("versionAwareness.default", "Newest")
    })
    .await;
    three.doubles[0].set_fault(PODS, Some(rejection(400, UNKNOWN_FIELD)));
    let client = three.plain(0).header("user-agent", "kubelet/v1.99.0");
    let path = format!("{PODS}?shardSelector=x");
    let read = client.get(&path);
    assert_eq!(three.asked(read).await, (400, "a".to_owned()));
}

#[tokio::test]
async fn many_reads_leave_the_only_server_of_a_version_and_writes_do_not() {
    let mut three = Three::new().await;
    prefer(&mut three, "Newest").await;
    three.doubles[2].set_fault(PODS, Some(Fault::Hang));
    let gauge = ("kube_interop_proxy_reads_by_version", [("kind", "short")]);
    let reads: Vec<_> = (0..100)
        .map(|_| {
            let client = three.plain(0);
            tokio::spawn(async move { client.get(PODS).await.code() })
        })
        .collect();
    three.proxies[0]
        .until_metric(gauge.0, &gauge.1, |count| count == 100.0)
        .await;
    eventually("all have arrived", LONG, async || {
        three.doubles[2].count(PODS) == 100
    })
    .await;
    let read = async || three.asked(three.plain(0).get(PODS)).await;
    assert_eq!(read().await, (200, "a".to_owned()));
    let left = [("reason", "load")];
    let left = three.proxies[0].metric("kube_interop_proxy_version_class_left_total", &left);
    assert!(left.await >= 1.0);
    // A write waits.
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}}).to_string();
    let client = three.plain(0);
    let write = three.asked(client.request("POST", PODS, pod));
    let waited = tokio::time::timeout(Duration::from_millis(700), write).await;
    assert!(waited.is_err(), "{waited:?}");
    assert_eq!(three.doubles[0].count(PODS), 0);
    for read in reads {
        read.abort();
    }
    three.proxies[0]
        .until_metric(gauge.0, &gauge.1, |count| count == 0.0)
        .await;
    three.doubles[2].set_fault(PODS, None);
    assert_eq!(read().await, (200, "c".to_owned()));
}
