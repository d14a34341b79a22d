//! Adding to a JSON text where it stands: every byte of it stays, new entries go to the ends of its lists.
//!
//! A document is read into types that know only what names entries, and where lists are. So fields that nobody here has
//! heard of stay, in their order, written as they were.

use std::collections::HashMap;
use std::ops::Range;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::model::Named;
use super::wire::Text;

/// A value of a JSON text, and its very text; empty if it is not there.
#[derive(Debug, Default)]
pub(super) struct Place<'a, T> {
    text: &'a str,
    pub(super) value: T,
}

impl<'de: 'a, 'a, T: Deserialize<'de>> Deserialize<'de> for Place<'a, T> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        let text = <&'de RawValue>::deserialize(value)?.get();
        let value = serde_json::from_str(text).map_err(D::Error::custom)?;
        Ok(Self { text, value })
    }
}

impl<T> Place<'_, Option<Vec<T>>> {
    /// Entries of a list that may be `null`, or not there.
    pub(super) fn entries(&self) -> &[T] {
        self.value.as_deref().unwrap_or_default()
    }
}

impl<'a, T> List<'a, T> {
    /// The entries as text.
    pub(super) fn texts(&self) -> Result<Vec<&'a RawValue>, serde_json::Error> {
        serde_json::from_str(self.text)
    }
}

impl Name<'_> {
    /// Fails unless it is the kind of document that is expected.
    pub(super) fn expect(&self, kind: &str) -> Result<(), serde_json::Error> {
        match &*self.value == kind {
            true => Ok(()),
            false => Err(serde_json::Error::custom(format!("not an {kind}"))),
        }
    }
}

/// A list.
pub(super) type List<'a, T> = Place<'a, Option<Vec<T>>>;

/// A text, after which a field can be added.
pub(super) type Name<'a> = Place<'a, Text<'a>>;

/// The entries of `others` whose names `local` does not have; with those that it has, `both` is done.
pub(super) fn lacking<'l, 'o, L: Named, O: Named + 'o>(
    local: &'l [L],
    others: impl IntoIterator<Item = &'o O>,
    mut both: impl FnMut(&'l L, &'o O) -> Result<(), serde_json::Error>,
) -> Result<Vec<&'o O>, serde_json::Error> {
    let named: HashMap<&str, &L> = local.iter().map(|entry| (entry.name(), entry)).collect();
    let mut lacking = Vec::new();
    for other in others {
        match named.get(other.name()) {
            Some(known) => both(known, other)?,
            None => lacking.push(other),
        }
    }
    Ok(lacking)
}

/// What is to be added to a text.
pub(super) struct Edits<'a> {
    body: &'a [u8],
    edits: Vec<(Range<usize>, Vec<u8>)>,
}

impl<'a> Edits<'a> {
    /// Nothing yet.
    pub(super) fn of(body: &'a [u8]) -> Self {
        Self {
            body,
            edits: Vec::new(),
        }
    }

    /// Adds entries to the end of `list`. Where there is none, it is made: as field `field` after the value `after`.
    pub(super) fn append<T, A>(
        &mut self,
        list: &List<'a, T>,
        (field, after): (&str, &Place<'a, A>),
        entries: impl IntoIterator<Item: Serialize>,
    ) -> Result<(), serde_json::Error> {
        let mut text = Vec::new();
        for entry in entries {
            text.push(b',');
            serde_json::to_writer(&mut text, &entry)?;
        }
        let Some(first) = text.first_mut() else {
            return Ok(());
        };
        let mut at = self.range(list.text);
        if !list.entries().is_empty() {
            at.start = at.end.saturating_sub(1);
            at.end = at.start;
        } else {
            *first = b'[';
            text.push(b']');
            if list.text.is_empty() {
                text.splice(..0, format!(",{field:?}:").into_bytes());
                at = self.range(after.text);
                at.start = at.end;
            }
        }
        if at.end == 0 {
            return Err(serde_json::Error::custom("an entry without a name"));
        }
        self.edits.push((at, text));
        Ok(())
    }

    /// Puts another value in the place of one, given as text.
    pub(super) fn replace(
        &mut self,
        old: &'a str,
        new: impl Serialize,
    ) -> Result<(), serde_json::Error> {
        let at = self.range(old);
        self.edits.push((at, serde_json::to_vec(&new)?));
        Ok(())
    }

    /// Where in the text a part of it is.
    fn range(&self, part: &str) -> Range<usize> {
        let start = part.as_ptr().addr().wrapping_sub(self.body.as_ptr().addr());
        match start.checked_add(part.len()) {
            Some(end) if end <= self.body.len() && !part.is_empty() => start..end,
            _ => 0..0,
        }
    }

    /// The text with everything added; `None` if that is nothing.
    pub(super) fn finish(mut self) -> Option<Vec<u8>> {
        if self.edits.is_empty() {
            return None;
        }
        self.edits.sort_by_key(|(at, _)| at.start);
        let added: usize = self.edits.iter().map(|(_, text)| text.len()).sum();
        let mut out = Vec::with_capacity(self.body.len() + added);
        let mut passed = 0;
        for (at, text) in &self.edits {
            out.extend_from_slice(self.body.get(passed..at.start).unwrap_or_default());
            out.extend_from_slice(text);
            passed = at.end;
        }
        out.extend_from_slice(self.body.get(passed..).unwrap_or_default());
        Some(out)
    }
}
