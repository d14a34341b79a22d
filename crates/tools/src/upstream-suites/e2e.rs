//! Kubernetes' own end-to-end tests, those that `tests/e2e-suite.yaml` names.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_yaml::Value;
use tokio::process::Command;

use testkit::kube::cache;
use testkit::pki::Pki;

use super::cluster::{self, Needs, Place};
use super::node::Node;
use super::outcome::Outcome;

const LIST: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/e2e-suite.yaml"
));
/// For one run of all tests.
const LIMIT: Duration = Duration::from_secs(5400);
/// In which Ginkgo ends and writes its report.
const TO_REPORT: Duration = Duration::from_secs(300);

pub const NEEDS: Needs = Needs {
    // It marks a new node as not ready, until kubelet says otherwise.
    apiserver: &["--disable-admission-plugins=TaintNodesByCondition"],
    without: [
        &[
            "apps/v1",
            "autoscaling/v1",
            "autoscaling/v2",
            "autoscaling/v2beta1",
            "autoscaling/v2beta2",
            "certificates.k8s.io/v1",
            "certificates.k8s.io/v1beta1",
            // discovery.k8s.io/v1 and policy/v1 are what newer apiservers themselves need.
            "discovery.k8s.io/v1beta1",
            "policy/v1beta1",
        ],
        &[
            "batch/v1",
            "batch/v1beta1",
            "coordination.k8s.io/v1",
            "coordination.k8s.io/v1beta1",
            "events.k8s.io/v1",
            "events.k8s.io/v1beta1",
            "extensions/v1beta1",
        ],
    ],
    // Nobody renews the node's Lease.
    controllers: &["*", "-nodelifecycle"],
    controller_manager,
};

fn controller_manager(pki: &Pki) -> Vec<String> {
    let file = |flag: &str, name: &str| format!("--{flag}={}", pki.file(name));
    vec![
        file("service-account-private-key-file", "sa.key"),
        file("root-ca-file", "ca.crt"),
        file("cluster-signing-cert-file", "ca.crt"),
        file("cluster-signing-key-file", "ca.key"),
    ]
}

pub struct Suite {
    focus: String,
    skip: String,
}

impl Suite {
    /// `focus`: instead of the tests of the list; those that it skips are skipped all the same.
    pub fn new(focus: Option<String>, restarts: bool) -> Self {
        let list: Value = serde_yaml::from_str(LIST).expect("tests/e2e-suite.yaml");
        let mut skip = patterns(&list["skip"]);
        if restarts {
            skip = format!("{skip}|{}", patterns(&list["skip_with_restarts"]));
        }
        Self {
            focus: focus.unwrap_or_else(|| patterns(&list["run"])),
            skip,
        }
    }

    /// The same with other tests.
    pub fn only(&self, tests: &BTreeSet<String>) -> Self {
        let names: Vec<_> = tests.iter().map(|test| quoted(test)).collect();
        Self {
            focus: names.join("|"),
            skip: self.skip.clone(),
        }
    }

    pub async fn run(&self, place: &Place) -> Outcome {
        let dir = place.run_dir();
        let kubeconfig = dir.join("kubeconfig");
        std::fs::write(&kubeconfig, &place.kubeconfig).expect("a kubeconfig");
        let _node = Node::start(place.client.clone()).await;
        let (out, log) = cluster::log("e2e-suite-");
        let report = dir.join("report.json");
        let program = cluster::program("e2e.test");
        let tells_progress = program.starts_with(cache());
        let mut command = self.command(&program, &kubeconfig);
        if !tells_progress {
            command.args([
                format!("--ginkgo.json-report={}", report.display()),
                format!("--ginkgo.timeout={}s", (LIMIT - TO_REPORT).as_secs()),
            ]);
        }
        command
            .current_dir(&dir)
            .env("HOME", &dir)
            .env("TMPDIR", &dir)
            .stderr(out.try_clone().expect("a second handle of the log"))
            .stdout(out);
        let mut child = command.spawn().expect("e2e.test");
        if tokio::time::timeout(LIMIT, child.wait()).await.is_err() {
            println!("ended after {LIMIT:?}");
            child.kill().await.expect("the end of e2e.test");
        }
        let outcome = match tells_progress {
            true => read(&text_of(&log)),
            false => read_report(&text_of(&report)),
        };
        let ran = !outcome.passed.is_empty() || !outcome.failed.is_empty();
        assert!(ran, "no test has run: {}", log.display());
        Outcome { log, ..outcome }
    }

    fn command(&self, program: &Path, kubeconfig: &Path) -> Command {
        let file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
        let mut command = Command::new(program);
        command
            .args([
                file("kubeconfig", kubeconfig),
                file("kubectl-path", &cluster::program("kubectl")),
                file("repo-root", &cache().join("source")),
                format!("--ginkgo.focus={}", self.focus),
                format!("--ginkgo.skip={}", self.skip),
            ])
            .args([
                "--provider=skeleton",
                "--ginkgo.noColor",
                "--disable-log-dump",
                "--dump-logs-on-failure=false",
                "--num-nodes=1",
                // The same order each time, so that runs that were ended early can be compared.
                "--ginkgo.seed=1",
            ])
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }
}

/// One pattern of all of a section.
fn patterns(section: &Value) -> String {
    let section = section.as_sequence().expect("a list of patterns");
    let patterns = section
        .iter()
        .map(|entry| entry["tests"].as_str().expect("tests"));
    patterns.collect::<Vec<_>>().join("|")
}

/// A pattern that matches this text.
fn quoted(text: &str) -> String {
    let quote = |letter: char| match letter {
        letter if letter.is_ascii_punctuation() => format!("\\{letter}"),
        letter => letter.to_string(),
    };
    text.chars().map(quote).collect()
}

fn text_of(file: &Path) -> String {
    let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads the report of Ginkgo 2, which tests have from 1.25 on.
fn read_report(report: &str) -> Outcome {
    let report: serde_json::Value = serde_json::from_str(report).expect("Ginkgo's report");
    let suites = report.as_array().into_iter().flatten();
    let tests = suites.flat_map(|suite| suite["SpecReports"].as_array().into_iter().flatten());
    let mut outcome = Outcome::default();
    for test in tests.filter(|test| test["LeafNodeType"] == "It") {
        let containers = test["ContainerHierarchyTexts"].as_array();
        let names = containers
            .into_iter()
            .flatten()
            .chain([&test["LeafNodeText"]]);
        let names: Vec<_> = names.filter_map(|name| name.as_str()).collect();
        match test["State"].as_str() {
            Some("skipped" | "pending") | None => continue,
            Some("passed") => outcome.passed.insert(names.join(" ")),
            Some(_) => outcome.failed.insert(names.join(" ")),
        };
    }
    outcome
}

/// Reads the lines of progress that older tests write, one for each that has ended.
fn read(output: &str) -> Outcome {
    let mut outcome = Outcome::default();
    for line in output.lines() {
        // A mark for each test that has ended or was left out may stand before it.
        let line = line.trim_start_matches(['•', 'S', 'P']);
        let Ok(progress) = serde_json::from_str::<serde_json::Value>(line) else {
            continue;
        };
        let message = progress["msg"].as_str().unwrap_or_default();
        if let Some(test) = message.strip_prefix("PASSED ") {
            outcome.passed.insert(test.to_owned());
        } else if let Some(test) = message.strip_prefix("FAILED ") {
            outcome.failed.insert(test.to_owned());
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_is_read_from_lines_of_progress() {
        let output = r#"
Nov 23 03:00:00.000: INFO: about {"msg":"PASSED nothing"}
{"msg":"Test Suite starting","total":3,"completed":0,"skipped":0,"failed":0}
{"msg":"PASSED [sig-x] Watchers should \"see\"","total":3,"completed":1,"skipped":7,"failed":0}
SS•{"msg":"FAILED [sig-x] Lease should be there","total":3,"completed":1,"failed":1,"failures":["[sig-x] Lease"]}
{"msg":"PASSED cut off
"#;
        let outcome = read(output);
        let set = |name: &str| BTreeSet::from([name.to_owned()]);
        assert_eq!(outcome.passed, set("[sig-x] Watchers should \"see\""));
        assert_eq!(outcome.failed, set("[sig-x] Lease should be there"));
    }

    #[test]
    fn the_outcome_is_read_from_a_report() {
        let report = r#"[{"SpecReports": [
            {"LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "", "State": "passed"},
            {"ContainerHierarchyTexts": ["[sig-x] Lease", "API"], "LeafNodeType": "It", "LeafNodeText": "is there", "State": "passed"},
            {"ContainerHierarchyTexts": ["[sig-x] Pods"], "LeafNodeType": "It", "LeafNodeText": "run", "State": "timedout"},
            {"ContainerHierarchyTexts": ["[sig-x] Jobs"], "LeafNodeType": "It", "LeafNodeText": "run", "State": "skipped"}]}]"#;
        let outcome = read_report(report);
        assert_eq!(
            outcome.passed,
            ["[sig-x] Lease API is there".to_owned()].into()
        );
        assert_eq!(outcome.failed, ["[sig-x] Pods run".to_owned()].into());
    }

    #[test]
    fn the_list_of_tests_can_be_read_and_says_why() {
        let suite = Suite::new(None, true);
        assert!(suite.skip.contains("Watchers"), "{}", suite.skip);
        assert!(
            suite.focus.contains("DisruptionController"),
            "{}",
            suite.focus
        );
        let list: Value = serde_yaml::from_str(LIST).unwrap();
        for entry in ["run", "skip", "skip_with_restarts"]
            .iter()
            .flat_map(|section| list[*section].as_sequence().unwrap())
        {
            assert!(
                entry["why"].as_str().is_some_and(|why| !why.is_empty()),
                "{entry:?}"
            );
        }
    }

    #[test]
    fn names_become_patterns_that_match_them() {
        assert_eq!(quoted("[sig-x] a.b (c)"), r"\[sig\-x\] a\.b \(c\)");
    }
}
