//! The modules of `src/` and their order, as in ARCHITECTURE.md: a module may use only modules below it or beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::circles::paths;
use crate::documents::{files, root};

/// Each room below a heading of the document with the number of its row, from the top.
pub fn levels_below(heading: &str) -> BTreeMap<String, usize> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let heading = format!("\n## {heading}\n");
    let (_, section) = text.split_once(&heading).expect("its section");
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut levels = BTreeMap::new();
    for (level, row) in rows.enumerate() {
        let names = row.split(" |").next().unwrap();
        for name in names.split(", ") {
            let name = name.trim_matches('`').to_owned();
            assert_eq!(levels.insert(name, level), None, "{row}");
        }
    }
    levels
}

fn levels() -> BTreeMap<String, usize> {
    levels_below("Rooms")
}

fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(&root().join("src"), "rs", &mut found);
    found
}

/// The room of a file, by its path.
fn room(path: &Path) -> String {
    let below = path.strip_prefix(root().join("src")).unwrap();
    let first = Path::new(below.components().next().unwrap().as_os_str());
    first.file_stem().unwrap().to_str().unwrap().to_owned()
}

/// The first names behind `crate::`, also those in braces.
fn used(source: &str) -> BTreeSet<String> {
    let code: Vec<_> = source.lines().map(|line| line.split("//").next()).collect();
    let code: String = code.into_iter().flatten().collect();
    let paths = paths(&code).into_iter();
    let inside = paths.filter(|path| path[0] == "crate");
    inside.filter_map(|path| path.into_iter().nth(1)).collect()
}

/// Which room uses which others, and in which file.
fn arrows() -> BTreeMap<(String, String), PathBuf> {
    let mut arrows = BTreeMap::new();
    for path in sources() {
        let from = room(&path);
        if ["lib", "main"].contains(&from.as_str()) {
            continue;
        }
        for to in used(&std::fs::read_to_string(&path).unwrap()) {
            if to != from {
                arrows.insert((from.clone(), to), path.clone());
            }
        }
    }
    assert!(arrows.len() > 30, "{arrows:?}");
    arrows
}

#[test]
fn the_rooms_are_those_that_the_document_names() {
    let mut rooms: BTreeSet<String> = sources().iter().map(|path| room(path)).collect();
    rooms.retain(|room| !["lib", "main"].contains(&room.as_str()));
    assert_eq!(rooms, levels().into_keys().collect());
}

#[test]
fn arrows_go_down_or_sideways() {
    let levels = levels();
    for ((from, to), path) in arrows() {
        let (from_level, to_level) = (levels.get(&from), levels.get(&to));
        assert!(to_level.is_some(), "{to} is no room: {}", path.display());
        let down = from_level <= to_level;
        assert!(down, "{from} uses {to} above it: {}", path.display());
    }
}

#[test]
fn there_is_no_circle_between_rooms() {
    let arrows = arrows();
    let mut left: BTreeSet<String> = levels().into_keys().collect();
    // From the ground up: rooms that use none of those left.
    while !left.is_empty() {
        let uses_one_left = |room: &String| {
            let mut used = arrows.keys().filter(|(from, _)| from == room);
            used.any(|(_, to)| left.contains(to))
        };
        let rest: BTreeSet<_> = left
            .iter()
            .filter(|it| uses_one_left(it))
            .cloned()
            .collect();
        assert_ne!(rest, left, "a circle is among these");
        left = rest;
    }
}

#[test]
fn names_are_found_in_each_form_of_use() {
    let source =
        "use crate::a::b;\nuse crate::{c, d::{e, f},\n g};\n// crate::h\nlet x = crate::i::j();";
    let names: Vec<_> = used(source).into_iter().collect();
    assert_eq!(names, ["a", "c", "d", "g", "i"]);
}

/// [`Settings`](kube_interop_proxy::config::settings::Settings) change while the proxy runs; the configuration stays as
/// it was at the start.
#[test]
fn nobody_reads_from_the_configuration_what_is_read_again() {
    let reloaded = [
        "config.if_ready",
        "config.watch",
        "config.discovery",
        "config.logging",
        "rerouting.enabled",
        "rerouting.unsynced",
        "version_awareness.enabled",
    ];
    let mut looked_at = 0;
    for path in sources() {
        let room = room(&path);
        if ["config", "reload", "main"].contains(&room.as_str()) {
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        looked_at += 1;
        for key in reloaded {
            let mut code = source
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"));
            let found = code.find(|line| line.contains(key));
            assert_eq!(found, None, "{}", path.display());
        }
    }
    assert!(looked_at > 100);
}
