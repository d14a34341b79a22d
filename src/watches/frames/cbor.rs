//! Events as a CBOR sequence (RFC 8742), which kube-apiserver sends to clients that accept CBOR. One item is one event;
//! items have no length prefix. kube-apiserver writes strings as byte strings; text strings are read too. Items of
//! indefinite length, which it does not write, are not read.

use std::borrow::Cow;

use minicbor::Decoder;
use minicbor::data::Type;

use super::{LIMIT, ObjectEvent, UnknownFrame, kind, revision};

/// The tag "this is CBOR", with which events and objects begin.
pub(super) const SELF_DESCRIBED: &[u8] = b"\xd9\xd9\xf7";
/// Deepest nesting. kube-apiserver reads no deeper objects either.
const DEPTH: usize = 128;

/// Finds where an item ends, piece by piece and without decoding it. Small, because most watches wait between two items.
#[derive(Debug, Default)]
pub(super) struct ItemScanner(Option<Box<PartialItem>>);

/// An item of which some bytes were seen.
#[derive(Debug, Default)]
struct PartialItem {
    /// Items that are still to come, of each open array, map or tag.
    open: Vec<u64>,
    head: Option<Head>,
    /// Bytes of a string that are still to come.
    string: u64,
}

/// The start of an item: its major type, and an argument of which some bytes may be missing.
#[derive(Debug, Clone, Copy)]
struct Head {
    major: u8,
    argument: u64,
    missing: u8,
}

impl ItemScanner {
    /// Whether the bytes so far end with an item.
    pub(super) fn at_boundary(&self) -> bool {
        self.0.is_none()
    }

    /// Takes bytes up to the end of the item. Returns how many, or `None` if it does not end in `data`.
    pub(super) fn end(&mut self, data: &[u8]) -> Result<Option<usize>, UnknownFrame> {
        if data.is_empty() {
            return Ok(None);
        }
        let mut item = self.0.take().map(|item| *item).unwrap_or_default();
        let end = item.end(data)?;
        if end.is_none() {
            self.0 = Some(Box::new(item));
        }
        Ok(end)
    }
}

impl PartialItem {
    fn end(&mut self, data: &[u8]) -> Result<Option<usize>, UnknownFrame> {
        let mut rest = data;
        loop {
            let ended = match self.string {
                0 => {
                    let Some((first, others)) = rest.split_first() else {
                        return Ok(None);
                    };
                    rest = others;
                    self.head(*first)?
                }
                left => {
                    let (_, others) =
                        rest.split_at(usize::try_from(left).unwrap_or(usize::MAX).min(rest.len()));
                    self.string -= (rest.len() - others.len()) as u64;
                    rest = others;
                    if self.string > 0 {
                        return Ok(None);
                    }
                    true
                }
            };
            if ended && self.ended() {
                return Ok(Some(data.len() - rest.len()));
            }
        }
    }

    /// The next byte of a head. Returns whether an item without further bytes ended.
    fn head(&mut self, byte: u8) -> Result<bool, UnknownFrame> {
        let head = match self.head.take() {
            None => Head::first(byte)?,
            Some(head) => Head {
                argument: head.argument << 8 | u64::from(byte),
                missing: head.missing - 1,
                ..head
            },
        };
        if head.missing > 0 {
            self.head = Some(head);
            return Ok(false);
        }
        let items = match head.major {
            0 | 1 | 7 => return Ok(true),
            _ if head.argument > LIMIT as u64 && head.major != 6 => return Err(UnknownFrame),
            2 | 3 => {
                self.string = head.argument;
                return Ok(head.argument == 0);
            }
            4 => head.argument,
            5 => head.argument * 2,
            _ => 1,
        };
        if items > 0 {
            if self.open.len() >= DEPTH {
                return Err(UnknownFrame);
            }
            self.open.push(items);
        }
        Ok(items == 0)
    }

    /// An item ended, and with it those that it was the last of. Returns whether that is all.
    fn ended(&mut self) -> bool {
        while let Some(left) = self.open.last_mut() {
            *left -= 1;
            if *left > 0 {
                return false;
            }
            self.open.pop();
        }
        true
    }
}

impl Head {
    fn first(byte: u8) -> Result<Self, UnknownFrame> {
        let (major, information) = (byte >> 5, byte & 31);
        let (argument, missing) = match information {
            0..=23 => (u64::from(information), 0),
            24..=27 => (0, 1 << (information - 24)),
            _ => return Err(UnknownFrame),
        };
        Ok(Self {
            major,
            argument,
            missing,
        })
    }
}

/// Reads one item.
pub(super) fn read(item: &[u8]) -> Result<ObjectEvent<'_>, UnknownFrame> {
    let mut decoder = Decoder::new(item);
    let (mut event_kind, mut object) = (Cow::Borrowed(""), Object::default());
    fields(&mut decoder, |key, decoder| {
        match key {
            "type" => event_kind = text(decoder)?,
            "object" => object = Object::read(decoder)?,
            _ => skip(decoder)?,
        }
        Ok(())
    })?;
    Ok(ObjectEvent {
        kind: kind(&event_kind)?,
        revision: revision(&object.resource_version)?,
        namespace: object.namespace,
        name: object.name,
        api_version: object.api_version,
        object_kind: object.kind,
    })
}

/// The code of the status in an ERROR event, if it has one; `None`: the item is no ERROR event.
pub(super) fn error(item: &[u8]) -> Option<Option<i32>> {
    let mut decoder = Decoder::new(item);
    let (mut is_error, mut is_status, mut code) = (false, false, None);
    let read = fields(&mut decoder, |key, decoder| {
        match key {
            "type" => is_error = text(decoder)? == "ERROR",
            "object" => fields(decoder, |key, decoder| {
                match key {
                    "kind" => is_status = text(decoder)? == "Status",
                    "code" => code = Some(decoder.i32().map_err(unknown)?),
                    _ => skip(decoder)?,
                }
                Ok(())
            })?,
            _ => skip(decoder)?,
        }
        Ok(())
    });
    (read.is_ok() && is_error).then(|| code.filter(|_| is_status))
}

#[derive(Default)]
struct Object<'a> {
    api_version: Cow<'a, str>,
    kind: Cow<'a, str>,
    resource_version: Cow<'a, str>,
    namespace: Cow<'a, str>,
    name: Cow<'a, str>,
}

impl<'a> Object<'a> {
    fn read(decoder: &mut Decoder<'a>) -> Result<Self, UnknownFrame> {
        let mut object = Self::default();
        fields(decoder, |key, decoder| {
            match key {
                "apiVersion" => object.api_version = text(decoder)?,
                "kind" => object.kind = text(decoder)?,
                "metadata" => fields(decoder, |key, decoder| {
                    match key {
                        "resourceVersion" => object.resource_version = text(decoder)?,
                        "namespace" => object.namespace = text(decoder)?,
                        "name" => object.name = text(decoder)?,
                        _ => skip(decoder)?,
                    }
                    Ok(())
                })?,
                _ => skip(decoder)?,
            }
            Ok(())
        })?;
        Ok(object)
    }
}

/// Calls `each` for the fields of a map, with the decoder before the field's value.
fn fields<'a>(
    decoder: &mut Decoder<'a>,
    mut each: impl FnMut(&str, &mut Decoder<'a>) -> Result<(), UnknownFrame>,
) -> Result<(), UnknownFrame> {
    // An event and the object in it each begin with the tag that says "this is CBOR".
    while decoder.datatype().map_err(unknown)? == Type::Tag {
        decoder.tag().map_err(unknown)?;
    }
    let length = decoder.map().map_err(unknown)?.ok_or(UnknownFrame)?;
    for _ in 0..length {
        let key = text(decoder)?;
        each(&key, decoder)?;
    }
    Ok(())
}

fn text<'a>(decoder: &mut Decoder<'a>) -> Result<Cow<'a, str>, UnknownFrame> {
    let text = match decoder.datatype().map_err(unknown)? {
        Type::Bytes => {
            std::str::from_utf8(decoder.bytes().map_err(unknown)?).map_err(|_| UnknownFrame)?
        }
        _ => decoder.str().map_err(unknown)?,
    };
    Ok(Cow::Borrowed(text))
}

fn skip(decoder: &mut Decoder<'_>) -> Result<(), UnknownFrame> {
    decoder.skip().map_err(unknown)
}

fn unknown(_: minicbor::decode::Error) -> UnknownFrame {
    UnknownFrame
}
