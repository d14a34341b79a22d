//! The page that explains the codes.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::*;
use crate::cli::doctor::finding::code;
use crate::reference::assert_current;

const HEAD: &str = "# Findings of check

<!-- Generated from src/cli/doctor/told.rs by `UPDATE_DOCS=1 cargo test --lib reference`. -->

The codes of `kube-interop-proxy check` ([output](commands.md#findings)) never change. *Italics* stand for names, addresses
and texts. A **problem** does not work, and `check` exits with 1; a **warning** should be improved; **info** and **ok** need
no action.
";

/// Titles of those whose words come from elsewhere, or say too little there.
const TITLES: [(u16, &str); 21] = [
    (2, "The configuration file cannot be read"),
    (
        3,
        "The configuration file is not YAML, is empty, or is too large",
    ),
    (4, "An unknown key"),
    (5, "A required key or value is missing"),
    (6, "A key or value is repeated"),
    (7, "A value is not allowed"),
    (8, "Two values contradict each other"),
    (9, "A certificate, key or CA file cannot be used"),
    (22, "A server cannot be used"),
    (25, "A certificate does not have the name that is expected"),
    (30, "etcd answers"),
    (51, "The kube-apiserver is ready"),
    (
        54,
        "The kube-apiserver rejects this proxy's front-proxy credentials, or reads other headers",
    ),
    (
        55,
        "The kube-apiserver recognises users by other headers too",
    ),
    (100, "A clock is off"),
    (101, "A clock is wrong"),
    (111, "install kubeadm cannot change the node"),
    (112, "What install kubeadm would warn of"),
    (117, "A kubelet runs"),
    (118, "No healthy kubelet runs"),
    (119, "A container runtime runs"),
];

fn title(row: &Row) -> Option<&'static str> {
    let titled = TITLES.iter().find(|(code, _)| *code == row.code);
    titled.map(|(_, title)| *title)
}

/// Words in braces in italics.
fn shown(text: &str) -> String {
    text.replace(['{', '}'], "*")
}

#[test]
fn the_reference_of_the_findings_is_current() {
    let mut rows: Vec<&Row> = ROWS.iter().collect();
    rows.sort_by_key(|row| row.code);
    let mut page = HEAD.to_owned();
    for row in rows {
        let level = format!("{:?}", row.level).to_lowercase();
        let title = shown(title(row).unwrap_or(row.what));
        let _ = write!(page, "\n## {}\n\n**{level}**: {title}.\n", code(row.code));
        match row.advice.map(shown) {
            // It is what the finding itself says.
            Some(advice) if advice == "*advice*" => page += "\nDo: what the finding says.\n",
            Some(advice) => drop(write!(page, "\nDo: {advice}.\n")),
            None => {}
        }
    }
    assert_current("findings.md", &page);
}

#[test]
fn each_finding_has_a_code_of_its_own_and_says_what_to_do_where_somebody_has_to() {
    let codes: BTreeSet<_> = ROWS.iter().map(|row| row.code).collect();
    assert_eq!(codes.len(), ROWS.len());
    assert!(TITLES.iter().all(|(code, _)| codes.contains(code)));
    assert!(codes.iter().all(|code| (1..1000).contains(code)));
    for row in ROWS {
        let acts = row.level >= Level::Warning;
        assert!(row.advice.is_some() || !acts, "{}", code(row.code));
        let others_words = row.what.rfind('{') == Some(0) && row.what.ends_with('}');
        assert!(title(row).is_some() || !others_words, "{}", code(row.code));
    }
}

#[test]
fn every_kind_of_a_problem_of_the_configuration_has_its_own_code() {
    let mut codes = BTreeSet::new();
    for kind in ProblemKind::ALL {
        let problem = Problem {
            kind,
            key: "a.b".to_owned(),
            line: Some(3),
            message: "why".to_owned(),
        };
        let finding = misconfigured("configuration f", &problem);
        assert_eq!(finding.what, "a.b (line 3): why");
        assert!(codes.insert(finding.code), "{kind:?}");
    }
}
