//! Searches for a chain from a leaf to a root (`buildChains`), and checks each certificate of it (`isValid`).

use super::PresentedChain;
use super::certificate::Certificate;

// How much work may be done for one chain, so that hostile chains cannot slow other requests down.

/// Signature verifications, in units of one with P-256. Go allows the same number, regardless of cost.
const SIGNATURES: u32 = 100;
/// Comparisons of names with name constraints, for the whole chain. Go allows 250,000 for each certificate.
const COMPARISONS: usize = 20_000;

pub(super) fn is_trusted(roots: &[Certificate], presented: &PresentedChain, now: u64) -> bool {
    let leaf = &presented.leaf;
    let extensions = &leaf.extensions;
    if extensions.unknown_critical || extensions.not_for_clients || !leaf.is_valid_at(now) {
        return false;
    }
    if roots.iter().any(|root| root.raw == leaf.raw) {
        return true;
    }
    let mut search = Search {
        roots,
        intermediates: &presented.intermediates,
        now,
        signatures: SIGNATURES,
        comparisons: COMPARISONS,
    };
    search.reaches_root(&mut vec![leaf]).unwrap_or(false)
}

struct Search<'a> {
    roots: &'a [Certificate],
    intermediates: &'a [Certificate],
    now: u64,
    /// That are left.
    signatures: u32,
    comparisons: usize,
}

impl<'a> Search<'a> {
    /// Whether the chain can be extended to a root; `None`: the budget is spent.
    fn reaches_root(&mut self, chain: &mut Vec<&'a Certificate>) -> Option<bool> {
        let last = *chain.last()?;
        for root in candidates(self.roots, last) {
            if self.signed_last(root, chain)? && self.is_valid(root, chain) {
                return Some(true);
            }
        }
        for next in candidates(self.intermediates, last) {
            // An intermediate needs BasicConstraints: X.509 v1 certificates are no CAs here.
            let is_authority = next.extensions.basic.is_some_and(|basic| basic.is_ca);
            if self.signed_last(next, chain)? && is_authority && self.is_valid(next, chain) {
                chain.push(next);
                if self.reaches_root(chain)? {
                    return Some(true);
                }
                chain.pop();
            }
        }
        Some(false)
    }

    /// Whether `candidate` is not in the chain yet, and signed its last certificate (`CheckSignatureFrom`).
    fn signed_last(&mut self, candidate: &Certificate, chain: &[&Certificate]) -> Option<bool> {
        if is_in_chain(chain, candidate) {
            return Some(false);
        }
        let extensions = &candidate.extensions;
        let is_authority = extensions.basic.map(|basic| basic.is_ca);
        let may_sign = !extensions.must_not_sign && is_authority.unwrap_or(candidate.version != 3);
        let Some(last) = chain.last().filter(|_| may_sign) else {
            self.spend(1)?;
            return Some(false);
        };
        let (key, signing) = (&candidate.key, &last.signing);
        self.spend(key.cost(signing))?;
        Some(key.verifies(signing, &last.signed, &last.signature))
    }

    /// `None`: not enough is left.
    fn spend(&mut self, signatures: u32) -> Option<()> {
        self.signatures = self.signatures.checked_sub(signatures)?;
        Some(())
    }

    /// Whether a CA may extend the chain (`isValid`), and may be used for clients.
    fn is_valid(&mut self, authority: &Certificate, chain: &[&Certificate]) -> bool {
        let extensions = &authority.extensions;
        let path_length = extensions.basic.and_then(|basic| basic.path_length);
        !extensions.unknown_critical
            && authority.is_valid_at(self.now)
            && path_length.is_none_or(|most| chain.len() - 1 <= most)
            && !extensions.not_for_clients
            && self.allows_names(authority, chain)
    }

    /// Whether the CA's name constraints allow the names of the leaf and its own.
    fn allows_names(&mut self, authority: &Certificate, chain: &[&Certificate]) -> bool {
        let Some(constraints) = &authority.extensions.constraints else {
            return true;
        };
        let named = chain.iter().take(1).copied().chain([authority]);
        let mut names = named.filter_map(|it| it.extensions.names.as_ref());
        names.all(|names| constraints.allow(names, &mut self.comparisons))
    }
}

/// Certificates with the issuer's name: first those with the right key ID, last those with another (`findPotentialParents`).
fn candidates<'a>(certificates: &'a [Certificate], of: &Certificate) -> Vec<&'a Certificate> {
    let named = certificates.iter().filter(|it| it.subject == of.issuer);
    let mut candidates: Vec<_> = named.collect();
    candidates.sort_by_key(|it| {
        let (id, wanted) = (&it.extensions.subject_key, &of.extensions.authority_key);
        (id != wanted, !id.is_empty() && !wanted.is_empty())
    });
    candidates
}

/// Whether the chain has a certificate with the same subject, key and alternative names (`alreadyInChain`): cross-signed
/// CAs would lead in circles.
fn is_in_chain(chain: &[&Certificate], candidate: &Certificate) -> bool {
    chain.iter().any(|certificate| {
        certificate.subject == candidate.subject
            && certificate.key_info == candidate.key_info
            && certificate.extensions.names == candidate.extensions.names
    })
}
