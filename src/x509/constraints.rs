//! Name constraints of CAs (RFC 5280, 4.2.1.10) as Go applies them: to the alternative names of the leaf and of the CA
//! itself. Common names are ignored, directory names not supported.

use std::net::IpAddr;

use der::asn1::AnyRef;
use der::{Tag, Tagged as _};

use super::der::{DerReader, constructed, context};
use super::domain;
use super::names::{self, AltName};

/// Names that a CA may sign.
#[derive(Debug, Clone, Default)]
pub(super) struct Constraints {
    permitted: Subtrees,
    excluded: Subtrees,
}

#[derive(Debug, Clone, Default)]
struct Subtrees {
    dns: Vec<String>,
    emails: Vec<String>,
    uris: Vec<String>,
    /// Address and mask.
    ips: Vec<(Vec<u8>, Vec<u8>)>,
    /// There is one of another type.
    unknown: bool,
}

impl Constraints {
    /// Returns also whether all constraints are of known types; `None`: they cannot be read.
    pub(super) fn read(mut value: DerReader<'_>) -> Option<(Self, bool)> {
        let mut content = value.sequence().filter(|_| value.is_empty())?;
        let permitted = content.tagged(constructed(0))?.unwrap_or_default();
        let excluded = content.tagged(constructed(1))?.unwrap_or_default();
        if !content.is_empty() || (permitted.is_empty() && excluded.is_empty()) {
            return None;
        }
        let constraints = Self {
            permitted: Subtrees::read(permitted)?,
            excluded: Subtrees::read(excluded)?,
        };
        let known = !constraints.permitted.unknown && !constraints.excluded.unknown;
        Some((constraints, known))
    }

    /// Whether all names of a SubjectAltName are allowed. `comparisons`: how many are left; decreased by those made.
    pub(super) fn allow(&self, alternatives: &[u8], comparisons: &mut usize) -> bool {
        names::alternatives(alternatives).is_some_and(|names| {
            let mut names = names.into_iter();
            names.all(|name| self.allows(name, comparisons).unwrap_or(false))
        })
    }

    /// `None` counts as no: the name cannot be compared, or no comparisons are left.
    fn allows(&self, name: AltName<'_>, comparisons: &mut usize) -> Option<bool> {
        let (permitted, excluded) = (&self.permitted, &self.excluded);
        match name {
            AltName::Email(address) => {
                let within = |constraint: &String| domain::is_mailbox_within(address, constraint);
                decide(&permitted.emails, &excluded.emails, comparisons, within)
            }
            AltName::Dns(domain) => {
                domain::is_domain(domain).then_some(())?;
                let within = |constraint: &String| domain::is_within(domain, constraint);
                decide(&permitted.dns, &excluded.dns, comparisons, within)
            }
            AltName::Uri(uri) => {
                let within =
                    |constraint: &String| domain::is_within(domain::of_uri(uri)?, constraint);
                decide(&permitted.uris, &excluded.uris, comparisons, within)
            }
            AltName::Ip(ip) => {
                let within = |subnet: &(Vec<u8>, Vec<u8>)| Some(is_inside(ip, subnet));
                decide(&permitted.ips, &excluded.ips, comparisons, within)
            }
            AltName::Other => Some(true),
        }
    }
}

/// Whether the name is in no excluded subtree and, if there are permitted ones, in one of those.
fn decide<C>(
    permitted: &[C],
    excluded: &[C],
    comparisons: &mut usize,
    within: impl Fn(&C) -> Option<bool>,
) -> Option<bool> {
    *comparisons = comparisons.checked_sub(excluded.len() + permitted.len())?;
    for constraint in excluded {
        if within(constraint)? {
            return Some(false);
        }
    }
    for constraint in permitted {
        if within(constraint)? {
            return Some(true);
        }
    }
    Some(permitted.is_empty())
}

fn is_inside(ip: IpAddr, (address, mask): &(Vec<u8>, Vec<u8>)) -> bool {
    let inside = |ip: &[u8]| {
        let masked = ip.iter().zip(mask).map(|(byte, mask)| byte & mask);
        ip.len() == address.len()
            && masked.eq(address.iter().zip(mask).map(|(byte, mask)| byte & mask))
    };
    match ip {
        IpAddr::V4(ip) => inside(&ip.octets()),
        IpAddr::V6(ip) => inside(&ip.octets()),
    }
}

impl Subtrees {
    fn read(subtrees: &[u8]) -> Option<Self> {
        let mut subtrees = DerReader::new(subtrees)?;
        let mut read = Self::default();
        while !subtrees.is_empty() {
            let base: AnyRef<'_> = subtrees.sequence()?.read()?;
            read.take(base.tag(), base.value())?;
        }
        Some(read)
    }

    fn take(&mut self, tag: Tag, value: &[u8]) -> Option<()> {
        const EMAIL: Tag = context(1);
        const DNS: Tag = context(2);
        const URI: Tag = context(6);
        const IP: Tag = context(7);
        match tag {
            DNS => self.dns.push(domain(names::ascii(value)?)?),
            EMAIL => {
                let email = names::ascii(value)?;
                self.emails.push(match email.contains('@') {
                    true => domain::mailbox(email).map(|_| email.to_owned())?,
                    false => domain(email)?,
                });
            }
            URI => {
                let uri = names::ascii(value)?;
                if uri.parse::<IpAddr>().is_ok() {
                    return None;
                }
                self.uris.push(domain(uri)?);
            }
            IP => {
                let half = value.len() / 2;
                let (address, mask) = value.split_at(half);
                let good = [8, 32].contains(&value.len()) && is_mask(mask);
                good.then(|| self.ips.push((address.to_vec(), mask.to_vec())))?;
            }
            _ => self.unknown = true,
        }
        Some(())
    }
}

/// A domain, or a period and a domain.
fn domain(text: &str) -> Option<String> {
    let name = text.strip_prefix('.').unwrap_or(text);
    domain::is_domain(name).then(|| text.to_owned())
}

/// Ones, and then zeros.
fn is_mask(mask: &[u8]) -> bool {
    let mut rest = mask.iter().skip_while(|byte| **byte == 0xff);
    let first = rest.next().copied().unwrap_or(0);
    first.leading_ones() + first.trailing_zeros() == 8 && rest.all(|byte| *byte == 0)
}
