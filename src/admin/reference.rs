//! `docs/metrics.md`: what is registered, as the collectors describe it, with the values of labels.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write as _;

use prometheus::core::Collector;

use super::documents::How;
use super::lease::LeaseOwner;
use super::metrics::Metrics;
use crate::reference::{assert_current, cell, code};
use crate::routing::decide::Row;
use crate::watches::proof::Withheld;

const INTRODUCTION: &str = "\
# Metrics reference

<!-- Made of the code; do not edit. UPDATE_DOCS=1 cargo test --lib reference -->

Prometheus' text format at `/metrics` of the admin port (`admin.bindAddress`, by default `127.0.0.1:10260`), plain HTTP.
Label values come from what is known of the cluster or from fixed lists, never from a request: nobody can make series
without end. What to do about them is in [troubleshooting.md](troubleshooting.md).

| metric | type | labels | meaning |
|---|---|---|---|
";

struct Described {
    name: String,
    kind: String,
    labels: Vec<String>,
    help: String,
}

thread_local! {
    static SEEN: RefCell<Vec<Described>> = const { RefCell::new(Vec::new()) };
}

/// A metric was registered.
pub(super) fn note(collector: &impl Collector) {
    let families = collector.collect();
    let kinds = families
        .iter()
        .map(|it| format!("{:?}", it.get_field_type()));
    let seen = collector.desc().into_iter().zip(kinds);
    let seen = seen.map(|(desc, kind)| Described {
        name: desc.fq_name.clone(),
        kind: kind.to_lowercase(),
        labels: desc.variable_labels.clone(),
        help: desc.help.clone(),
    });
    SEEN.with_borrow_mut(|all| all.extend(seen));
}

fn all() -> Vec<Described> {
    SEEN.take();
    Metrics::new().unwrap();
    let mut all = SEEN.take();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// The texts in quotes in the function of `source` that begins like this.
pub(crate) fn texts<'s>(source: &'s str, function: &str) -> Vec<&'s str> {
    let (_, body) = source.split_once(function).expect(function);
    let (body, _) = body.split_once("\n    }\n").expect("its end");
    body.split('"').skip(1).step_by(2).collect()
}

/// What a label's values are.
fn values(metric: &str, label: &str) -> String {
    let short = metric.trim_start_matches("kube_interop_proxy_");
    match (short, label) {
        ("requests_total", "decision") => code(Row::ALL.map(Row::name)),
        ("refusals_total", "reason") => code(texts(
            include_str!("../relay/answer.rs"),
            "pub fn name(self)",
        )),
        ("failovers_total", "reason") => code(texts(
            include_str!("../relay/forward.rs"),
            "pub fn name(&self)",
        )),
        ("discovery_total", "how") => code(How::ALL.map(|(_, name)| name)),
        ("identity_lease", "kept_by") => code(LeaseOwner::ALL.map(LeaseOwner::name)),
        ("last_bookmarks_withheld_total", "reason") => code(Withheld::ALL.map(Withheld::name)),
        ("watches", "bookmarks") => code(["false", "true"]),
        ("peers", "state") => code(["target", "live", "absent"]),
        ("discovery_sources", "state") => code(["read", "failing", "unreachable"]),
        ("discovery_reads_total", "result") => code(["ok", "failed"]),
        (_, "files") => code(["serving", "upstream", "etcd"]),
        (_, "file") => "a key of the configuration, such as `serving.certFile`".to_owned(),
        (_, "code") => "the status code of the answer".to_owned(),
        (_, "group" | "version" | "resource") if short.contains("rerouted") => {
            "as discovery lists it; empty for discovery documents".to_owned()
        }
        ("build_info", "version") => "the program's version".to_owned(),
        ("apiserver_identity", "id") => "the server ID".to_owned(),
        _ => panic!(
            "say in {} what the values of {metric}{{{label}}} are",
            file!()
        ),
    }
}

fn labels(metric: &Described) -> String {
    // Labels that mean the same are named together.
    let mut said: Vec<(Vec<&str>, String)> = Vec::new();
    for label in &metric.labels {
        let values = values(&metric.name, label);
        match said.iter_mut().find(|(_, other)| *other == values) {
            Some((names, _)) => names.push(label),
            None => said.push((vec![label], values)),
        }
    }
    let said = said.iter();
    let said: Vec<_> = said
        .map(|(names, values)| format!("{}: {values}", code(names.iter().copied())))
        .collect();
    said.join("; ")
}

#[test]
fn the_reference_of_the_metrics_is_current() {
    let mut page = INTRODUCTION.to_owned();
    let all = all();
    let names: BTreeSet<_> = all.iter().map(|metric| metric.name.as_str()).collect();
    assert!(names.len() > 30 && names.len() == all.len(), "{names:?}");
    for metric in &all {
        let cells = [
            code([metric.name.as_str()]),
            metric.kind.clone(),
            labels(metric),
            metric.help.clone(),
        ];
        writeln!(page, "| {} |", cells.map(|it| cell(&it)).join(" | ")).unwrap();
    }
    assert_current("metrics.md", &page);
}

#[test]
fn every_metric_passes_where_it_is_noted() {
    let noted = all().len();
    let sources = [
        include_str!("metrics.rs"),
        include_str!("certificates.rs"),
        include_str!("documents.rs"),
        include_str!("gathering.rs"),
        include_str!("lease.rs"),
        include_str!("watches.rs"),
    ];
    let direct: usize = sources
        .iter()
        .map(|it| it.matches(".register(Box").count())
        .sum();
    assert_eq!(
        (direct, noted > 30),
        (1, true),
        "registered past admin::metrics::register"
    );
}
