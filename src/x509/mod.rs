//! Verifies client certificate chains as Go's crypto/x509 does for kube-apiserver. `docs/compatibility.md` has the
//! differences.
//!
//! Follows Go 1.19 (`parseCertificate`, `Verify`, `buildChains`, `isValid`). Rust's TLS libraries decide differently: they
//! reject leaves of X.509 v1 and leaves that are CAs, and accept expired CAs. Who is named by the leaf is read here too, so
//! that it is the name that was verified. Pure. Clients can present any chain, so all work is bounded.
//!
//! `certificate` parses, with `extensions`, `names`, `constraints` and `signature`; `build` searches for a chain to a root.

mod build;
mod certificate;
mod constraints;
pub mod curves;
mod der;
mod domain;
mod extensions;
mod names;
pub mod pem;
mod signature;

use std::collections::HashSet;
use std::ops::RangeInclusive;

pub use certificate::Certificate;
pub use names::Attribute;

/// Trusted certificates.
#[derive(Debug, Clone, Default)]
pub struct Roots(Vec<Certificate>);

/// The chain that a client presented: a leaf, and possible intermediates.
#[derive(Debug, Clone)]
pub struct PresentedChain {
    leaf: Certificate,
    intermediates: Vec<Certificate>,
}

impl Roots {
    /// Each certificate must be one that Go can parse; an error is the index of one that is not.
    pub fn new<D: AsRef<[u8]>>(certificates: &[D]) -> Result<Self, usize> {
        parse(certificates).map(Self)
    }

    /// Whether both have a CA in common: subject and public key identify it, because its certificate may be renewed.
    pub fn shares_authority(&self, others: &Self) -> bool {
        let ours: HashSet<_> = self.0.iter().map(Certificate::authority).collect();
        let mut theirs = others.certificates();
        theirs.any(|it| ours.contains(&it.authority()))
    }

    /// Whether a chain leads from the leaf to a root, is valid at `now` (Unix seconds) and may be used by clients.
    pub fn trust(&self, presented: &PresentedChain, now: u64) -> bool {
        build::is_trusted(&self.0, presented, now)
    }

    pub fn certificates(&self) -> impl Iterator<Item = &Certificate> {
        self.0.iter()
    }
}

impl PresentedChain {
    /// The leaf comes first. `None`: the chain is empty, or a certificate cannot be parsed; Go fails the handshake then.
    pub fn parse<D: AsRef<[u8]>>(chain: &[D]) -> Option<Self> {
        let mut parsed = parse(chain).ok()?.into_iter();
        Some(Self {
            leaf: parsed.next()?,
            intermediates: parsed.collect(),
        })
    }

    /// The leaf, in DER.
    pub fn leaf(&self) -> &[u8] {
        &self.leaf.raw
    }

    /// The attributes of the leaf's subject, in its order.
    pub fn subject(&self) -> Vec<Attribute<'_>> {
        names::attributes(&self.leaf.subject).unwrap_or_default()
    }

    pub fn certificates(&self) -> impl Iterator<Item = &Certificate> {
        [&self.leaf].into_iter().chain(&self.intermediates)
    }
}

/// Without duplicates, as in Go's pools. An error is the index of a certificate that cannot be parsed.
fn parse<D: AsRef<[u8]>>(certificates: &[D]) -> Result<Vec<Certificate>, usize> {
    let mut parsed: Vec<Certificate> = Vec::with_capacity(certificates.len());
    for (index, der) in certificates.iter().enumerate() {
        let der = der.as_ref();
        if index == 0 || !parsed.iter().skip(1).any(|known| known.raw == der) {
            parsed.push(Certificate::parse(der).ok_or(index)?);
        }
    }
    Ok(parsed)
}

/// Unix seconds around `now` in which none of these becomes valid or expires.
pub fn unchanged<'c>(
    certificates: impl Iterator<Item = &'c Certificate>,
    now: u64,
) -> RangeInclusive<u64> {
    let changes = certificates.flat_map(|it| [it.not_before, it.not_after + 1]);
    let changes = changes.map(|change| u64::try_from(change).unwrap_or(0));
    changes.fold(0..=u64::MAX, |seconds, change| match change <= now {
        true => change.max(*seconds.start())..=*seconds.end(),
        false => *seconds.start()..=(change - 1).min(*seconds.end()),
    })
}

#[cfg(test)]
mod tests;
