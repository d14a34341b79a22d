//! Files of one room that import each other in a circle: whoever reads one of them has to read all. And the order of the
//! rooms of `relay`, as in ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::architecture::levels_below;
use crate::documents::{files, root};

/// A module's path below `src`: `["cluster", "state"]`.
type Module = Vec<String>;

/// A file's module. Tests have none.
fn module(path: &Path) -> Option<Module> {
    let below = path.strip_prefix(root().join("src")).ok()?;
    let mut names: Module = below
        .with_extension("")
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .collect();
    names.pop_if(|last| last == "mod");
    let is_test = names.iter().any(|name| name == "tests" || name == "fake");
    (!is_test).then_some(names)
}

/// What a file is without comments and tests.
fn code(source: &str) -> String {
    let code = source.split("#[cfg(test)]\nmod ").next().unwrap_or(source);
    let lines = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// All paths in `text` that begin with `crate`, `super` or `self`, those in braces one by one.
pub fn paths(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("::") {
        let before = &text[..at];
        let first = before
            .rsplit(|c: char| !is_part_of_name(c))
            .next()
            .unwrap_or_default();
        let start = at - first.len();
        // What comes after `in` says who may see something.
        let is_first = !text[..start].ends_with("::") && !text[..start].ends_with("in ");
        if is_first && ["crate", "super", "self"].contains(&first) {
            expand(&text[start..], &mut Vec::new(), &mut found);
        }
    }
    found
}

fn is_part_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Adds the paths at the beginning of `text`, and returns what comes after them.
fn expand<'t>(text: &'t str, before: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> &'t str {
    let text = text.trim_start();
    let depth = before.len();
    let mut rest = match text.strip_prefix('{') {
        Some(mut list) => {
            while !list.trim_start().starts_with('}') && !list.is_empty() {
                list = expand(list, before, found).trim_start();
                list = list.strip_prefix(',').unwrap_or(list);
            }
            return list.trim_start().strip_prefix('}').unwrap_or(list);
        }
        None => {
            let end = text.find(|c| !is_part_of_name(c)).unwrap_or(text.len());
            before.push(text[..end].to_owned());
            // What is no name would be looked at for ever.
            &text[end.max(usize::from(end == 0 && !text.is_empty()))..]
        }
    };
    match rest.strip_prefix("::") {
        Some(more) => rest = expand(more, before, found),
        None => found.push(before.clone()),
    }
    before.truncate(depth);
    rest
}

/// The file that a path in the file of `from` leads to.
fn target(from: &Module, path: &[String], modules: &BTreeMap<Module, String>) -> Option<Module> {
    let mut at = match path.first()?.as_str() {
        "crate" => Vec::new(),
        "super" => from.split_last()?.1.to_vec(),
        _ => from.clone(),
    };
    for name in &path[1..] {
        match name.as_str() {
            "super" => _ = at.pop(),
            name => at.push(name.to_owned()),
        }
    }
    while !at.is_empty() && !modules.contains_key(&at) {
        at.pop();
    }
    Some(at).filter(|at| !at.is_empty() && at != from)
}

fn modules() -> BTreeMap<Module, String> {
    let mut found: Vec<PathBuf> = Vec::new();
    files(&root().join("src"), "rs", &mut found);
    let read = |path: PathBuf| {
        Some((
            module(&path)?,
            code(&std::fs::read_to_string(path).unwrap()),
        ))
    };
    found.into_iter().filter_map(read).collect()
}

/// The files of its room that each file uses.
fn arrows(modules: &BTreeMap<Module, String>) -> BTreeMap<&Module, BTreeSet<Module>> {
    let arrows = modules.iter().map(|(from, code)| {
        let targets = paths(code);
        let targets = targets
            .iter()
            .filter_map(|path| target(from, path, modules));
        (from, targets.filter(|to| to[0] == from[0]).collect())
    });
    arrows.collect()
}

/// The files that can be reached from each file of its room.
fn reached(modules: &BTreeMap<Module, String>) -> BTreeMap<&Module, BTreeSet<Module>> {
    let mut reached = arrows(modules);
    loop {
        let before = reached.clone();
        for reach in reached.values_mut() {
            let further = reach.iter().flat_map(|at| before[at].iter().cloned());
            let further: Vec<_> = further.collect();
            reach.extend(further);
        }
        if reached == before {
            return reached;
        }
    }
}

/// The largest circle of each room that has one of more than two files.
fn circles() -> BTreeMap<String, BTreeSet<String>> {
    let modules = modules();
    let reached = reached(&modules);
    let mut circles: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, reach) in &reached {
        let back = reach.iter().filter(|to| reached[to].contains(*from));
        let circle: BTreeSet<_> = back.map(|module| module.join("::")).collect();
        let known = circles.entry(from[0].clone()).or_default();
        if circle.len() > 2 && circle.len() > known.len() {
            *known = circle;
        }
    }
    circles.retain(|_, circle| !circle.is_empty());
    circles
}

#[test]
fn no_more_than_two_files_import_each_other() {
    assert_eq!(circles(), BTreeMap::new());
}

/// The room of `relay` that a file belongs to.
fn room_of_relay(module: &Module) -> Option<&String> {
    module.get(1).filter(|_| module[0] == "relay")
}

#[test]
fn the_rooms_of_relay_are_those_that_the_document_names() {
    let modules = modules();
    let rooms: BTreeSet<_> = modules.keys().filter_map(room_of_relay).cloned().collect();
    let named = levels_below("Rooms of `relay`");
    assert_eq!(rooms, named.into_keys().collect());
}

#[test]
fn arrows_between_the_rooms_of_relay_go_down() {
    let levels = levels_below("Rooms of `relay`");
    let modules = modules();
    let mut looked_at = 0;
    for (from, targets) in arrows(&modules) {
        for to in targets {
            let rooms = room_of_relay(from).zip(room_of_relay(&to));
            let Some((from_room, to_room)) = rooms.filter(|(from, to)| from != to) else {
                continue;
            };
            looked_at += 1;
            let down = levels.get(from_room) < levels.get(to_room);
            assert!(down, "{} uses {}", from.join("::"), to.join("::"));
        }
    }
    assert!(looked_at > 50, "{looked_at}");
}

#[test]
fn paths_are_found_in_each_form() {
    let code =
        "use super::a::{b, c::D, self};\nlet x = crate::e::f(self::g::H);\nother::super_::i()";
    let found: Vec<_> = paths(code).iter().map(|path| path.join(" ")).collect();
    assert_eq!(
        found,
        [
            "super a b",
            "super a c D",
            "super a self",
            "crate e f",
            "self g H"
        ]
    );
}
