//! Kubernetes' own end-to-end tests, those that `tests/e2e-suite.yaml` names.

use std::collections::BTreeSet;
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

pub const NEEDS: Needs = Needs {
    // It marks a new node as not ready, until kubelet says otherwise.
    apiserver: &["--disable-admission-plugins=TaintNodesByCondition"],
    without: [
        &[
            "apps/v1",
            "autoscaling/v1",
            "autoscaling/v2beta1",
            "autoscaling/v2beta2",
            "certificates.k8s.io/v1",
            "certificates.k8s.io/v1beta1",
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
        let mut command = Command::new(cache().join("e2e.test"));
        command
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!(
                "--kubectl-path={}",
                cache().join("kubectl").display()
            ))
            .arg(format!("--repo-root={}", cache().join("source").display()))
            .arg(format!("--ginkgo.focus={}", self.focus))
            .arg(format!("--ginkgo.skip={}", self.skip))
            .args([
                "--provider=skeleton",
                "--ginkgo.noColor",
                "--disable-log-dump",
            ])
            .args(["--dump-logs-on-failure=false", "--num-nodes=1"])
            // The same order each time, so that runs that were ended early can be compared.
            .arg("--ginkgo.seed=1")
            .current_dir(&dir)
            .env("HOME", &dir)
            .env("TMPDIR", &dir)
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .stderr(out.try_clone().expect("a second handle of the log"))
            .stdout(out)
            .kill_on_drop(true);
        let mut child = command.spawn().expect("e2e.test");
        if tokio::time::timeout(LIMIT, child.wait()).await.is_err() {
            println!("ended after {LIMIT:?}");
            child.kill().await.expect("the end of e2e.test");
        }
        let text = String::from_utf8_lossy(&std::fs::read(&log).expect("the log")).into_owned();
        let outcome = read(&text);
        let ran = !outcome.passed.is_empty() || !outcome.failed.is_empty();
        assert!(ran, "no test has run: {}", log.display());
        Outcome { log, ..outcome }
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

/// Reads the lines of progress that the tests write, one for each that has ended.
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
