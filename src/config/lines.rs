//! Finds the line of a key.
//!
//! serde_yaml reports positions in errors only. So this reads the file again and fails on purpose at the key: exact for
//! every style of YAML, and costs one pass over a small file for each problem.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::tree::{KeyPath, KeyStep, Node};

/// The line, from 1, of the key or list item at `path`, or of the nearest key above it that is in the file.
pub(super) fn line_of(text: &str, root: &Node, path: &KeyPath) -> Option<usize> {
    let positions = positions(root, path.steps());
    if positions.is_empty() {
        return None;
    }
    let reached = Cell::new(false);
    let find = LineFinder {
        positions: &positions,
        reached: &reached,
    };
    let error = find
        .deserialize(serde_yaml::Deserializer::from_str(text))
        .err()?;
    let location = error.location().filter(|_| reached.get())?;
    Some(location.line())
}

/// The steps that exist in the tree, each as the index of an entry or item.
fn positions(root: &Node, steps: &[KeyStep]) -> Vec<usize> {
    let mut node = root;
    let mut positions = Vec::with_capacity(steps.len());
    for step in steps {
        let Some((index, below)) = child(node, step) else {
            break;
        };
        positions.push(index);
        node = below;
    }
    positions
}

fn child<'n>(node: &'n Node, step: &KeyStep) -> Option<(usize, &'n Node)> {
    match (node, step) {
        (Node::List(items), KeyStep::Item(index)) => Some((*index, items.get(*index)?)),
        (Node::Map(entries), KeyStep::Key { name, nth }) => {
            let mut same = entries
                .iter()
                .enumerate()
                .filter(|(_, (key, _))| key == name);
            let (index, (_, below)) = same.nth(*nth)?;
            Some((index, below))
        }
        _ => None,
    }
}

/// Goes to the last of the positions and fails there.
#[derive(Clone, Copy)]
struct LineFinder<'a> {
    positions: &'a [usize],
    reached: &'a Cell<bool>,
}

impl<'a> LineFinder<'a> {
    /// The index at this level, and the rest.
    fn split(self) -> (usize, Self) {
        match self.positions.split_first() {
            Some((index, positions)) => (*index, Self { positions, ..self }),
            None => (0, self),
        }
    }
}

impl<'de> DeserializeSeed<'de> for LineFinder<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.positions.is_empty() {
            self.reached.set(true);
            return deserializer.deserialize_any(RejectAny);
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for LineFinder<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping or a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let (index, below) = self.split();
        for _ in 0..index {
            seq.next_element::<IgnoredAny>()?;
        }
        seq.next_element_seed(below)?;
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (index, below) = self.split();
        for _ in 0..index {
            map.next_entry::<IgnoredAny, IgnoredAny>()?;
        }
        if below.positions.is_empty() {
            map.next_key_seed(below)?;
            return Ok(());
        }
        map.next_key::<IgnoredAny>()?;
        map.next_value_seed(below)
    }
}

/// Accepts no value, so that serde_yaml reports the position.
struct RejectAny;

impl Visitor<'_> for RejectAny {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing")
    }
}
