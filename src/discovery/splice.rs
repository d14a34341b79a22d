//! Adds entries to a JSON text in place: every byte stays, new entries go to the ends of lists.
//!
//! A document is parsed into types that know only the names of entries and the positions of lists. So unknown fields stay,
//! in their order and spelling.

use std::collections::HashMap;
use std::ops::Range;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::kube::discovery::model::Named;
use crate::kube::discovery::wire::Text;

/// A value and its JSON text, which is empty if the value is missing.
#[derive(Debug, Default)]
pub(super) struct Spanned<'a, T> {
    text: &'a str,
    pub(super) value: T,
}

impl<'de: 'a, 'a, T: Deserialize<'de>> Deserialize<'de> for Spanned<'a, T> {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        let text = <&'de RawValue>::deserialize(value)?.get();
        let value = serde_json::from_str(text).map_err(D::Error::custom)?;
        Ok(Self { text, value })
    }
}

impl<T> Spanned<'_, Option<Vec<T>>> {
    /// The entries of a list that may be `null` or missing.
    pub(super) fn entries(&self) -> &[T] {
        self.value.as_deref().unwrap_or_default()
    }
}

impl<'a, T> SpannedList<'a, T> {
    /// The list as text.
    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    /// The entries as text.
    pub(super) fn texts(&self) -> Result<Vec<&'a RawValue>, serde_json::Error> {
        serde_json::from_str(self.text)
    }
}

impl SpannedText<'_> {
    /// Fails unless it is the kind of document that is expected.
    pub(super) fn expect(&self, kind: &str) -> Result<(), serde_json::Error> {
        match &*self.value == kind {
            true => Ok(()),
            false => Err(serde_json::Error::custom(format!("not an {kind}"))),
        }
    }
}

pub(super) type SpannedList<'a, T> = Spanned<'a, Option<Vec<T>>>;

/// A string, after which a field can be added.
pub(super) type SpannedText<'a> = Spanned<'a, Text<'a>>;

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

/// Edits of a JSON text.
pub(super) struct Edits<'a> {
    body: &'a [u8],
    edits: Vec<(Range<usize>, Vec<u8>)>,
}

impl<'a> Edits<'a> {
    pub(super) fn of(body: &'a [u8]) -> Self {
        Self {
            body,
            edits: Vec::new(),
        }
    }

    /// Adds entries to the end of `list`. A missing list is created as field `field` after the value `after`.
    pub(super) fn append<T, A>(
        &mut self,
        list: &SpannedList<'a, T>,
        (field, after): (&str, &Spanned<'a, A>),
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

    /// Gives a field another value. A missing field is created after the value `after`.
    pub(super) fn set<T, A>(
        &mut self,
        value: &Spanned<'a, T>,
        (field, after): (&str, &Spanned<'a, A>),
        new: impl Serialize,
    ) -> Result<(), serde_json::Error> {
        if !value.text.is_empty() {
            return self.replace(value.text, new);
        }
        let mut text = format!(",{field:?}:").into_bytes();
        serde_json::to_writer(&mut text, &new)?;
        let end = self.range(after.text).end;
        self.edits.push((end..end, text));
        Ok(())
    }

    /// Replaces a value, given by its text.
    pub(super) fn replace(
        &mut self,
        old: &'a str,
        new: impl Serialize,
    ) -> Result<(), serde_json::Error> {
        let at = self.range(old);
        self.edits.push((at, serde_json::to_vec(&new)?));
        Ok(())
    }

    /// The position of a part of the text.
    fn range(&self, part: &str) -> Range<usize> {
        let start = part.as_ptr().addr().wrapping_sub(self.body.as_ptr().addr());
        match start.checked_add(part.len()) {
            Some(end) if end <= self.body.len() && !part.is_empty() => start..end,
            _ => 0..0,
        }
    }

    /// The edited text; `None` without edits.
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
