//! TLS options with kube-apiserver's names.

use std::net::{IpAddr, Ipv4Addr};

use rustls::CipherSuite;

use super::*;

fn serving(line: &str) -> Result<ServingConfig, Vec<String>> {
    let text = minimal_with("serving:\n", &format!("serving:\n  {line}\n"));
    let config = parse(&text).map(|config| config.serving);
    config.map_err(|problems| problems.iter().map(Problem::to_string).collect())
}

#[test]
fn names_of_kube_apiserver_are_understood() {
    let config = serving("minTLSVersion: VersionTLS13").unwrap();
    assert_eq!(config.min_tls_version, MinTlsVersion::VersionTLS13);
    let config = serving(
        "cipherSuites: [TLS_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305, \
         TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]",
    );
    assert_eq!(
        config.unwrap().cipher_suites,
        [
            CipherSuite::TLS13_AES_128_GCM_SHA256,
            CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
            CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        ]
    );
    let config = serving(
        "sniCertificates: [{certFile: a.crt, keyFile: a.key}, \
         {certFile: b.crt, keyFile: b.key, names: [API.example.com, '*.example.com', '*', 10.0.0.1]}]",
    );
    let certificates = config.unwrap().sni_certificates;
    assert_eq!(certificates[0].pair.cert_file, Path::new("a.crt"));
    assert!(certificates[0].names.is_empty());
    let domain = |name: &str| SniName::Domain(name.to_owned());
    assert_eq!(
        certificates[1].names,
        [
            domain("api.example.com"),
            domain("*.example.com"),
            domain("*"),
            SniName::Address(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))),
        ]
    );
}

#[test]
fn every_suite_that_rustls_has_can_be_named() {
    for suite in rustls::crypto::ring::ALL_CIPHER_SUITES {
        let name = suite.suite().as_str().unwrap().replace("TLS13_", "TLS_");
        let config = serving(&format!("cipherSuites: [{name}]")).unwrap();
        assert_eq!(config.cipher_suites, [suite.suite()], "{name}");
    }
}

#[test]
fn what_the_proxy_does_not_have_is_named_with_a_remedy() {
    for (line, expected) in [
        (
            "minTLSVersion: VersionTLS10",
            "serving.minTLSVersion (line 4): \"VersionTLS10\" is not one of VersionTLS12, VersionTLS13",
        ),
        (
            "minTLSVersion: VersionTLS11",
            "serving.minTLSVersion (line 4): \"VersionTLS11\" is not one of VersionTLS12, VersionTLS13",
        ),
        (
            "minTLSVersion: 1.2",
            "serving.minTLSVersion (line 4): expected one of VersionTLS12, VersionTLS13, found a number",
        ),
        (
            "minTLSVersion: TLSv1.2",
            "serving.minTLSVersion (line 4): \"TLSv1.2\" is not one of VersionTLS12, VersionTLS13",
        ),
        (
            "cipherSuites: [TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305, TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256]",
            "serving.cipherSuites[1] (line 4): is there twice; remove one",
        ),
        (
            "sniCertificates: a.crt,a.key:example.com",
            "serving.sniCertificates (line 4): expected a list, found text",
        ),
        (
            "sniCertificates: ['a.crt,a.key']",
            "serving.sniCertificates[0] (line 4): expected a mapping, found text",
        ),
        (
            "sniCertificates: [{certFile: a.crt}]",
            "serving.sniCertificates[0].keyFile (line 4): required, but missing",
        ),
        (
            "sniCertificates: [{certFile: a.crt, keyFile: a.key, name: x}]",
            "serving.sniCertificates[0].name (line 4): unknown key; expected one of certFile, keyFile, names",
        ),
        (
            "sniCertificates: [{certFile: a.crt, keyFile: a.key, names: ['https://x']}]",
            "serving.sniCertificates[0].names[0] (line 4): \"https://x\" is not a DNS name, *.DOMAIN or an IP address",
        ),
        (
            "sniCertificates: [{certFile: a.crt, keyFile: a.key, names: ['*.*.example.com']}]",
            "serving.sniCertificates[0].names[0] (line 4): \"*.*.example.com\" is not a DNS name, *.DOMAIN or an IP address",
        ),
        (
            "sniCertificates: [{certFile: a.crt, keyFile: a.key, names: [example.com.]}]",
            "serving.sniCertificates[0].names[0] (line 4): \"example.com.\" is not a DNS name, *.DOMAIN or an IP address",
        ),
        (
            "sniCertificates: [{certFile: a.crt, keyFile: a.key, names: [a.b, A.b]}]",
            "serving.sniCertificates[0].names[1] (line 4): is there twice; remove one",
        ),
    ] {
        assert_eq!(serving(line).unwrap_err(), [expected], "{line}");
    }
}

#[test]
fn an_unknown_suite_is_answered_with_all_there_are() {
    for suite in [
        "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_RSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    ] {
        let problems = serving(&format!("cipherSuites: [{suite}]")).unwrap_err();
        assert_eq!(problems.len(), 1);
        let expected = format!("\"{suite}\" is not one of TLS_AES_128_GCM_SHA256, ");
        assert!(problems[0].contains(&expected), "{problems:?}");
    }
}
