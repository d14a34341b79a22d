//! Reads a certificate's extensions as Go 1.19 does (`processExtensions`).
//!
//! An extension that counts here and cannot be read makes the whole certificate invalid, critical or not. Those that Go
//! only knows are not read. An unknown one matters only if it is critical. Go 1.24 and later know the critical policy
//! extensions, too.

use std::collections::HashSet;

use bytes::Bytes;
use der::Tag;
use der::asn1::BitStringRef;

use super::constraints::{self, Constraints};
use super::der::{DerReader, context};

/// The extensions that verification needs.
#[derive(Debug, Clone, Default)]
pub(super) struct Extensions {
    /// SubjectAltName, encoded.
    pub(super) names: Option<Bytes>,
    pub(super) basic: Option<BasicConstraints>,
    /// There is a key usage, without keyCertSign.
    pub(super) must_not_sign: bool,
    /// There is an extended key usage, with neither clientAuth nor "any".
    pub(super) not_for_clients: bool,
    pub(super) constraints: Option<Constraints>,
    /// Empty: none.
    pub(super) authority_key: Bytes,
    /// Empty: none.
    pub(super) subject_key: Bytes,
    /// A critical extension is unknown to Go.
    pub(super) unknown_critical: bool,
}

/// BasicConstraints.
#[derive(Debug, Clone, Copy)]
pub(super) struct BasicConstraints {
    pub(super) is_ca: bool,
    /// Most intermediates between this certificate and a leaf.
    pub(super) path_length: Option<usize>,
}

/// `raw`: the certificate that contains `list`.
pub(super) fn read(raw: &Bytes, mut list: DerReader<'_>) -> Option<Extensions> {
    let mut extensions = Extensions::default();
    let mut seen = HashSet::new();
    while !list.is_empty() {
        let mut extension = list.sequence()?;
        let id = extension.oid()?;
        let critical: Option<bool> = extension.optional()?;
        let value = extension.expect(Tag::OctetString)?;
        seen.insert(id).then_some(())?;
        let known = extensions.take(raw, id, value)?;
        extensions.unknown_critical |= critical == Some(true) && !known;
    }
    Some(extensions)
}

/// id-pe-authorityInfoAccess
const AUTHORITY_INFO_ACCESS: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 1, 1];
/// id-kp-clientAuth
const CLIENT_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];
/// anyExtendedKeyUsage
const ANY_USAGE: &[u8] = &[0x55, 0x1d, 37, 0];

impl Extensions {
    /// Whether the extension is known; `None`: it cannot be read.
    fn take(&mut self, raw: &Bytes, id: &[u8], value: &[u8]) -> Option<bool> {
        let number = match id {
            [0x55, 0x1d, number] => *number,
            AUTHORITY_INFO_ACCESS => return Some(true),
            _ => return Some(false),
        };
        let mut reader = DerReader::new(value)?;
        match number {
            14 => self.subject_key = raw.slice_ref(reader.expect(Tag::OctetString)?),
            15 => self.must_not_sign = !may_sign(reader.bits()?),
            17 => {
                self.names = Some(raw.slice_ref(value));
                return Some(!constraints::alternatives(value)?.is_empty());
            }
            19 => self.basic = Some(basic(&mut reader)?),
            30 => {
                let (constraints, known) = Constraints::read(reader)?;
                self.constraints = Some(constraints);
                return Some(known);
            }
            // Distribution points of revocation lists, and policies.
            31 | 32 => {}
            35 => {
                let key = reader.sequence()?.tagged(context(0))?;
                self.authority_key = raw.slice_ref(key.unwrap_or_default());
            }
            37 => self.not_for_clients = !allows_client_auth(&mut reader)?,
            _ => return Some(false),
        }
        Some(true)
    }
}

/// A key usage without any bit allows everything.
fn may_sign(usages: BitStringRef<'_>) -> bool {
    const CERT_SIGN: u8 = 0x80 >> 5;
    let bits = usages.raw_bytes();
    let first = bits.first().copied().unwrap_or(0);
    let ninth = bits.get(1).copied().unwrap_or(0) & 0x80;
    (first == 0 && ninth == 0) || first & CERT_SIGN != 0
}

fn basic(reader: &mut DerReader<'_>) -> Option<BasicConstraints> {
    let mut content = reader.sequence()?;
    let is_ca: Option<bool> = content.optional()?;
    let path_length: Option<i64> = content.optional()?;
    Some(BasicConstraints {
        is_ca: is_ca.unwrap_or(false),
        // For Go a negative value is no limit.
        path_length: path_length.and_then(|most| usize::try_from(most).ok()),
    })
}

fn allows_client_auth(reader: &mut DerReader<'_>) -> Option<bool> {
    let mut usages = reader.sequence()?;
    let mut allows_client_auth = usages.is_empty();
    while !usages.is_empty() {
        allows_client_auth |= [CLIENT_AUTH, ANY_USAGE].contains(&usages.oid()?);
    }
    Some(allows_client_auth)
}
