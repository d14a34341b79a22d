//! Generates `docs/metrics.md` from the registered collectors, and checks that it is current.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use prometheus::Registry;

use crate::admin::document::PEER_STATES;
use crate::admin::metrics::Gauges;
use crate::discovery::metrics::PeerDiscoveryMetrics;
use crate::otlp::metrics::SpanMetrics;
use crate::publish::metrics::{self, IdentityMetrics};
use crate::reference::{REGISTERED, RegisteredMetric, assert_current, cell, code};
use crate::relay::answer::Refusal;
use crate::relay::client::unread::ResetReason;
use crate::relay::observe::{Metrics, NO_DECISION, VerbClass};
use crate::reload::metrics::ReloadMetrics;
use crate::routing::decide::Row;
use crate::server::metrics::ConnectionMetrics;
use crate::tls::metrics::CertificateMetrics;
use crate::watches::change_log::Withheld;
use crate::watches::metrics::{EXPIRED_RESULTS, HandOverResult, LeaveReason};

const INTRODUCTION: &str = "\
# Metrics reference

<!-- Generated from the code; do not edit. UPDATE_DOCS=1 cargo test --lib reference -->

Prometheus' text format at `/metrics` of the [admin ports](commands.md#admin-port). Label values come from fixed lists or from
the cluster, never from a request. Counters end in `_total` or `_count`; what is no histogram is a gauge. How to react:
[troubleshooting.md](troubleshooting.md).

| metric | labels | meaning |
|---|---|---|
";

fn all() -> Vec<RegisteredMetric> {
    REGISTERED.take();
    let registry = Registry::new();
    Gauges::new(&registry).unwrap();
    ConnectionMetrics::new(&registry).unwrap();
    Metrics::new(&registry).unwrap();
    PeerDiscoveryMetrics::new(&registry).unwrap();
    IdentityMetrics::new(&registry).unwrap();
    CertificateMetrics::new(&registry).unwrap();
    SpanMetrics::new(&registry).unwrap();
    ReloadMetrics::new(&registry).unwrap();
    let mut all = REGISTERED.take();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// The string literals in the function of `source` that begins with this text.
fn texts<'s>(source: &'s str, function: &str) -> Vec<&'s str> {
    let (_, body) = source.split_once(function).expect(function);
    let (body, _) = body.split_once("\n    }\n").expect("its end");
    body.split('"').skip(1).step_by(2).collect()
}

/// Describes the values of a label.
fn values(metric: &str, label: &str) -> String {
    let short = metric.trim_start_matches("kube_interop_proxy_");
    match (short, label) {
        ("requests_total", "decision") => format!(
            "{}; `{NO_DECISION}`: the proxy answered before it came to the table",
            code(Row::ALL.map(Row::name))
        ),
        ("time_to_first_byte_seconds", "decision") => "as of requests_total".to_owned(),
        ("requests_total", "code") => "the answer's; of a rare one its class, as `4xx`; `none`: the client went away before"
            .to_owned(),
        (_, "verb_class") => code(VerbClass::ALL.map(VerbClass::name)),
        ("if_ready_answers_total", "ready") => code(["false", "true"]),
        ("spans_total", "result") => code(["exported", "failed", "dropped"]),
        ("failed_reroutes_total", "result") => code(["answered", "refused"]),
        ("refusals_total", "reason") => code(Refusal::ALL.map(Refusal::name)),
        ("failovers_total", "reason") => code(texts(
            include_str!("../../relay/outcome.rs"),
            "pub fn name(&self)",
        )),
        ("identity_lease", "kept_by") => code([metrics::PROXY, metrics::OTHER]),
        ("last_bookmarks_withheld_total", "reason") => code(Withheld::ALL.map(Withheld::name)),
        ("expired_watches_total", "result") => code(EXPIRED_RESULTS),
        ("watch_hand_overs_total", "reason") => code(LeaveReason::ALL.map(LeaveReason::name)),
        ("watch_hand_overs_total", "result") => code(HandOverResult::ALL.map(HandOverResult::name)),
        ("unread_resets_total", "reason") => code(ResetReason::ALL.map(ResetReason::name)),
        ("reads_by_version", "kind") => code(["short", "long_running"]),
        ("version_class_left_total", "reason") => code(["load", "not_ready"]),
        ("watches", "bookmarks") => code(["false", "true"]),
        ("peers", "state") => code(PEER_STATES),
        ("readyz_check", "check") => code([
            "etcd-synced",
            "apiserver-initialized",
            "apiserver-ready",
            "requestheader",
            "discovery-read",
            "published",
            "serving",
        ]),
        ("discovery_sources", "state") => code(["read", "failing", "unreachable"]),
        ("config_reloads_total", "result") => code(["applied", "failed"]),
        (_, "files") => code(["serving", "upstream", "etcd"]),
        (_, "file") => "the configuration's key, such as `serving.certFile`".to_owned(),
        (_, "code") => "the status code that the client got".to_owned(),
        (_, "group" | "version" | "resource") if short.contains("rerouted") => {
            "as discovery lists it; of a CRD without version, of an aggregated API without resource; empty for \
             discovery documents"
                .to_owned()
        }
        ("build_info", "version") => "the program's version".to_owned(),
        (name, "id") if name.starts_with("apiserver_identity") => {
            "the apiserver's ID".to_owned()
        }
        _ => panic!(
            "say in {} what the values of {metric}{{{label}}} are",
            file!()
        ),
    }
}

fn labels(metric: &RegisteredMetric) -> String {
    // Labels with the same values share one description.
    let mut described: Vec<(Vec<&str>, String)> = Vec::new();
    for label in &metric.labels {
        let values = values(&metric.name, label);
        match described.iter_mut().find(|(_, other)| *other == values) {
            Some((names, _)) => names.push(label),
            None => described.push((vec![label], values)),
        }
    }
    let described = described.iter();
    let described: Vec<_> = described
        .map(|(names, values)| format!("{}: {values}", code(names.iter().copied())))
        .collect();
    described.join("; ")
}

#[test]
fn the_reference_of_the_metrics_is_current() {
    let mut page = INTRODUCTION.to_owned();
    let all = all();
    let names: BTreeSet<_> = all.iter().map(|metric| metric.name.as_str()).collect();
    assert!(names.len() > 30 && names.len() == all.len(), "{names:?}");
    for metric in &all {
        let kind = match metric.kind.as_str() {
            "histogram" => "Histogram. ",
            _ => "",
        };
        let cells = [
            code([metric.name.as_str()]),
            labels(metric),
            format!("{kind}{}", metric.help),
        ];
        writeln!(page, "| {} |", cells.map(|it| cell(&it)).join(" | ")).unwrap();
    }
    assert_current("metrics.md", &page);
}

#[test]
fn what_counts_and_nothing_else_ends_in_total() {
    // The names of KEP-1965.
    const OTHERS: [&str; 2] = [
        "apiserver_identity_lease_failure_count",
        "apiserver_identity_lease_success_count",
    ];
    for metric in all() {
        let is_counter = metric.kind == "counter" && !OTHERS.contains(&metric.name.as_str());
        assert_eq!(
            metric.name.ends_with("_total"),
            is_counter,
            "{}",
            metric.name
        );
        assert!(
            is_counter || metric.help.starts_with("1 ") || !metric.help.contains("since start"),
            "{}",
            metric.name
        );
    }
}

#[test]
fn every_metric_passes_where_it_is_noted() {
    let noted = all().len();
    let sources = [
        include_str!("../metrics.rs"),
        include_str!("../../discovery/metrics.rs"),
        include_str!("../../metrics.rs"),
        include_str!("../../otlp/metrics.rs"),
        include_str!("../../publish/metrics.rs"),
        include_str!("../../relay/observe.rs"),
        include_str!("../../relay/client/unread.rs"),
        include_str!("../../reload/metrics.rs"),
        include_str!("../../server/metrics.rs"),
        include_str!("../../tls/metrics.rs"),
        include_str!("../../watches/metrics.rs"),
    ];
    let direct: usize = sources
        .iter()
        .map(|it| it.matches(".register(Box").count())
        .sum();
    assert_eq!(
        (direct, noted > 30),
        (1, true),
        "registered past metrics::register"
    );
}
