//! The documentation: every link has a target, pictures are self-contained, and named files exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below `dir` with this extension.
pub fn files(dir: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|it| it == extension) {
            found.push(path);
        }
    }
}

fn documents() -> Vec<PathBuf> {
    let names = [
        "README.md",
        "ARCHITECTURE.md",
        "SECURITY.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "fuzz/README.md",
    ];
    let mut found: Vec<_> = names.map(|name| root().join(name)).into();
    for dir in ["deploy", "docs"] {
        files(&root().join(dir), "md", &mut found);
    }
    assert!(found.len() > 10, "{found:?}");
    found
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Without blocks of code.
fn prose(text: &str) -> String {
    let mut code = false;
    let lines = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    });
    lines.map(|line| format!("{line}\n")).collect()
}

/// Pieces outside and inside of backticks, in turns.
fn split_code(text: &str) -> (Vec<&str>, Vec<&str>) {
    let pieces: Vec<_> = text.split('`').collect();
    let of = |first: usize| pieces.iter().skip(first).step_by(2).copied().collect();
    (of(0), of(1))
}

/// Where the links of a document lead.
fn links(text: &str) -> Vec<String> {
    let prose = prose(text);
    // A link's text may be code.
    let parts = prose.split("](").skip(1);
    let targets = parts.filter_map(|part| Some(part.split_once(')')?.0.to_owned()));
    targets.collect()
}

/// The anchors that a forge makes of headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in prose(text).lines().filter(|line| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let again = (1..).map(|number| format!("{anchor}-{number}"));
        let mut names = std::iter::once(anchor.clone()).chain(again);
        anchors.insert(names.find(|name| !anchors.contains(name)).unwrap());
    }
    anchors
}

#[test]
fn every_link_leads_somewhere() {
    let mut count = 0;
    for document in documents() {
        let text = read(&document);
        for link in links(&text) {
            if link.starts_with("https://") || link.starts_with("mailto:") {
                continue;
            }
            count += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => document.clone(),
                path => document.parent().unwrap().join(path),
            };
            let place = format!("{}: {link}", document.display());
            assert!(target.exists(), "{place}");
            if !anchor.is_empty() {
                let anchors = anchors(&read(&target));
                assert!(anchors.contains(anchor), "{place}: {anchors:?}");
            }
        }
    }
    assert!(count > 40, "{count}");
}

#[test]
fn documents_that_are_named_without_a_link_exist() {
    let mut count = 0;
    for (document, name) in named() {
        if !name.ends_with(".md") {
            continue;
        }
        count += 1;
        let beside = document.parent().unwrap().join(&name);
        let exists = root().join(&name).is_file() || beside.is_file();
        assert!(exists, "{}: {name}", document.display());
    }
    assert!(count > 0, "{count}");
}

/// What is wrong with a piece of XML, as far as tags, attributes and entities go.
fn unbalanced(text: &str) -> Result<(), String> {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        entities(&rest[..start])?;
        rest = &rest[start + 1..];
        if let Some(comment) = rest.strip_prefix("!--") {
            rest = comment.split_once("-->").ok_or("an open comment")?.1;
            continue;
        }
        let (tag, after) = rest.split_once('>').ok_or("an open tag")?;
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            let last = open.pop();
            if last != Some(name.trim()) {
                return Err(format!("</{name}> closes {last:?}"));
            }
            continue;
        }
        let name = tag.split([' ', '\n', '/']).next().unwrap_or_default();
        let quotes = tag.matches('"').count();
        if quotes % 2 != 0 || quotes != 2 * tag.matches('=').count() {
            return Err(format!("attributes of <{tag}>"));
        }
        entities(tag)?;
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    match open.is_empty() {
        true => Ok(()),
        false => Err(format!("left open: {open:?}")),
    }
}

fn entities(text: &str) -> Result<(), String> {
    let known = ["amp;", "lt;", "gt;", "quot;", "#"];
    let mut pieces = text.split('&').skip(1);
    match pieces.find(|piece| !known.iter().any(|name| piece.starts_with(name))) {
        Some(piece) => Err(format!("a bare & before {piece:?}")),
        None => Ok(()),
    }
}

#[test]
fn pictures_are_well_formed_and_stand_alone() {
    let mut pictures = Vec::new();
    files(&root().join("docs"), "svg", &mut pictures);
    assert!(pictures.len() >= 4, "{pictures:?}");
    for picture in pictures {
        let text = read(&picture);
        let name = picture.display();
        assert!(text.starts_with("<svg "), "{name}");
        assert_eq!(unbalanced(&text), Ok(()), "{name}");
        for wanted in [
            "<title",
            "<desc",
            "role=\"img\"",
            "viewBox=",
            "prefers-color-scheme",
        ] {
            assert!(text.contains(wanted), "{name} has no {wanted}");
        }
        let text = text.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        let text = text.replace("url(#", "");
        for outside in [
            "http",
            "url(",
            "@import",
            "<image",
            "<script",
            "<foreignObject",
            "href",
            "src=",
            "&#",
        ] {
            assert!(!text.contains(outside), "{name} has {outside}");
        }
    }
    for document in documents() {
        let text = read(&document);
        for picture in text.split("![").skip(1) {
            let (words, _) = picture.split_once("](").unwrap();
            assert!(
                words.len() > 20,
                "{}: {words:?} tells nothing",
                document.display()
            );
        }
    }
}

/// Everything in backticks, in all documents, with where it stands.
fn named() -> Vec<(PathBuf, String)> {
    let mut named = Vec::new();
    for document in documents() {
        let prose = prose(&read(&document));
        let (_, code) = split_code(&prose);
        named.extend(
            code.iter()
                .map(|name| (document.clone(), (*name).to_owned())),
        );
    }
    named
}

#[test]
fn metrics_that_documents_name_exist() {
    let reference = read(&root().join("docs/metrics.md"));
    let mut count = 0;
    for (document, name) in named() {
        let families = [
            "kube_interop_proxy_",
            "kubernetes_apiserver_",
            "apiserver_identity",
        ];
        if !families.iter().any(|family| name.starts_with(family)) {
            continue;
        }
        count += 1;
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let metric = &name[..end.unwrap_or(name.len())];
        let known = reference.contains(&format!("| `{metric}` |"));
        // "apiserver_identity…" stands for several.
        let several = name[metric.len()..].starts_with('…');
        assert!(known || several, "{}: {name}", document.display());
    }
    assert!(count > 60, "{count}");
}

#[test]
fn configuration_keys_that_documents_name_exist() {
    let reference = read(&root().join("docs/configuration.md"));
    let sections: Vec<_> = reference
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .collect();
    assert!(sections.len() > 10, "{sections:?}");
    let mut count = 0;
    for (document, name) in named() {
        let Some((section, rest)) = name.split_once('.') else {
            continue;
        };
        // A part of /statusz; files of the source.
        let others = ["discovery.sources"].contains(&name.as_str()) || rest.ends_with("rs");
        if !sections.contains(&section) || others {
            continue;
        }
        count += 1;
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric());
        let key = &rest[..end.unwrap_or(rest.len())];
        let whole = match rest[key.len()..].starts_with(['*', '…']) {
            true => format!("| `{section}.{key}"),
            false => format!("| `{section}.{key}` |"),
        };
        assert!(reference.contains(&whole), "{}: {name}", document.display());
    }
    assert!(count > 60, "{count}");
}

/// The texts in quotes in the function of a source file that begins like this.
fn texts(source: &str, function: &str) -> Vec<String> {
    let (_, body) = source.split_once(function).expect(function);
    let (body, _) = body.split_once("\n    }\n").expect("its end");
    let quoted = body.split('"').skip(1).step_by(2);
    quoted.map(str::to_owned).collect()
}

#[test]
fn what_the_proxy_answers_itself_is_in_the_troubleshooting_page() {
    let page = read(&root().join("docs/troubleshooting.md"));
    let answers = read(&root().join("src/relay/answer.rs"));
    let (_, refusals) = answers.split_once("\nrefusals! {\n").unwrap();
    let (refusals, _) = refusals.split_once("\n}\n").unwrap();
    let rows = refusals.lines().filter(|line| !line.contains("///"));
    let rows: String = rows.collect();
    let names_and_messages: Vec<_> = rows.split('"').skip(1).step_by(2).collect();
    assert!(names_and_messages.len() > 20, "{names_and_messages:?}");
    for text in names_and_messages {
        assert!(page.contains(text), "{text:?} is not explained");
    }
    let pages = read(&root().join("src/admin/status.rs"));
    let checks = texts(&pages, "fn checks(&self)");
    assert!(checks.len() > 8, "{checks:?}");
    for text in checks {
        assert!(page.contains(&text), "{text:?} of /readyz is not explained");
    }
}
