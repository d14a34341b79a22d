//! Which certificate clients get. What Go does for the same names: `BuildNamedCertificates` of k8s.io/apiserver and
//! `getCertificate` of crypto/tls.

use rcgen::{CertificateParams, DnType, KeyPair as Key};

use super::*;

fn certificate(common_name: &str, names: &[&str]) -> CertifiedKey {
    let names: Vec<_> = names.iter().map(|name| name.to_string()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    let key = Key::generate().unwrap();
    let chain = vec![params.self_signed(&key).unwrap().der().clone()];
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into());
    pem::certified_key(chain, pem::signing_key(&key).unwrap()).unwrap()
}

fn domain(name: &str) -> SniName {
    SniName::Domain(name.to_owned())
}

fn any(_: &CertifiedKey) -> bool {
    true
}

#[test]
fn exact_names_come_before_wildcards_and_explicit_ones_before_those_in_certificates() {
    let explicit = [domain("*.example.com"), domain("b.example.com")];
    let selection = Selection::new(
        certificate("kube-apiserver", &["kubernetes", "c.example.com"]),
        vec![
            (
                certificate("First Ltd", &["a.example.com", "b.example.com"]),
                &[],
            ),
            (
                certificate("second", &["a.example.com", "elsewhere"]),
                &explicit,
            ),
            (certificate("*.org", &["A.Example.Net", "10.0.0.1"]), &[]),
            (certificate("fourth", &["a.example.net"]), &[]),
        ],
        &[],
    );
    for (name, expected) in [
        // In a certificate, and exact.
        ("a.example.com", 1),
        // In one, and explicitly another's.
        ("b.example.com", 2),
        ("B.EXAMPLE.COM", 2),
        // The default's own, but a wildcard has it explicitly.
        ("c.example.com", 2),
        // The earlier one.
        ("a.example.net", 3),
        // Common names that are domains.
        ("any.org", 3),
        ("fourth", 4),
        ("a.b.org", 0),
        // One label only.
        ("x.y.example.com", 0),
        // Not its name by the rules, but it is valid for it.
        ("elsewhere", 2),
        ("kubernetes", 0),
        ("nobody's", 0),
        ("first ltd", 0),
    ] {
        assert_eq!(selection.choose(Some(name), any), expected, "{name}");
    }
    assert_eq!(selection.choose(None, any), 0);
}

#[test]
fn a_star_is_for_names_of_one_label() {
    let names = [domain("*")];
    let default = certificate("a", &["kubernetes"]);
    let selection = Selection::new(default, vec![(certificate("b", &[]), &names)], &[]);
    assert_eq!(selection.choose(Some("kubernetes"), any), 1);
    assert_eq!(selection.choose(Some("kubernetes.default"), any), 0);
}

#[test]
fn an_address_is_for_clients_that_connect_to_it_without_a_name() {
    let address = IpAddr::from([10, 0, 0, 100]);
    let names = [SniName::Address(address), domain("virtual")];
    let default = certificate("a", &["kubernetes"]);
    let selection = Selection::new(default, vec![(certificate("b", &[]), &names)], &[]);
    assert!(selection.by_address.keys().eq([&address]));
    assert_eq!(selection.choose(None, any), 0);
    let there = selection.at(address);
    assert_eq!(there.choose(None, any), 1);
    assert_eq!(there.choose(Some("kubernetes"), any), 0);
    assert_eq!(there.choose(Some("virtual"), any), 1);
    assert_eq!(selection.at([10, 0, 0, 1].into()).choose(None, any), 0);
}

#[test]
fn a_client_that_cannot_verify_the_default_gets_one_that_it_can() {
    let names = [domain("other")];
    let default = certificate("a", &["kubernetes"]);
    let default_chain = default.cert.clone();
    let other = certificate("b", &["kubernetes"]);
    let selection = Selection::new(default, vec![(other, &names)], &[]);
    let cannot = |key: &CertifiedKey| key.cert != default_chain;
    assert_eq!(selection.choose(None, cannot), 1);
    assert_eq!(selection.choose(Some("kubernetes"), cannot), 1);
    // Nobody's name, and nothing that it can verify: the default.
    assert_eq!(selection.choose(Some("stranger"), any), 0);
    assert_eq!(selection.choose(None, |_| false), 0);
}
