//! Subjects, issuers, and alternative names.

use std::net::IpAddr;

use super::der::{DerReader, SET, context};
use super::{domain, uri};

/// Whether Go can parse all attributes of a subject or issuer (`parseName`, `parseASN1String`).
pub(super) fn is_parsable(name: &[u8]) -> bool {
    read(name).is_some()
}

fn read(name: &[u8]) -> Option<()> {
    let mut name = DerReader::new(name);
    while !name.is_empty() {
        let mut set = DerReader::new(name.expect(SET)?);
        while !set.is_empty() {
            let mut attribute = set.sequence()?;
            attribute.oid()?;
            let value = attribute.value()?;
            is_text(value.tag, value.content).then_some(())?;
        }
    }
    Some(())
}

fn is_text(tag: u8, value: &[u8]) -> bool {
    const UTF8: u8 = 12;
    const NUMERIC: u8 = 18;
    const PRINTABLE: u8 = 19;
    const T61: u8 = 20;
    const IA5: u8 = 22;
    const BMP: u8 = 30;
    match tag {
        UTF8 => std::str::from_utf8(value).is_ok(),
        NUMERIC => value.iter().all(|b| b.is_ascii_digit() || *b == b' '),
        PRINTABLE => value.iter().all(|b| is_printable(*b)),
        T61 => true,
        IA5 => value.is_ascii(),
        BMP => value.len().is_multiple_of(2),
        _ => false,
    }
}

/// `*` and `&` are not allowed by ASN.1, but some CAs write them.
fn is_printable(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'\''..=b')' | b'+'..=b'/' | b' ' | b':' | b'=' | b'?' | b'*' | b'&')
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AltName<'a> {
    Email(&'a str),
    Dns(&'a str),
    Uri(&'a str),
    Ip(IpAddr),
    /// Of a type that Go ignores.
    Other,
}

/// The names in a SubjectAltName; a last item `None`: the rest cannot be read.
pub(super) fn alternatives(value: &[u8]) -> impl Iterator<Item = Option<AltName<'_>>> {
    let mut names = DerReader::new(value).sequence();
    std::iter::from_fn(move || match names {
        None => Some(None),
        Some(list) if list.is_empty() => None,
        Some(ref mut list) => {
            let name = list
                .value()
                .and_then(|value| name(value.tag, value.content));
            if name.is_none() {
                names = Some(DerReader::new(&[]));
            }
            Some(name)
        }
    })
}

fn name(tag: u8, value: &[u8]) -> Option<AltName<'_>> {
    const EMAIL: u8 = context(1);
    const DNS: u8 = context(2);
    const URI: u8 = context(6);
    const IP: u8 = context(7);
    Some(match tag {
        EMAIL => AltName::Email(ascii(value)?),
        DNS => AltName::Dns(ascii(value)?),
        URI => {
            let uri = ascii(value)?;
            uri::host(uri).filter(|host| domain::is_domain(host))?;
            AltName::Uri(uri)
        }
        IP => AltName::Ip(ip(value)?),
        _ => AltName::Other,
    })
}

fn ip(value: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(value).map(IpAddr::from);
    let sixteen = <[u8; 16]>::try_from(value).map(IpAddr::from);
    four.or(sixteen).ok()
}

pub(super) fn ascii(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value)
        .ok()
        .filter(|text| text.is_ascii())
}

/// Whether a SubjectAltName has a name of a type that Go knows; `None`: it cannot be read.
pub(super) fn check(value: &[u8]) -> Option<bool> {
    // An empty list has no names; a value that is not a list counts as one malformed name.
    alternatives(value).try_fold(false, |known, name| Some(known | (name? != AltName::Other)))
}
