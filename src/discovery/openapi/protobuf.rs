//! `/openapi/v2` in protobuf: `openapi.v2.Document` of gnostic, read as deep as the names of its entries.

use std::borrow::Cow;

use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

use super::OpenApiReadError;
use super::parts::{Entry, Parts};

/// A part of the document: its number there, and that of the entries in it. An entry has its name in field 1.
#[derive(Clone, Copy)]
struct Part {
    number: u32,
    entries: u32,
}

/// `Paths paths = 8`, with `repeated NamedPathItem path = 2`.
const PATHS: Part = Part {
    number: 8,
    entries: 2,
};

/// `Definitions definitions = 9`, with `repeated NamedSchema additional_properties = 1`.
const DEFINITIONS: Part = Part {
    number: 9,
    entries: 1,
};

const NAME: u32 = 1;

/// A document, read as deep as the names of its entries.
#[derive(Debug)]
pub(super) struct ProtobufDocument<'a> {
    fields: Vec<Field<'a>>,
    pub(super) parts: Parts<'a, [u8]>,
}

impl<'a> ProtobufDocument<'a> {
    pub(super) fn read(body: &'a [u8]) -> Result<Self, OpenApiReadError> {
        let fields = fields(body).collect::<Result<Vec<_>, _>>()?;
        let parts = Parts {
            paths: read_part(&fields, PATHS)?,
            definitions: read_part(&fields, DEFINITIONS)?,
        };
        Ok(Self { fields, parts })
    }

    /// The document with more entries behind its own.
    pub(super) fn with(&self, added: &Parts<'a, [u8]>) -> Vec<u8> {
        let own: usize = self.fields.iter().map(|field| field.whole.len()).sum();
        let parts = [(PATHS, &added.paths), (DEFINITIONS, &added.definitions)];
        let parts = parts.map(|(part, entries)| {
            let more = encode_entries(part, entries);
            let last = self.fields.iter().rposition(|field| field.is(part.number));
            (part, more, last)
        });
        let more: usize = parts.iter().map(|(_, more, _)| more.len() + 16).sum();
        let mut out = Vec::with_capacity(own + more);
        for (index, field) in self.fields.iter().enumerate() {
            let grows = parts.iter().find(|(_, _, last)| *last == Some(index));
            match grows {
                // A reader may take the last of several fields, or join them: so it is lengthened, not repeated.
                Some((part, more, _)) => {
                    write(part.number, &[field.value, more], &mut out);
                }
                None => out.extend_from_slice(field.whole),
            }
        }
        for (part, more, last) in &parts {
            if last.is_none() && !more.is_empty() {
                write(part.number, &[more], &mut out);
            }
        }
        out
    }
}

fn read_part<'a>(
    fields: &[Field<'a>],
    part: Part,
) -> Result<Vec<Entry<'a, [u8]>>, OpenApiReadError> {
    let mut entries = Vec::new();
    for whole in fields.iter().filter(|field| field.is(part.number)) {
        for entry in self::fields(whole.value) {
            let entry = entry?;
            if entry.is(part.entries) {
                entries.push((Cow::Borrowed(name(entry.value)?), entry.value));
            }
        }
    }
    Ok(entries)
}

fn name(entry: &[u8]) -> Result<&str, OpenApiReadError> {
    for field in fields(entry) {
        let field = field?;
        if field.is(NAME) {
            return std::str::from_utf8(field.value).map_err(|_| OpenApiReadError::Field);
        }
    }
    Ok("")
}

fn encode_entries(part: Part, entries: &[Entry<'_, [u8]>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(entries.iter().map(|(_, entry)| entry.len() + 8).sum());
    for (_, entry) in entries {
        write(part.entries, &[entry], &mut out);
    }
    out
}

/// Writes a field whose contents are these bytes, one after the other.
fn write(number: u32, contents: &[&[u8]], out: &mut Vec<u8>) {
    let length: usize = contents.iter().map(|piece| piece.len()).sum();
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(length as u64, out);
    for piece in contents {
        out.extend_from_slice(piece);
    }
}

/// A field of a message.
#[derive(Debug, Clone, Copy)]
struct Field<'a> {
    number: u32,
    kind: WireType,
    /// With number and length.
    whole: &'a [u8],
    /// Without them.
    value: &'a [u8],
}

impl Field<'_> {
    /// Whether it is a message or a string of this number.
    fn is(&self, number: u32) -> bool {
        self.number == number && self.kind == WireType::LengthDelimited
    }
}

/// The fields of a message, until one cannot be read.
fn fields(message: &[u8]) -> impl Iterator<Item = Result<Field<'_>, OpenApiReadError>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = read_field(rest);
        rest = match &field {
            Ok(field) => rest.get(field.whole.len()..).unwrap_or_default(),
            Err(_) => &[],
        };
        Some(field)
    })
}

fn read_field(message: &[u8]) -> Result<Field<'_>, OpenApiReadError> {
    let mut rest = message;
    let (number, kind) = decode_key(&mut rest)?;
    let length = match kind {
        WireType::Varint => {
            let mut behind = rest;
            decode_varint(&mut behind)?;
            rest.len() - behind.len()
        }
        WireType::SixtyFourBit => 8,
        WireType::ThirtyTwoBit => 4,
        WireType::LengthDelimited => {
            usize::try_from(decode_varint(&mut rest)?).map_err(|_| OpenApiReadError::Field)?
        }
        WireType::StartGroup | WireType::EndGroup => return Err(OpenApiReadError::Field),
    };
    let (value, behind) = rest
        .split_at_checked(length)
        .ok_or(OpenApiReadError::Field)?;
    let whole = message.len() - behind.len();
    Ok(Field {
        number,
        kind,
        whole: message.get(..whole).unwrap_or_default(),
        value,
    })
}
