//! Parses the TLS options of the serving port, with kube-apiserver's names.

use std::net::IpAddr;

use rustls::CipherSuite;
use rustls::pki_types::ServerName;

use super::tree::Node;
use super::values::{read, refused, text};
use super::{MinTlsVersion, SniName};

/// What rustls has. Go has the last two under older names as well.
const SUITES: [CipherSuite; 9] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS13_AES_256_GCM_SHA384,
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];

/// Go's name.
fn name_of(suite: &CipherSuite) -> String {
    let name = suite.as_str().unwrap_or_default();
    name.replace("TLS13_", "TLS_")
}

/// A name of `--tls-min-version`.
pub(super) fn minimum_version(node: &Node) -> Result<MinTlsVersion, String> {
    const EXPECTED: &str = "one of VersionTLS12, VersionTLS13";
    match text(node, EXPECTED)? {
        "VersionTLS12" => Ok(MinTlsVersion::Tls12),
        "VersionTLS13" => Ok(MinTlsVersion::Tls13),
        _ => refused(node, &format!("is not {EXPECTED}")),
    }
}

/// A name of `--tls-cipher-suites`.
pub(super) fn cipher_suite(node: &Node) -> Result<CipherSuite, String> {
    const EXPECTED: &str =
        "the name of a cipher suite such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
    let found = text(node, EXPECTED)?;
    let is = |suite: &&CipherSuite| {
        let name = name_of(suite);
        let older = name.strip_suffix("_SHA256");
        name == found || older.is_some_and(|it| it == found && it.ends_with("_POLY1305"))
    };
    if let Some(suite) = SUITES.iter().find(is) {
        return Ok(*suite);
    }
    let names = SUITES.each_ref().map(name_of).join(", ");
    refused(node, &format!("is not one of {names}"))
}

/// A domain pattern of `--tls-sni-cert-key`, in lower case, or an IP address.
pub(super) fn sni_name(node: &Node) -> Result<SniName, String> {
    read(node, "a DNS name, *.DOMAIN or an IP address", |found| {
        if let Ok(address) = found.parse::<IpAddr>() {
            return Some(SniName::Address(address.to_canonical()));
        }
        let below = found.strip_prefix("*.").unwrap_or(found);
        let is_name = matches!(ServerName::try_from(below), Ok(ServerName::DnsName(_)));
        let is_pattern = found == "*" || is_name && !below.ends_with('.');
        is_pattern.then(|| SniName::Domain(found.to_ascii_lowercase()))
    })
}
