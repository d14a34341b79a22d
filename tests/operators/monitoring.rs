//! `deploy/prometheus`, `deploy/grafana`: Prometheus' own tool accepts the files, alerts fire when they should, and nothing is
//! asked for that a running proxy does not tell.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use testkit::cluster::{Cluster, HPAS, LONG};
use testkit::double::{Fault, v1_20};
use testkit::missing;
use testkit::wait::eventually;

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn promtool(arguments: &[&str]) {
    let mut promtool = Command::new("promtool");
    promtool
        .args(arguments)
        .current_dir(file("deploy/prometheus"));
    let Ok(output) = promtool.output() else {
        missing("promtool", "run tests/install.sh --tests");
    };
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{arguments:?}: {said}");
}

#[test]
fn prometheus_accepts_the_files_and_alerts_fire_when_they_should() {
    promtool(&["check", "config", "scrape.yaml"]);
    // Its token is in a pod.
    promtool(&["check", "config", "--syntax-only", "scrape-secure.yaml"]);
    promtool(&["check", "rules", "rules.yaml"]);
    promtool(&["test", "rules", "rules_test.yaml"]);
}

/// Operators put the place of their documents in for it.
const DOCUMENTS: &str = "https://kube-interop-proxy.example/";
const OPERATORS_RULE: &str = "deploy/prometheus/prometheusrule.yaml";
const OPERATORS_HEAD: &str = "\
# For the Prometheus operator: the rules of rules.yaml. Made from it: UPDATE_DOCS=1 cargo test --test operators prometheusrule
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: kube-interop-proxy
  namespace: kube-system
  labels: {prometheus: k8s, role: alert-rules}
spec:
";

#[test]
fn the_prometheusrule_has_the_rules() {
    let rules = std::fs::read_to_string(file("deploy/prometheus/rules.yaml")).unwrap();
    let (_, groups) = rules.split_once("\ngroups:\n").unwrap();
    let lines = std::iter::once("groups:").chain(groups.lines());
    let lines = lines.map(|line| format!("{}\n", format!("  {line}").trim_end()));
    let made = OPERATORS_HEAD.to_owned() + &lines.collect::<String>();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(file(OPERATORS_RULE), &made).unwrap();
    }
    let found = std::fs::read_to_string(file(OPERATORS_RULE)).unwrap_or_default();
    assert_eq!(found, made, "{OPERATORS_HEAD}");
    let [rules, made] = [rules, made].map(|it| serde_yaml::from_str::<Value>(&it).unwrap());
    assert_eq!(made["spec"]["groups"], rules["groups"]);
}

/// Who watches several clusters with one Prometheus is told which.
#[test]
fn rules_and_dashboard_keep_the_cluster() {
    for rule in rules() {
        let expression = rule["expr"].as_str().unwrap();
        for by in expression.split("by (").skip(1) {
            assert!(by.starts_with("cluster"), "{expression}");
        }
        assert!(!expression.contains("sum("), "{expression}");
    }
    let mut found = Vec::new();
    expressions(&dashboard(), &mut found);
    for expression in found {
        for selector in expression.split('{').skip(1) {
            assert!(
                selector.starts_with("cluster=~\"$cluster\", "),
                "{expression}"
            );
        }
        for by in expression.split("by (").skip(1) {
            assert!(!by.starts_with("instance"), "{expression}");
        }
    }
}

fn rules() -> Vec<Value> {
    let text = std::fs::read_to_string(file("deploy/prometheus/rules.yaml")).unwrap();
    let rules: Value = serde_yaml::from_str(&text).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    groups
        .flat_map(|group| group["rules"].as_array().unwrap().clone())
        .collect()
}

#[test]
fn every_alert_is_tested_and_says_where_to_read_on() {
    let tests = std::fs::read_to_string(file("deploy/prometheus/rules_test.yaml")).unwrap();
    let guide = std::fs::read_to_string(file("docs/troubleshooting.md")).unwrap_or_default();
    let rules = rules();
    let alerts: Vec<_> = rules
        .iter()
        .filter(|rule| rule["record"].is_null())
        .collect();
    assert!(alerts.len() >= 20);
    for rule in alerts {
        let name = rule["alert"].as_str().unwrap();
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(
            ["critical", "warning", "info"].contains(&severity),
            "{name}"
        );
        let url = format!("{DOCUMENTS}docs/troubleshooting.md#{}", name.to_lowercase());
        assert_eq!(rule["annotations"]["runbook_url"], url, "{name}");
        assert!(rule["annotations"]["summary"].is_string(), "{name}");
        assert!(tests.contains(name), "{name} is never tested");
        let heading =
            |line: &str| line.starts_with('#') && line.trim_start_matches(['#', ' ']) == name;
        assert!(
            guide.is_empty() || guide.lines().any(heading),
            "no heading for {name}"
        );
    }
}

/// All `expr` of a tree.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                match value {
                    Value::String(text) if key == "expr" => found.push(text.clone()),
                    _ => expressions(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

/// What expressions are recorded as.
fn recorded(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    words.filter(|word| word.contains(':'))
}

/// The metrics that an expression names, without the suffixes of a histogram's series.
fn names(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let ours = |word: &&str| {
        ["kube_interop_", "kubernetes_", "apiserver_"]
            .iter()
            .any(|start| word.starts_with(start))
    };
    words
        .filter(ours)
        .map(|word| word.strip_suffix("_bucket").unwrap_or(word))
}

#[test]
fn every_recorded_series_that_is_asked_for_is_recorded() {
    let rules = rules();
    let text = |rule: &Value, key: &str| rule[key].as_str().unwrap_or_default().to_owned();
    let are: BTreeSet<_> = rules.iter().map(|rule| text(rule, "record")).collect();
    let asked = rules.iter().map(|rule| text(rule, "expr"));
    let asked: Vec<_> = asked
        .flat_map(|expression| recorded(&expression).map(str::to_owned).collect::<Vec<_>>())
        .collect();
    assert!(asked.len() >= 10, "{asked:?}");
    for name in asked {
        assert!(are.contains(&name), "{name}");
    }
}

fn dashboard() -> Value {
    let text = std::fs::read_to_string(file("deploy/grafana/dashboard.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_dashboard_is_one_and_its_panels_do_not_overlap() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64() >= Some(36));
    assert!(dashboard["title"].is_string() && dashboard["uid"].is_string());
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let number = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        assert!(number("x") + number("w") <= 24, "{panel}");
        for x in number("x")..number("x") + number("w") {
            for y in number("y")..number("y") + number("h") {
                assert!(places.insert((x, y)), "{panel}");
            }
        }
        assert!(panel["title"].is_string() && panel["type"].is_string());
        assert_eq!(panel["datasource"]["uid"], "${datasource}");
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{panel}");
    }
}

/// What dashboard and rules ask for, as PromQL that Prometheus can parse.
#[test]
fn every_expression_of_the_dashboard_is_promql() {
    let mut found = Vec::new();
    expressions(&dashboard(), &mut found);
    let rule = |(number, expression): (usize, &String)| {
        let expression = expression.replace("$__rate_interval", "5m");
        serde_json::json!({"record": format!("panel:{number}"), "expr": expression})
    };
    let rules: Vec<_> = found.iter().enumerate().map(rule).collect();
    assert!(rules.len() > 20);
    let rules = serde_json::json!({"groups": [{"name": "dashboard", "rules": rules}]});
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dashboard.json");
    std::fs::write(&path, rules.to_string()).unwrap();
    promtool(&["check", "rules", path.to_str().unwrap()]);
}

#[tokio::test]
async fn nothing_is_asked_for_that_a_proxy_does_not_tell() {
    let mut cluster = Cluster::with(v1_20(), |options| {
        options.set("identity.publishLease", "Always")
    })
    .await;
    let client = cluster.client().cert("admin");
    assert_eq!(client.get(HPAS).await.code(), 200);
    assert_eq!(client.get("/apis").await.code(), 200);
    let watch = client
        .open("/api/v1/pods?watch=true&allowWatchBookmarks=true")
        .await;
    assert_eq!(watch.status, 200);
    // Its own server breaks off, then the only one that has the autoscalers is gone.
    cluster.a.set_fault("/api/v1/pods", Some(Fault::Reset));
    assert_eq!(client.get("/api/v1/pods").await.code(), 200);
    cluster.proxy_b.kill();
    assert_eq!(client.get(HPAS).await.code(), 503);
    let mut wanted = Vec::new();
    for rule in rules() {
        wanted.push(rule["expr"].as_str().unwrap().to_owned());
    }
    expressions(&dashboard(), &mut wanted);
    let wanted: BTreeSet<_> = wanted.iter().flat_map(|text| names(text)).collect();
    assert!(wanted.len() > 25, "{wanted:?}");
    // Metrics of the Lease have its name, which is known a moment later.
    eventually("all is told", LONG, async || {
        let metrics = cluster.proxy_a.admin_get("/metrics").await.text();
        let told: BTreeSet<_> = metrics
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
            .map(|(name, _)| name)
            .collect();
        let missing: Vec<_> = wanted.difference(&told).collect();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(format!("{missing:?} of {told:?}")),
        }
    })
    .await;
}
