//! Parses the TLS options of the serving port, with kube-apiserver's names.

use std::net::IpAddr;

use rustls::CipherSuite;
use rustls::pki_types::ServerName;

use super::message::quoted;
use super::tree::Node;
use super::values::text;
use super::{MinTlsVersion, SniName};

/// What rustls has. Go has the last two under older names as well.
const SUITES: &[(&str, CipherSuite)] = &[
    (
        "TLS_AES_128_GCM_SHA256",
        CipherSuite::TLS13_AES_128_GCM_SHA256,
    ),
    (
        "TLS_AES_256_GCM_SHA384",
        CipherSuite::TLS13_AES_256_GCM_SHA384,
    ),
    (
        "TLS_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
];

/// A name of `--tls-min-version`.
pub(super) fn minimum_version(node: &Node) -> Result<MinTlsVersion, String> {
    const EXPECTED: &str = "one of VersionTLS12, VersionTLS13";
    match text(node, EXPECTED)? {
        "VersionTLS12" => Ok(MinTlsVersion::Tls12),
        "VersionTLS13" => Ok(MinTlsVersion::Tls13),
        old @ ("VersionTLS10" | "VersionTLS11") => Err(format!(
            "{old} is older than the proxy can speak; VersionTLS12 is the oldest"
        )),
        other => Err(format!("{} is not {EXPECTED}", quoted(other))),
    }
}

/// A name of `--tls-cipher-suites`.
pub(super) fn cipher_suite(node: &Node) -> Result<CipherSuite, String> {
    const EXPECTED: &str =
        "the name of a cipher suite such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
    let found = text(node, EXPECTED)?;
    let is = |name: &str| {
        name == found
            || name.ends_with("_POLY1305_SHA256") && name.strip_suffix("_SHA256") == Some(found)
    };
    if let Some((_, suite)) = SUITES.iter().find(|(name, _)| is(name)) {
        return Ok(*suite);
    }
    let weak = ["_CBC_", "_RC4_"].iter().any(|part| found.contains(part));
    if weak || found.starts_with("TLS_RSA_WITH_") {
        return Err(format!(
            "the proxy does not have {}, as it has none with CBC, RC4 or RSA key exchange; remove it: clients need one of \
             ECDHE with AES-GCM or ChaCha20-Poly1305",
            quoted(found)
        ));
    }
    let names: Vec<_> = SUITES.iter().map(|(name, _)| *name).collect();
    Err(format!(
        "{} is not one of {}",
        quoted(found),
        names.join(", ")
    ))
}

/// A domain pattern of `--tls-sni-cert-key`, in lower case, or an IP address.
pub(super) fn sni_name(node: &Node) -> Result<SniName, String> {
    const EXPECTED: &str = "a DNS name, *.DOMAIN or an IP address";
    let found = text(node, EXPECTED)?;
    if let Ok(address) = found.parse::<IpAddr>() {
        return Ok(SniName::Address(address.to_canonical()));
    }
    let below = found.strip_prefix("*.").unwrap_or(found);
    let is_name = matches!(ServerName::try_from(below), Ok(ServerName::DnsName(_)));
    match found == "*" || is_name && !below.ends_with('.') {
        true => Ok(SniName::Domain(found.to_ascii_lowercase())),
        false => Err(format!("{} is not {EXPECTED}", quoted(found))),
    }
}
