//! What people expect of a repository: workflows that call what is here, pinned actions, a list of changes, and a record of
//! what was found whose commands exist.

use serde_yaml::Value;

use super::documents::{files, root};

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All values of a key, at any depth.
fn values(tree: &Value, key: &str, found: &mut Vec<String>) {
    match tree {
        Value::Mapping(entries) => {
            for (name, value) in entries {
                match value {
                    Value::String(text) if name == key => found.push(text.clone()),
                    _ => values(value, key, found),
                }
            }
        }
        Value::Sequence(items) => items.iter().for_each(|it| values(it, key, found)),
        _ => {}
    }
}

fn workflow(name: &str, key: &str) -> Vec<String> {
    let text = read(&format!(".github/workflows/{name}"));
    let mut found = Vec::new();
    values(&serde_yaml::from_str(&text).unwrap(), key, &mut found);
    found
}

/// Scripts of this tree that a workflow calls exist, and continuous integration is `.ci/run`.
#[test]
fn workflows_call_what_is_here() {
    let mut called = 0;
    for name in ["ci.yaml", "release.yaml"] {
        for run in workflow(name, "run") {
            let words = run.split_whitespace();
            let scripts = words.filter(|word| {
                [".ci/", "tests/", "deploy/"]
                    .iter()
                    .any(|it| word.starts_with(it))
            });
            for script in scripts.map(|it| it.trim_end_matches(')')) {
                called += 1;
                assert!(root().join(script).is_file(), "{name}: {script}");
            }
        }
    }
    assert!(called >= 6, "{called}");
    assert!(workflow("ci.yaml", "run").contains(&".ci/run".to_owned()));
    let release = read(".github/workflows/release.yaml");
    assert!(release.contains("cosign sign-blob --yes") && release.contains("gh release create"));
}

#[test]
fn actions_are_pinned_to_commits() {
    let mut count = 0;
    for name in ["ci.yaml", "release.yaml"] {
        for action in workflow(name, "uses") {
            let (_, commit) = action.split_once('@').unwrap();
            let is_commit = commit.len() == 40 && commit.bytes().all(|it| it.is_ascii_hexdigit());
            assert!(is_commit, "{name}: {action}");
            count += 1;
        }
    }
    assert!(count >= 5, "{count}");
}

#[test]
fn forms_for_issues_are_yaml_with_what_forms_need() {
    for name in ["bug.yaml", "idea.yaml"] {
        let form: Value =
            serde_yaml::from_str(&read(&format!(".github/ISSUE_TEMPLATE/{name}"))).unwrap();
        assert!(
            form["name"].is_string() && form["description"].is_string(),
            "{name}"
        );
        for item in form["body"].as_sequence().unwrap() {
            let is_text = item["type"] == "markdown";
            assert!(is_text || item["id"].is_string(), "{name}: {item:?}");
            let attributes = &item["attributes"];
            assert!(
                attributes["label"].is_string() != is_text,
                "{name}: {item:?}"
            );
        }
    }
}

#[test]
fn the_list_of_changes_has_a_section_for_this_version() {
    let heading = format!("\n## [{}] - 2", env!("CARGO_PKG_VERSION"));
    assert!(read("CHANGELOG.md").contains(&heading), "{heading}");
}

/// Tests, targets and scripts that the record names exist.
#[test]
fn the_record_of_what_was_found_names_commands_that_exist() {
    let mut tests = Vec::new();
    for dir in ["src", "tests/e2e"] {
        files(&root().join(dir), "rs", &mut tests);
    }
    let tests: String = tests
        .iter()
        .map(|it| std::fs::read_to_string(it).unwrap())
        .collect();
    let record = read("docs/track-record.md");
    let mut count = 0;
    let is_command = |it: &&str| it.starts_with("cargo ") || it.contains(".sh ");
    for command in record.split('`').skip(1).step_by(2).filter(is_command) {
        let mut words = command.split(' ');
        let (first, last) = (words.next().unwrap(), words.next_back().unwrap());
        count += 1;
        match first {
            "cargo" => {
                let is_folder = root()
                    .join("tests/e2e")
                    .join(last.replace("::", "/"))
                    .is_dir();
                let is_test = tests.contains(&format!("fn {last}"));
                assert!(is_folder || is_test, "{command}");
            }
            "fuzz/smoke.sh" => assert!(root().join("fuzz/corpus").join(last).is_dir(), "{command}"),
            script => assert!(root().join(script).is_file(), "{command}"),
        }
    }
    assert!(count >= 8, "{count}");
}
