//! Chooses the serving certificate of a handshake, as kube-apiserver and Go's crypto/tls do.
//!
//! In this order: the certificate of the name that the client asks for, that of the name with `*` as its first label,
//! the first one (`serving.certFile`, then the others) that is valid for the name and that the client can verify, and
//! `serving.certFile`. Explicit names win over those in certificates, then earlier certificates over later ones.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::SupportedCipherSuite;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use webpki::EndEntityCert;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use crate::config::SniName;
use crate::x509::pem;

/// The certificates of a port.
#[derive(Debug, Clone)]
pub(super) struct Selection {
    /// `serving.certFile`, then `serving.sniCertificates`.
    certificates: Vec<Arc<CertifiedKey>>,
    /// Indices of certificates.
    by_domain: HashMap<String, usize>,
    pub(super) by_address: HashMap<IpAddr, usize>,
    /// For clients that send no name.
    unnamed: Option<usize>,
    /// The cipher suites of the port.
    suites: Vec<SupportedCipherSuite>,
}

impl Selection {
    /// Each of `named` with the names that it was given explicitly.
    pub(super) fn new(
        default: CertifiedKey,
        named: Vec<(CertifiedKey, &[SniName])>,
        suites: &[SupportedCipherSuite],
    ) -> Self {
        let (mut by_domain, mut by_address) = (HashMap::new(), HashMap::new());
        // The first certificate of a name counts, so explicit names come first.
        for (index, (_, names)) in (1..).zip(&named) {
            for name in *names {
                match name {
                    SniName::Domain(domain) => by_domain.entry(domain.clone()).or_insert(index),
                    SniName::Address(address) => by_address.entry(*address).or_insert(index),
                };
            }
        }
        for (index, (key, _)) in (1..).zip(&named).filter(|(_, (_, names))| names.is_empty()) {
            for domain in domains(key) {
                by_domain.entry(domain).or_insert(index);
            }
        }
        let named = named.into_iter().map(|(key, _)| key);
        Self {
            certificates: [default].into_iter().chain(named).map(Arc::new).collect(),
            by_domain,
            by_address,
            unnamed: None,
            suites: suites.to_vec(),
        }
    }

    /// What is chosen from for connections to this address.
    pub(super) fn at(&self, address: IpAddr) -> Self {
        Self {
            unnamed: self.by_address.get(&address).copied(),
            ..self.clone()
        }
    }

    /// The index of the certificate for a client that asks for `name`. `is_verifiable`: whether it can verify this one.
    pub(super) fn choose(
        &self,
        name: Option<&str>,
        is_verifiable: impl Fn(&CertifiedKey) -> bool,
    ) -> usize {
        let chosen = match name {
            Some(name) => self.of_domain(name),
            None => self.unnamed,
        };
        let is_suitable = |key: &Arc<CertifiedKey>| is_valid_for(key, name) && is_verifiable(key);
        chosen
            .or_else(|| self.certificates.iter().position(is_suitable))
            .unwrap_or_default()
    }

    fn of_domain(&self, name: &str) -> Option<usize> {
        let name = name.to_ascii_lowercase();
        let below = name.find('.').map_or("", |dot| &name[dot..]);
        let wildcard = || self.by_domain.get(&format!("*{below}"));
        self.by_domain.get(&name).or_else(wildcard).copied()
    }
}

impl ResolvesServerCert for Selection {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let chosen = match self.certificates.len() {
            // Nothing to choose from.
            1 => 0,
            _ => {
                let is_verifiable = |key: &CertifiedKey| is_verifiable(key, &self.suites, &hello);
                self.choose(hello.server_name(), is_verifiable)
            }
        };
        self.certificates.get(chosen).cloned()
    }
}

/// Names in a certificate. Addresses do not count: clients do not ask for them by name.
fn domains(key: &CertifiedKey) -> Vec<String> {
    let Some(leaf) = key.cert.first().and_then(pem::parsed) else {
        return Vec::new();
    };
    let common_name = leaf.subject().iter_common_name().last();
    let common_name = common_name.and_then(|name| name.as_str().ok());
    let common_name = common_name.filter(|name| is_domain(name));
    let names = common_name.into_iter().chain(alternative_names(&leaf));
    names.map(str::to_ascii_lowercase).collect()
}

/// DNS names that a certificate is for.
pub fn alternative_names<'c>(leaf: &'c X509Certificate<'_>) -> impl Iterator<Item = &'c str> {
    let names = leaf.subject_alternative_name().ok().flatten();
    let names = names
        .into_iter()
        .flat_map(|names| &names.value.general_names);
    names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(*name),
        _ => None,
    })
}

/// Whether a common name is a domain, and not a person or an address.
fn is_domain(name: &str) -> bool {
    let below = name.strip_prefix("*.").unwrap_or(name);
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_name = matches!(ServerName::try_from(below), Ok(ServerName::DnsName(_)));
    name == "*" || below.bytes().all(plain) && is_name
}

fn is_valid_for(key: &CertifiedKey, name: Option<&str>) -> bool {
    let Some(name) = name else {
        return true;
    };
    let (Some(leaf), Ok(name)) = (key.cert.first(), ServerName::try_from(name)) else {
        return false;
    };
    let leaf = EndEntityCert::try_from(leaf);
    leaf.is_ok_and(|leaf| leaf.verify_is_valid_for_subject_name(&name).is_ok())
}

/// Whether the client can verify the signatures of this key, and offers one of `suites` for it.
fn is_verifiable(
    key: &CertifiedKey,
    suites: &[SupportedCipherSuite],
    hello: &ClientHello<'_>,
) -> bool {
    let algorithm = key.key.algorithm();
    let suites = suites.iter();
    let mut usable = suites.filter(|suite| suite.usable_for_signature_algorithm(algorithm));
    let offered = usable.any(|suite| hello.cipher_suites().contains(&suite.suite()));
    offered && key.key.choose_scheme(hello.signature_schemes()).is_some()
}

#[cfg(test)]
mod tests;
