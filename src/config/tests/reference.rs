//! Generates `docs/configuration.md`: keys, types and defaults from the code that reads them, descriptions from
//! the comments of `config.example.yaml`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::super::file;
use super::super::tree::Node;
use super::EXAMPLE;
use super::survey::{Key, keys};
use crate::config::settings::is_reloaded;
use crate::reference::{assert_current, cell};

const INTRODUCTION: &str = "\
# Configuration reference

<!-- Generated from the code and config.example.yaml; do not edit. UPDATE_DOCS=1 cargo test --lib reference -->

One YAML file; [config.example.yaml](../config.example.yaml) is a complete one. `kube-interop-proxy check --config FILE` reports
all problems of a file at once, each with its line.

- The file begins with `apiVersion: kube-interop-proxy/v1alpha1` and `kind: ProxyConfiguration`.
- Unknown and repeated keys are errors. `null`, or no value after the colon, is the same as leaving the key out.
- Durations are written as in Kubernetes, `500ms`, `1m30s`, `1h`, up to 8760h; IPv6 addresses with ports as
  `[2001:db8::11]:6443`.
- Relative paths start from the directory of the file. Certificates, keys and CAs are PEM files, and are read again
  [when they change](upgrade.md#certificates).
- So is this file ([upgrade.md](upgrade.md#settings)). These keys take effect then, all others at the next start:
  RELOADED.
";

/// The comment before each key of the example, by the key's path.
fn comments() -> BTreeMap<String, String> {
    let (mut comments, mut section, mut said) = (BTreeMap::new(), "", Vec::new());
    for line in EXAMPLE.lines() {
        let text = line.trim_start();
        match (text.strip_prefix('#'), text.split_once(':')) {
            (Some(comment), _) => said.push(comment.trim()),
            (None, Some((key, _))) => {
                let path = match text.len() == line.len() {
                    true => {
                        section = key;
                        key.to_owned()
                    }
                    false => format!("{section}.{key}"),
                };
                comments.insert(path, said.join(" "));
                said.clear();
            }
            _ => said.clear(),
        }
    }
    comments
}

fn written(node: &Node) -> String {
    match node {
        Node::Flag(flag) => flag.to_string(),
        Node::Number(text) => text.clone(),
        Node::Text(text) if text.is_empty() => "\"\"".to_owned(),
        Node::Text(text) => text.clone(),
        Node::List(items) => {
            let items: Vec<_> = items.iter().map(written).collect();
            format!("[{}]", items.join(", "))
        }
        other => panic!("no default: {other:?}"),
    }
}

/// The reference has a column for defaults; the example states them in its text.
fn without_default(text: &str, default: Option<&Node>) -> String {
    let Some(default) = default.map(written) else {
        return text.to_owned();
    };
    let sentence = format!("Default {default}.");
    let text = text.replace(&format!(" {sentence}"), "");
    let text = text.replace(&format!("; default {default}"), "");
    text.replace(&format!(", default {default}"), "")
}

/// What a key takes, without what the introduction says of all keys.
fn takes(key: &Key) -> String {
    let shorter = [
        (" such as 10.0.0.11:6443 or [2001:db8::11]:6443", ""),
        (", at most 8760h", ""),
        ("a list; each item:", "list:"),
        ("the path of a file", "file"),
        ("a whole number from ", ""),
        ("a number from ", ""),
        ("a duration", "duration"),
        ("one of ", ""),
        ("true or false", "boolean"),
        ("the name of a header", "header"),
        ("a DNS name or an IP address", "name or IP"),
        (" in plain ASCII without white space", ""),
        (
            " without control characters, and without white space at its ends",
            "",
        ),
        (", such as X-Remote-Extra-", ""),
    ];
    let short = |text: String, (long, short): (&str, &str)| text.replace(long, short);
    shorter.into_iter().fold(key.takes.clone(), short)
}

/// A key's meaning without the bounds that what it takes has too.
fn without_bounds(text: &str, takes: &str) -> String {
    let bounds = takes.split(", ").skip(1);
    bounds.fold(text.to_owned(), |text, bound| {
        text.replace(&format!(", {bound}"), "")
    })
}

/// Flags of kube-apiserver as code.
fn with_code(text: &str) -> String {
    let word = |word: &str| {
        let Some((before, flag)) = word.split_once("--") else {
            return word.to_owned();
        };
        let end = flag
            .find(['.', ',', ')', ':', ';'])
            .filter(|end| *end + 1 == flag.len());
        let end = end.or_else(|| flag.find("),").or(flag.find(").")));
        let (flag, after) = flag.split_at(end.unwrap_or(flag.len()));
        format!("{before}`--{flag}`{after}")
    };
    let words: Vec<_> = text.split(' ').map(word).collect();
    words.join(" ")
}

fn default_cell(key: &Key) -> String {
    match &key.default {
        Some(default) => format!("`{}`", written(default)),
        None if key.required => "required".to_owned(),
        None => "none".to_owned(),
    }
}

#[test]
fn the_reference_of_the_configuration_is_current() {
    let comments = comments();
    let keys = keys();
    let reloaded = keys.iter().filter(|key| is_reloaded(&key.path));
    let reloaded: Vec<_> = reloaded.map(|key| format!("`{}`", key.path)).collect();
    let introduction = INTRODUCTION.replace("RELOADED", &reloaded.join(", "));
    let (mut page, mut section) = (introduction, String::new());
    for key in keys {
        let Some((of, _)) = key.path.split_once('.') else {
            continue;
        };
        if section != of {
            section = of.to_owned();
            let about = with_code(&comments[of]);
            write!(page, "\n## {of}\n\n{about}\n\n").unwrap();
            page.push_str("| key | takes | default | meaning |\n|---|---|---|---|\n");
        }
        let comment = comments.get(&key.path).map_or("", String::as_str);
        assert!(
            !comment.is_empty(),
            "{} has no comment in the example",
            key.path
        );
        let meaning = without_default(comment, key.default.as_ref());
        let meaning = with_code(&without_bounds(&meaning, &key.takes));
        let cells = [
            format!("`{}`", key.path),
            takes(&key),
            default_cell(&key),
            meaning,
        ];
        writeln!(page, "| {} |", cells.map(|it| cell(&it)).join(" | ")).unwrap();
    }
    assert_current("configuration.md", &page);
}

#[test]
fn the_example_names_every_key_and_has_the_defaults() {
    let Node::Map(sections) = file::parse(EXAMPLE).unwrap() else {
        panic!("a mapping");
    };
    let mut example = BTreeMap::new();
    for (name, node) in sections {
        match node {
            Node::Map(entries) => {
                let below = entries.into_iter();
                example.extend(below.map(|(key, node)| (format!("{name}.{key}"), node)));
            }
            other => drop(example.insert(name, other)),
        }
    }
    let keys = keys();
    let names: Vec<_> = keys.iter().map(|key| key.path.clone()).collect();
    assert!(names.len() > 50, "{names:?}");
    for key in keys {
        let there = example.remove(&key.path);
        let there = there.unwrap_or_else(|| panic!("{} is not in the example", key.path));
        if let Some(default) = key.default {
            assert_eq!(there, default, "{}", key.path);
        }
    }
    assert!(example.is_empty(), "{example:?}");
}
