//! kubectl's own tests (`test/cmd` of Kubernetes 1.20.2), and how they are run.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use testkit::kube::cache;

use super::cluster::{self, Needs, Place};
use super::outcome::Outcome;

const RUN: &str = include_str!("run.sh");
/// `runTests` calls them in the order of this script.
const SCRIPT: &str = "test/cmd/legacy-script.sh";
/// They need a kubelet that answers an exec, the version of a release, or the internet.
const LEFT_OUT: [&str; 4] = [
    "kubectl_exec_pod",
    "kubectl_exec_resource_name",
    "kubectl_version",
    "multi_resources",
];

/// As the tests' own script starts the apiserver.
pub const NEEDS: Needs = Needs {
    apiserver: &[
        "--enable-admission-plugins=LimitRanger,ResourceQuota",
        "--disable-admission-plugins=ServiceAccount,PersistentVolumeLabel,DefaultStorageClass,\
         DefaultTolerationSeconds,MutatingAdmissionWebhook,ValidatingAdmissionWebhook,StorageObjectInUseProtection",
    ],
    without: [
        &[
            "apps/v1",
            "autoscaling/v1",
            "autoscaling/v2beta1",
            "autoscaling/v2beta2",
            "policy/v1beta1",
        ],
        &["batch/v1", "batch/v1beta1", "extensions/v1beta1"],
    ],
    controllers: &["*"],
    controller_manager: |_| Vec::new(),
};

pub struct Suite {
    source: PathBuf,
    tests: Vec<String>,
}

impl Suite {
    /// `tests`: none means all.
    pub fn new(tests: Vec<String>) -> Self {
        let source = cache().join("source");
        let script = std::fs::read_to_string(source.join(SCRIPT));
        let Ok(script) = script else {
            panic!(
                "no {SCRIPT} in {}: run tests/kubectl-suite.sh",
                source.display()
            )
        };
        let tests = match tests.is_empty() {
            true => all(&script),
            false => tests,
        };
        Self { source, tests }
    }

    /// The same with other tests.
    pub fn only(&self, tests: &BTreeSet<String>) -> Self {
        Self {
            source: self.source.clone(),
            tests: tests.iter().cloned().collect(),
        }
    }

    /// Runs the tests one after the other.
    pub async fn run(&self, place: &Place) -> Outcome {
        let dir = place.run_dir();
        let root = dir.join("kubernetes");
        for name in ["home", "temp", "junit", "kubernetes"] {
            std::fs::create_dir_all(dir.join(name)).expect("a directory");
        }
        imitate(&self.source, &root);
        let certificate = dir.join("temp/apiserver.crt");
        std::fs::copy(&place.certificate, certificate).expect("a certificate");
        let script = dir.join("run.sh");
        std::fs::write(&script, RUN).expect("a script");
        let (out, log) = cluster::log("kubectl-suite-");
        let mut command = Command::new("bash");
        command
            .arg(&script)
            .args(&self.tests)
            .current_dir(&root)
            .env("KUBECTL_DIR", cache())
            .env("SECURE_API_PORT", place.port.to_string())
            .env("HOME", dir.join("home"))
            .env("TMPDIR", dir.join("temp"))
            .env("KUBE_TEMP", dir.join("temp"))
            .env("KUBE_JUNIT_REPORT_DIR", dir.join("junit"))
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null())
            .stderr(out.try_clone().expect("a second handle of the log"))
            .stdout(out);
        let run = tokio::task::spawn_blocking(move || command.status().expect("bash"));
        let status = run.await.expect("a thread for the tests");
        let text = String::from_utf8_lossy(&std::fs::read(&log).expect("the log")).into_owned();
        let run = named(&text, "Recording: ");
        // After its start the script tries whether failures are noticed.
        let missing: Vec<_> = self
            .tests
            .iter()
            .filter(|test| !run.contains(*test))
            .collect();
        assert!(
            missing.is_empty(),
            "{status}, {missing:?} did not run: {}",
            log.display()
        );
        let failed = named(&text, "Error when running ");
        let passed = (self.tests.iter())
            .filter(|test| !failed.contains(*test))
            .cloned();
        Outcome {
            passed: passed.collect(),
            failed,
            log,
        }
    }
}

/// All tests of the script, in its order.
fn all(script: &str) -> Vec<String> {
    let lines = script.lines().map(str::trim);
    let calls = lines.filter_map(|line| line.strip_prefix("record_command "));
    let tests = calls.filter_map(|call| test_of(call.trim()));
    tests
        .filter(|test| !LEFT_OUT.contains(&test.as_str()))
        .collect()
}

/// `create_job` of `run_create_job_tests`.
fn test_of(function: &str) -> Option<String> {
    let test = function.strip_prefix("run_")?.strip_suffix("_tests")?;
    Some(test.to_owned())
}

/// The tests that the log names in lines that begin so.
fn named(log: &str, start: &str) -> BTreeSet<String> {
    let functions = log.lines().filter_map(|line| line.strip_prefix(start));
    functions
        .filter_map(|function| test_of(function.trim()))
        .collect()
}

/// The tests write into their working directory: it is one of links to the source.
fn imitate(source: &Path, root: &Path) {
    for entry in std::fs::read_dir(source).expect("the source") {
        let entry = entry.expect("the source");
        symlink(entry.path(), root.join(entry.file_name())).expect("a link");
    }
}
