//! Reads the configuration file (YAML) into a tree that keeps every key.
//!
//! serde's derived types and `serde_yaml::Value` stop at the first error, unknown and repeated keys included. This tree
//! takes any YAML, so that [`super::section`] can report all errors at once. Reading fails only if the file is not YAML,
//! or if it would become too large when its aliases are filled in.

use std::cell::Cell;
use std::fmt;

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, EnumAccess, Error, IgnoredAny, MapAccess, SeqAccess, VariantAccess, Visitor,
};

use super::problem::{Problem, ProblemKind};
use super::tree::Node;

/// Largest configuration file, in bytes. A complete, commented one has 8 KiB.
pub(super) const MAX_BYTES: usize = 64 * 1024;

/// Nodes plus bytes of text that a tree may have. Without aliases a file of `MAX_BYTES` stays below this.
const MAX_COST: usize = 4 * MAX_BYTES;

/// Reads a file's text. Returns the first error only: YAML cannot be read beyond it.
pub(super) fn parse(text: &str) -> Result<Node, Vec<Problem>> {
    if text.len() > MAX_BYTES {
        let message =
            format!("the file is larger than {MAX_BYTES} bytes: is it the configuration?");
        return Err(Problem::of_file(ProblemKind::Yaml, None, message));
    }
    let budget = Cell::new(MAX_COST);
    build(text, &budget, None).map_err(|error| {
        let line = error.location().map(|location| location.line());
        let message = match budget.get() {
            0 => "too large with its aliases (*name) filled in: write the values out".to_owned(),
            _ => format!("not valid YAML: {error}"),
        };
        Problem::of_file(ProblemKind::Yaml, line, message)
    })
}

/// The line, from 1, of the key or list item at these indices.
///
/// serde_yaml reports positions in errors only. So this reads the file, which could be read before, again, and fails on
/// purpose at the key: exact for every style of YAML, and costs one pass over a small file for each problem.
pub(super) fn line_of(text: &str, indices: &[usize]) -> Option<usize> {
    let stop = Some(indices).filter(|indices| !indices.is_empty());
    let error = build(text, &Cell::new(MAX_COST), stop).err()?;
    Some(error.location()?.line())
}

fn build(text: &str, budget: &Cell<usize>, stop: Option<&[usize]>) -> serde_yaml::Result<Node> {
    TreeBuilder { budget, stop }.deserialize(serde_yaml::Deserializer::from_str(text))
}

/// Builds a [`Node`] until the budget is used up.
#[derive(Clone, Copy)]
struct TreeBuilder<'b> {
    budget: &'b Cell<usize>,
    /// Where to fail: the index of an entry or item at each level from here on; empty: here.
    stop: Option<&'b [usize]>,
}

impl<'b> TreeBuilder<'b> {
    /// The builders of a key and of its value, or of an item, at this index.
    fn below(self, index: usize) -> [Self; 2] {
        let stop = self.stop.and_then(<[_]>::split_first);
        let stop = stop.filter(|(first, _)| **first == index);
        let stop = stop.map(|(_, rest)| rest);
        let at_key = stop.filter(|rest| rest.is_empty());
        [at_key, stop].map(|stop| Self { stop, ..self })
    }

    fn spend<E: Error>(self, node: Node, bytes: usize) -> Result<Node, E> {
        let left = self.budget.get().saturating_sub(1 + bytes);
        self.budget.set(left);
        match left {
            0 => Err(E::custom("too large")),
            _ => Ok(node),
        }
    }
}

macro_rules! numbers {
    ($($visit:ident: $number:ty),*) => {$(
        fn $visit<E: Error>(self, number: $number) -> Result<Node, E> {
            // So 5.0 stays "5.0" and is not taken for an integer.
            let text = format!("{number:?}");
            let bytes = text.len();
            self.spend(Node::Number(text), bytes)
        }
    )*};
}

impl<'de> DeserializeSeed<'de> for TreeBuilder<'_> {
    type Value = Node;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        match self.stop {
            Some([]) => Nothing::deserialize(deserializer).map(|nothing| match nothing {}),
            _ => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for TreeBuilder<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML value")
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        self.spend(Node::Null, 0)
    }

    // An empty document.
    fn visit_none<E: Error>(self) -> Result<Node, E> {
        self.spend(Node::Null, 0)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Node, E> {
        self.spend(Node::Flag(flag), 0)
    }

    numbers!(visit_i64: i64, visit_u64: u64, visit_i128: i128, visit_u128: u128, visit_f64: f64);

    fn visit_str<E: Error>(self, text: &str) -> Result<Node, E> {
        self.spend(Node::Text(text.to_owned()), text.len())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self.below(items.len())[1])? {
            items.push(item);
        }
        self.spend(Node::List(items), 0)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        loop {
            let [key, value] = self.below(entries.len());
            match map.next_entry_seed(key, value)? {
                Some((key, value)) => entries.push((key.into_key(), value)),
                None => return self.spend(Node::Map(entries), 0),
            }
        }
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Node, A::Error> {
        let (IgnoredAny, variant) = data.variant()?;
        variant.newtype_variant_seed(self)?;
        Ok(Node::Tagged)
    }
}

/// No value is one of these, so serde_yaml reports the position.
#[derive(Deserialize)]
enum Nothing {}
