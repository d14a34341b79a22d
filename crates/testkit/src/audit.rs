//! The audit log of a real apiserver: which requests reached it, and as whom.

use std::path::{Path, PathBuf};

use serde_json::Value;

const POLICY: &str =
    r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}"#;

pub struct AuditLog {
    policy: PathBuf,
    log: PathBuf,
}

impl AuditLog {
    /// `name`: of the server; different servers write into different files.
    pub fn new(dir: &Path, name: &str) -> Self {
        let policy = dir.join("audit-policy.json");
        std::fs::write(&policy, POLICY).expect("write an audit policy");
        let log = dir.join(format!("audit-{name}.log"));
        Self { policy, log }
    }

    /// What makes a server write it.
    pub fn flags(&self) -> [String; 2] {
        [
            format!("--audit-policy-file={}", self.policy.display()),
            format!("--audit-log-path={}", self.log.display()),
        ]
    }

    /// The requests with `mark` in their URI, as they arrived: one that has been answered is here.
    pub fn received(&self, mark: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let events = text.lines().filter(|line| line.contains(mark));
        events
            // The last line may not be complete yet.
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|event| event["stage"] == "RequestReceived")
            .filter(|event| {
                let uri = event["requestURI"].as_str();
                uri.is_some_and(|uri| uri.contains(mark))
            })
            .collect()
    }
}
