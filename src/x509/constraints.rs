//! Alternative names, and name constraints of CAs (RFC 5280, 4.2.1.10) as Go applies them: to the alternative names of the
//! leaf and of the CA itself. Common names are ignored, directory names not supported.

use std::net::IpAddr;

use der::asn1::AnyRef;
use der::{Tag, Tagged as _};

use super::der::{DerReader, constructed, context};
use super::domain;

// The types of names that Go knows, by the numbers of their tags.
const EMAIL: u8 = 1;
const DNS: u8 = 2;
const URI: u8 = 6;
const IP: u8 = 7;

/// Names that a CA may sign.
#[derive(Debug, Clone)]
pub(super) struct Constraints {
    permitted: Vec<Subtree>,
    excluded: Vec<Subtree>,
}

/// The type of the names that are constrained, and the constraint.
type Subtree = (u8, Vec<u8>);

impl Constraints {
    /// Returns also whether all constraints are of known types; `None`: they cannot be read.
    pub(super) fn read(mut value: DerReader<'_>) -> Option<(Self, bool)> {
        let mut content = value.sequence().filter(|_| value.is_empty())?;
        let permitted = content.tagged(constructed(0))?.unwrap_or_default();
        let excluded = content.tagged(constructed(1))?.unwrap_or_default();
        if !content.is_empty() || (permitted.is_empty() && excluded.is_empty()) {
            return None;
        }
        let mut all_known = true;
        let constraints = Self {
            permitted: subtrees(permitted, &mut all_known)?,
            excluded: subtrees(excluded, &mut all_known)?,
        };
        Some((constraints, all_known))
    }

    /// Whether all names of a SubjectAltName are allowed. `comparisons`: how many are left; decreased by those made.
    pub(super) fn allow(&self, names: &[u8], comparisons: &mut usize) -> bool {
        alternatives(names).is_some_and(|names| {
            let mut names = names.into_iter();
            names.all(|(kind, name)| self.allows(kind, name, comparisons).unwrap_or(false))
        })
    }

    /// Whether the name is in no excluded subtree and, if there are permitted ones, in one of those. `None` counts as no:
    /// the name cannot be compared, or no comparisons are left.
    fn allows(&self, kind: u8, name: &[u8], comparisons: &mut usize) -> Option<bool> {
        let of_kind = |(of, _): &&Subtree| *of == kind;
        let excluded: Vec<_> = self.excluded.iter().filter(of_kind).collect();
        let permitted: Vec<_> = self.permitted.iter().filter(of_kind).collect();
        *comparisons = comparisons.checked_sub(excluded.len() + permitted.len())?;
        if kind == DNS {
            domain::is_domain(ascii(name)?).then_some(())?;
        }
        for (_, constraint) in excluded {
            if is_within(kind, name, constraint)? {
                return Some(false);
            }
        }
        for (_, constraint) in &permitted {
            if is_within(kind, name, constraint)? {
                return Some(true);
            }
        }
        Some(permitted.is_empty())
    }
}

/// The names in a SubjectAltName that are of types that Go knows; `None`: it cannot be read.
pub(super) fn alternatives(value: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let mut list = DerReader::new(value)?.sequence()?;
    let mut names = Vec::new();
    while !list.is_empty() {
        let name: AnyRef<'_> = list.read()?;
        let value = name.value();
        match known_type(name.tag()) {
            Some(IP) if ![4, 16].contains(&value.len()) => return None,
            Some(EMAIL | DNS | URI) if !value.is_ascii() => return None,
            Some(kind) => names.push((kind, value)),
            None => {}
        }
    }
    Some(names)
}

fn subtrees(list: &[u8], all_known: &mut bool) -> Option<Vec<Subtree>> {
    let mut list = DerReader::new(list)?;
    let mut subtrees = Vec::new();
    while !list.is_empty() {
        let base: AnyRef<'_> = list.sequence()?.read()?;
        match known_type(base.tag()) {
            Some(kind) if is_constraint(kind, base.value()) => {
                subtrees.push((kind, base.value().to_vec()));
            }
            Some(_) => return None,
            None => *all_known = false,
        }
    }
    Some(subtrees)
}

fn known_type(tag: Tag) -> Option<u8> {
    let mut known = [EMAIL, DNS, URI, IP].into_iter();
    known.find(|number| context(*number) == tag)
}

/// Whether it can be read: an address and a mask; a domain, or a period and a domain; a mailbox.
fn is_constraint(kind: u8, value: &[u8]) -> bool {
    let (_, mask) = value.split_at(value.len() / 2);
    let Some(text) = ascii(value).filter(|_| kind != IP) else {
        return kind == IP && [8, 32].contains(&value.len()) && is_mask(mask);
    };
    let is_domain = domain::is_domain(text.strip_prefix('.').unwrap_or(text));
    match kind {
        EMAIL if text.contains('@') => domain::mailbox(text).is_some(),
        URI => is_domain && text.parse::<IpAddr>().is_err(),
        _ => is_domain,
    }
}

/// Ones, and then zeros.
fn is_mask(mask: &[u8]) -> bool {
    let mut rest = mask.iter().skip_while(|byte| **byte == 0xff);
    let first = rest.next().copied().unwrap_or(0);
    first.leading_ones() + first.trailing_zeros() == 8 && rest.all(|byte| *byte == 0)
}

fn is_within(kind: u8, name: &[u8], constraint: &[u8]) -> Option<bool> {
    if kind == IP {
        let (address, mask) = constraint.split_at(constraint.len() / 2);
        let mut bytes = name.iter().zip(address).zip(mask);
        let is_inside = bytes.all(|((byte, of), mask)| byte & mask == of & mask);
        return Some(name.len() == address.len() && is_inside);
    }
    let (name, constraint) = (ascii(name)?, ascii(constraint)?);
    match kind {
        EMAIL => domain::is_mailbox_within(name, constraint),
        URI => domain::is_within(domain::of_uri(name)?, constraint),
        _ => domain::is_within(name, constraint),
    }
}

fn ascii(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value)
        .ok()
        .filter(|text| text.is_ascii())
}
