//! The files that a configuration names.

use std::fs;
use std::path::PathBuf;

use rcgen::{CertificateParams, CertifiedIssuer, DnType, KeyPair as Key};
use tempfile::TempDir;

use super::*;

/// A directory with a minimal configuration and every file that it names.
struct Fixture {
    dir: TempDir,
    ca: CertifiedIssuer<'static, Key>,
}

impl Fixture {
    fn new() -> Self {
        let (ca, front_proxy) = (authority("ca"), authority("front-proxy-ca"));
        let dir = tempfile::tempdir().unwrap();
        let fixture = Self { dir, ca };
        fixture.write("config.yaml", MINIMAL);
        fixture.write("ca.crt", &fixture.ca.pem());
        fixture.write("etcd-ca.crt", &fixture.ca.pem());
        fixture.write("front-proxy-ca.crt", &front_proxy.pem());
        for name in ["serving", "etcd", "front-proxy-client"] {
            fixture.issue(name, |_| {});
        }
        fixture
    }

    fn issue(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) {
        let key = Key::generate().unwrap();
        let mut params = CertificateParams::new(vec!["kubernetes.default.svc".to_owned()]).unwrap();
        change(&mut params);
        self.write(
            &format!("{name}.crt"),
            &params.signed_by(&key, &self.ca).unwrap().pem(),
        );
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn load(&self) -> Result<Config, Vec<Problem>> {
        load(&self.path("config.yaml")).map(|loaded| loaded.config)
    }

    /// The problems, with the directory taken out.
    fn problems(&self) -> Vec<String> {
        self.named(self.load())
    }

    /// Those that `check` finds.
    fn checked(&self) -> Vec<String> {
        self.named(check(&self.path("config.yaml")))
    }

    fn named(&self, result: Result<Config, Vec<Problem>>) -> Vec<String> {
        let directory = format!("{}/", self.dir.path().display());
        let problems = result.expect_err("must be refused");
        problems
            .iter()
            .map(|problem| problem.to_string().replace(&directory, ""))
            .collect()
    }
}

fn authority(name: &str) -> CertifiedIssuer<'static, Key> {
    authority_with(name, Key::generate().unwrap())
}

fn authority_with(name: &str, key: Key) -> CertifiedIssuer<'static, Key> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, key).unwrap()
}

#[test]
fn relative_paths_start_from_the_configuration() {
    let fixture = Fixture::new();
    let config = fixture.load().unwrap();
    assert_eq!(config.serving.tls.cert_file, fixture.path("serving.crt"));
    assert_eq!(config.etcd.ca_file, Some(fixture.path("etcd-ca.crt")));
}

#[test]
fn files_that_cannot_be_used_are_named_with_their_key() {
    for (file, contents, expected) in [
        (
            "serving.crt",
            "",
            "serving.certFile (line 5): serving.crt: no certificate in it (expected -----BEGIN CERTIFICATE-----)",
        ),
        (
            "serving.crt",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "serving.certFile (line 5): serving.crt: certificate 1 in it cannot be parsed",
        ),
        (
            "serving.crt",
            "-----BEGIN CERTIFICATE-----\nAAAA\n",
            "serving.certFile (line 5): serving.crt: damaged PEM: a section has no end, or is no base64",
        ),
        (
            "serving.crt",
            "-----BEGIN CERTIFICATE-----\n?!\n-----END CERTIFICATE-----\n",
            "serving.certFile (line 5): serving.crt: damaged PEM: a section has no end, or is no base64",
        ),
        (
            "serving.key",
            "secret\n",
            "serving.keyFile (line 6): serving.key: no private key in it (PKCS#8, PKCS#1 or SEC1; an encrypted one cannot be used)",
        ),
        (
            "serving.key",
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            "serving.keyFile (line 6): serving.key: its private key cannot be used (RSA of 2048 to 4096 bits, ECDSA P-256 or P-384, \
          or Ed25519)",
        ),
        (
            "front-proxy-ca.crt",
            "nothing",
            "serving.requestHeaderClientCAFile (line 8): front-proxy-ca.crt: no certificate in it (expected -----BEGIN CERTIFICATE-----)",
        ),
        (
            "front-proxy-client.key",
            "nothing",
            "apiServer.proxyClientKeyFile (line 12): front-proxy-client.key: no private key in it (PKCS#8, PKCS#1 or SEC1; an \
          encrypted one cannot be used)",
        ),
        (
            "etcd-ca.crt",
            "nothing",
            "etcd.caFile (line 15): etcd-ca.crt: no certificate in it (expected -----BEGIN CERTIFICATE-----)",
        ),
        (
            "etcd.crt",
            "nothing",
            "etcd.certFile (line 16): etcd.crt: no certificate in it (expected -----BEGIN CERTIFICATE-----)",
        ),
    ] {
        let fixture = Fixture::new();
        fixture.write(file, contents);
        assert_eq!(fixture.problems(), [expected], "{file}");
    }
}

#[test]
fn a_second_certificate_is_looked_at_too() {
    let fixture = Fixture::new();
    let chain = fixture.read("serving.crt")
        + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    fixture.write("serving.crt", &chain);
    assert_eq!(
        fixture.problems(),
        ["serving.certFile (line 5): serving.crt: certificate 2 in it cannot be parsed"]
    );
}

#[test]
fn missing_files_and_other_problems_are_reported_together() {
    let fixture = Fixture::new();
    fs::remove_file(fixture.path("ca.crt")).unwrap();
    fs::remove_file(fixture.path("etcd.key")).unwrap();
    fixture.write(
        "config.yaml",
        &minimal_with("peer:", "peer:\n  nonsense: 1\n  leaseTTL: 1s"),
    );
    assert_eq!(
        fixture.problems(),
        [
            "serving.clientCAFile (line 7): ca.crt: no such file",
            "apiServer.caFile (line 10): ca.crt: no such file",
            "etcd.keyFile (line 17): etcd.key: no such file",
            "peer.nonsense (line 19): unknown key; expected one of advertiseAddress, caFile, serverName, leaseTTL",
            "peer.leaseTTL (line 20): must be at least 2s",
            "peer.caFile (line 22): ca.crt: no such file",
        ]
    );
}

#[test]
fn a_key_must_fit_its_certificate() {
    let fixture = Fixture::new();
    fixture.write("serving.key", &Key::generate().unwrap().serialize_pem());
    fixture.write("front-proxy-client.key", &fixture.read("etcd.key"));
    assert_eq!(
        fixture.problems(),
        [
            "serving.keyFile (line 6): serving.key: the key does not belong to the certificate",
            "apiServer.proxyClientKeyFile (line 12): front-proxy-client.key: the key does not belong to the certificate",
        ]
    );
}

#[test]
fn certificates_for_further_names_are_looked_at_like_the_first() {
    let fixture = Fixture::new();
    let list = "serving:
  sniCertificates:
    - {certFile: sni.crt, keyFile: sni.key}
    - certFile: other.crt
      keyFile: other.key
      names: [other.example.com]";
    fixture.write("config.yaml", &minimal_with("serving:", list));
    fixture.issue("sni", |params| {
        params.not_after = rcgen::date_time_ymd(2001, 2, 3)
    });
    fixture.issue("other", |_| {});
    fixture.load().unwrap();
    let problems = fixture.checked();
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0].starts_with("serving.sniCertificates[0].certFile (line 5): sni.crt: expired"),
        "{problems:?}"
    );

    fixture.write("sni.key", &fixture.read("other.key"));
    fs::remove_file(fixture.path("other.crt")).unwrap();
    assert_eq!(
        fixture.problems(),
        [
            "serving.sniCertificates[0].keyFile (line 5): sni.key: the key does not belong to the certificate",
            "serving.sniCertificates[1].certFile (line 6): other.crt: no such file",
        ]
    );
}

#[test]
fn a_check_names_certificates_that_are_not_valid_now() {
    let fixture = Fixture::new();
    fixture.issue("serving", |params| {
        params.not_after = rcgen::date_time_ymd(2001, 2, 3)
    });
    let problems = fixture.checked();
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0]
            .starts_with("serving.certFile (line 5): serving.crt: expired on Feb  3 00:00:00 2001"),
        "{problems:?}"
    );

    fixture.issue("serving", |params| {
        params.not_before = rcgen::date_time_ymd(2999, 2, 3)
    });
    let problems = fixture.checked();
    assert!(
        problems[0].contains("not valid before Feb  3 00:00:00 2999"),
        "{problems:?}"
    );
}

#[test]
fn expired_certificates_do_not_keep_the_proxy_from_starting() {
    let fixture = Fixture::new();
    for name in ["serving", "front-proxy-client", "etcd"] {
        fixture.issue(name, |params| {
            params.not_after = rcgen::date_time_ymd(2001, 2, 3)
        });
    }
    fixture.load().unwrap();
    assert_eq!(fixture.checked().len(), 3);
}

#[test]
fn directories_and_huge_files_are_refused() {
    let fixture = Fixture::new();
    fs::remove_file(fixture.path("ca.crt")).unwrap();
    fs::create_dir(fixture.path("ca.crt")).unwrap();
    fs::File::create(fixture.path("etcd-ca.crt"))
        .unwrap()
        .set_len(1 << 33)
        .unwrap();
    let problems = fixture.problems();
    assert_eq!(
        problems[0],
        "serving.clientCAFile (line 7): ca.crt: not a regular file"
    );
    assert!(
        problems.contains(
            &"etcd.caFile (line 15): etcd-ca.crt: larger than 1048576 bytes; this cannot be right"
                .to_owned()
        )
    );
}

#[test]
fn users_and_peers_without_names_need_authorities_of_their_own() {
    let fixture = Fixture::new();
    let text = minimal_with("serving:", "serving:\n  requestHeaderAllowedNames: []");
    fixture.write("config.yaml", &text);
    fixture.load().unwrap();

    // The same authority in a bundle, with a renewed certificate.
    let key = Key::from_pem(&fixture.ca.key().serialize_pem()).unwrap();
    let renewed = authority_with("ca", key).pem();
    assert_ne!(renewed, fixture.ca.pem());
    fixture.write(
        "front-proxy-ca.crt",
        &format!("{}{renewed}", fixture.read("front-proxy-ca.crt")),
    );
    let problems = fixture.problems();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].starts_with(
        "serving.requestHeaderClientCAFile (line 9): has an authority that clientCAFile has too"
    ));
}

#[test]
fn one_authority_for_users_and_peers_is_found_whatever_its_path() {
    let fixture = Fixture::new();
    let one = |names: &str| {
        let text = minimal_with("serving:", &format!("serving:{names}"));
        fixture.write("config.yaml", &text);
    };
    fs::remove_file(fixture.path("front-proxy-ca.crt")).unwrap();
    std::os::unix::fs::symlink(fixture.path("ca.crt"), fixture.path("front-proxy-ca.crt")).unwrap();
    // Only the named user is a peer.
    one("\n  requestHeaderAllowedNames: [front-proxy-client]");
    fixture.load().unwrap();
    one("\n  requestHeaderAllowedNames: []");
    let problems = fixture.problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    let key = "serving.requestHeaderClientCAFile (line 9): has an authority";
    assert!(problems[0].starts_with(key), "{problems:?}");
}

#[test]
fn a_configuration_that_cannot_be_read() {
    let fixture = Fixture::new();
    fs::write(fixture.path("config.yaml"), b"kind: x\n\xff\n").unwrap();
    assert_eq!(fixture.problems(), ["config.yaml: not UTF-8 text"]);
    fs::remove_file(fixture.path("config.yaml")).unwrap();
    assert_eq!(fixture.problems(), ["config.yaml: no such file"]);
    fixture.write("config.yaml", &"#".repeat(100_000));
    assert_eq!(
        fixture.problems(),
        ["the file is larger than 65536 bytes: is it the configuration?"]
    );
}
