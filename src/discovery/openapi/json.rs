//! Documents in JSON: `/openapi/v2`, and the index `/openapi/v3`, which has no definitions.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::OpenApiReadError;
use super::parts::{Entry, Parts};

const PATHS: &str = "paths";
const DEFINITIONS: &str = "definitions";

/// A document, read as deep as the names of its entries.
#[derive(Debug)]
pub(super) struct JsonDocument<'a> {
    members: Members<'a>,
    pub(super) parts: Parts<'a, RawValue>,
}

impl<'a> JsonDocument<'a> {
    pub(super) fn read(body: &'a [u8]) -> Result<Self, OpenApiReadError> {
        let members: Members<'a> = serde_json::from_slice(body)?;
        let parts = Parts {
            paths: members.part(PATHS)?,
            definitions: members.part(DEFINITIONS)?,
        };
        Ok(Self { members, parts })
    }

    /// The document with more entries behind its own.
    pub(super) fn with(&self, added: &Parts<'a, RawValue>) -> Result<Vec<u8>, OpenApiReadError> {
        let size = |entries: &[Entry<'_, RawValue>]| -> usize {
            let sizes = entries
                .iter()
                .map(|(name, value)| name.len() + value.get().len() + 4);
            sizes.sum()
        };
        let own = self.members.0.as_slice();
        let mut out =
            Vec::with_capacity(size(own) + size(&added.paths) + size(&added.definitions) + 64);
        let mut waiting = [(PATHS, &added.paths), (DEFINITIONS, &added.definitions)];
        out.push(b'{');
        // From the end: of several members with one name the last one counts.
        let last = waiting.map(|(name, _)| own.iter().rposition(|(member, _)| member == name));
        for (index, (name, value)) in own.iter().enumerate() {
            let grows = last.iter().position(|last| *last == Some(index));
            let more = grows.and_then(|part| waiting.get_mut(part));
            let more = more.map_or(&[][..], |(_, entries)| entries.as_slice());
            begin(&mut out, name)?;
            extend(&mut out, value, more)?;
        }
        let new = waiting.iter().zip(last).filter(|(_, last)| last.is_none());
        for ((name, entries), _) in new.filter(|((_, entries), _)| !entries.is_empty()) {
            begin(&mut out, name)?;
            extend(&mut out, RawValue::NULL, entries)?;
        }
        out.push(b'}');
        Ok(out)
    }
}

/// Writes the name of a member, and what parts it from the one before.
fn begin(out: &mut Vec<u8>, name: &str) -> Result<(), OpenApiReadError> {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
    serde_json::to_writer(&mut *out, name)?;
    out.push(b':');
    Ok(())
}

/// Writes a value, and entries behind its own. Null has none.
fn extend(
    out: &mut Vec<u8>,
    value: &RawValue,
    entries: &[Entry<'_, RawValue>],
) -> Result<(), OpenApiReadError> {
    if entries.is_empty() {
        out.extend_from_slice(value.get().as_bytes());
        return Ok(());
    }
    let own = value.get().strip_suffix('}').unwrap_or("{");
    out.extend_from_slice(own.trim_ascii_end().as_bytes());
    for (name, entry) in entries {
        begin(out, name)?;
        out.extend_from_slice(entry.get().as_bytes());
    }
    out.push(b'}');
    Ok(())
}

/// The members of an object, in their order.
#[derive(Debug, Default)]
struct Members<'a>(Vec<Entry<'a, RawValue>>);

impl<'a> Members<'a> {
    /// The members of this member.
    fn part(&self, name: &str) -> Result<Vec<Entry<'a, RawValue>>, OpenApiReadError> {
        let found = self.0.iter().rfind(|(member, _)| member == name);
        let Some((_, value)) = found else {
            return Ok(Vec::new());
        };
        let members: Option<Members<'a>> = serde_json::from_str(value.get())?;
        Ok(members.unwrap_or_default().0)
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Members<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((Name(name), value)) = map.next_entry()? {
                    members.push((name, value));
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Reader)
    }
}

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
