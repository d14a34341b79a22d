//! A PKI with kubeadm's files, flat in one directory, plus invalid and hostile certificates.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::json;
use time::OffsetDateTime;

/// The name in kube-apiserver's certificate.
pub const SERVER_NAME: &str = "kubernetes.default.svc";

const TOKENS: &str = "tok-admin,token-admin,uid1,\"system:masters\"\ntok-bob,bob,uid2,\"devs\"\n";

pub struct Pki {
    dir: PathBuf,
    issuers: BTreeMap<String, Issuer<'static, KeyPair>>,
}

/// The contents of a leaf certificate.
#[derive(Clone, Debug)]
pub struct LeafOptions {
    /// `None`: no common name at all.
    pub cn: Option<String>,
    /// At most two, because the library can encode no more.
    pub orgs: Vec<String>,
    pub uid: Option<String>,
    pub usages: Vec<ExtendedKeyUsagePurpose>,
    /// DNS names and IP addresses.
    pub sans: Vec<String>,
    pub not_before: OffsetDateTime,
    pub not_after: OffsetDateTime,
}

impl LeafOptions {
    pub fn client(cn: &str) -> Self {
        Self::new(cn, vec![ExtendedKeyUsagePurpose::ClientAuth])
    }

    pub fn server(cn: &str, sans: &[&str]) -> Self {
        let mut options = Self::new(cn, vec![ExtendedKeyUsagePurpose::ServerAuth]);
        options.sans = sans.iter().map(|&san| san.to_owned()).collect();
        options
    }

    fn new(cn: &str, usages: Vec<ExtendedKeyUsagePurpose>) -> Self {
        let now = OffsetDateTime::now_utc();
        Self {
            cn: Some(cn.to_owned()),
            orgs: Vec::new(),
            uid: None,
            usages,
            sans: Vec::new(),
            not_before: now - Duration::from_secs(3600),
            not_after: now + Duration::from_secs(24 * 3600),
        }
    }

    pub fn org(mut self, org: &str) -> Self {
        self.orgs.push(org.to_owned());
        self
    }

    /// Kubernetes' own attribute of a subject, of which it makes the user's UID.
    pub fn uid(mut self, uid: &str) -> Self {
        self.uid = Some(uid.to_owned());
        self
    }

    pub fn san(mut self, san: impl ToString) -> Self {
        self.sans.push(san.to_string());
        self
    }

    pub fn usage(mut self, usage: ExtendedKeyUsagePurpose) -> Self {
        self.usages.push(usage);
        self
    }

    /// Ended a minute ago.
    pub fn expired(mut self) -> Self {
        self.not_after = OffsetDateTime::now_utc() - Duration::from_secs(60);
        self
    }

    /// Ends in `time`.
    pub fn for_another(mut self, time: Duration) -> Self {
        self.not_after = OffsetDateTime::now_utc() + time;
        self
    }

    fn subject(&self) -> DistinguishedName {
        let mut name = DistinguishedName::new();
        // The library keeps one value a type; the same attribute under its plain number makes a second.
        let types = [
            DnType::OrganizationName,
            DnType::CustomDnType(vec![2, 5, 4, 10]),
        ];
        assert!(self.orgs.len() <= types.len(), "two organizations at most");
        for (kind, org) in types.into_iter().zip(&self.orgs) {
            name.push(kind, org.as_str());
        }
        if let Some(cn) = &self.cn {
            name.push(DnType::CommonName, cn.as_str());
        }
        if let Some(uid) = &self.uid {
            let kind = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
            name.push(kind, uid.as_str());
        }
        name
    }

    fn params(&self) -> CertificateParams {
        let mut params =
            CertificateParams::new(self.sans.clone()).expect("names for a certificate");
        params.distinguished_name = self.subject();
        params.not_before = self.not_before;
        params.not_after = self.not_after;
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.extended_key_usages.clone_from(&self.usages);
        params.use_authority_key_identifier_extension = true;
        params
    }
}

impl Pki {
    /// Writes all of it into `dir`, which is made if it is not there.
    pub fn new(dir: &Path) -> Self {
        Self::with_ips(dir, &[])
    }

    /// Like [`Pki::new`]; `apiserver.crt` and `etcd-server.crt` are also good for `ips`.
    pub fn with_ips(dir: &Path, ips: &[IpAddr]) -> Self {
        std::fs::create_dir_all(dir).expect("directory for the PKI");
        let mut pki = Self {
            dir: dir.to_owned(),
            issuers: BTreeMap::new(),
        };
        for (name, cn) in [
            ("ca", "kubernetes"),
            ("front-proxy-ca", "front-proxy-ca"),
            ("etcd-ca", "etcd-ca"),
            ("rogue-ca", "kubernetes"),
        ] {
            pki.add_ca(name, cn);
        }
        pki.add_servers(ips);
        pki.add_clients();
        pki.add_service_accounts();
        pki.write("tokens.csv", TOKENS);
        pki
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The path of a file, `ca.crt` for example.
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// The same as text, for command lines and configuration files.
    pub fn file(&self, file: &str) -> String {
        self.path(file).display().to_string()
    }

    /// A further CA (or a new one under an old name): `NAME.crt` and `NAME.key`.
    pub fn add_ca(&mut self, name: &str, cn: &str) {
        self.add_ca_like(name, &LeafOptions::new(cn, Vec::new()));
    }

    /// A further CA, named and valid as `options` say.
    pub fn add_ca_like(&mut self, name: &str, options: &LeafOptions) {
        let params = ca_params(options);
        let key = new_key();
        let certificate = params.self_signed(&key).expect("a CA certificate");
        self.write(&format!("{name}.key"), &key.serialize_pem());
        self.write(&format!("{name}.crt"), &certificate.pem());
        self.issuers
            .insert(name.to_owned(), Issuer::new(params, key));
    }

    /// A CA below another one: `NAME.crt` and `NAME.key`.
    pub fn add_ca_under(&mut self, parent: &str, name: &str, cn: &str) {
        let params = ca_params(&LeafOptions::new(cn, Vec::new()));
        let key = new_key();
        let certificate = params.signed_by(&key, self.issuer(parent));
        let certificate = certificate.expect("a CA certificate");
        self.write(&format!("{name}.key"), &key.serialize_pem());
        self.write(&format!("{name}.crt"), &certificate.pem());
        self.issuers
            .insert(name.to_owned(), Issuer::new(params, key));
    }

    /// Puts files together to a new one.
    pub fn join(&self, file: &str, parts: &[&str]) {
        let read = |part: &&str| std::fs::read_to_string(self.path(part)).expect("a file");
        let text: String = parts.iter().map(read).collect();
        self.write(file, &text);
    }

    fn issuer(&self, ca: &str) -> &Issuer<'static, KeyPair> {
        self.issuers
            .get(ca)
            .unwrap_or_else(|| panic!("no CA {ca:?}"))
    }

    /// A kubeconfig of the administrator. JSON is YAML.
    pub fn kubeconfig(&self, api_server: SocketAddr) -> String {
        let cluster = json!({
            "server": format!("https://{api_server}"),
            "certificate-authority": self.file("ca.crt"),
            "tls-server-name": SERVER_NAME,
        });
        let user = json!({
            "client-certificate": self.file("admin.crt"),
            "client-key": self.file("admin.key"),
        });
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": user}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "current-context": "it",
        });
        config.to_string()
    }

    /// Issues `NAME.crt` and `NAME.key` from `ca`; an older pair of that name is replaced, each file at once.
    pub fn leaf(&self, name: &str, ca: &str, options: &LeafOptions) {
        self.leaf_with(name, ca, options, |_| {});
    }

    /// The same, with arbitrary parameters.
    pub fn leaf_with(
        &self,
        name: &str,
        ca: &str,
        options: &LeafOptions,
        change: impl FnOnce(&mut CertificateParams),
    ) {
        let key = new_key();
        let mut params = options.params();
        change(&mut params);
        let certificate = params
            .signed_by(&key, self.issuer(ca))
            .expect("a leaf certificate");
        self.write(&format!("{name}.key"), &key.serialize_pem());
        self.write(&format!("{name}.crt"), &certificate.pem());
    }

    /// Makes `FILE` a bundle of these CAs.
    pub fn bundle(&self, file: &str, cas: &[String]) {
        let read = |ca: &String| {
            let path = self.path(&format!("{ca}.crt"));
            std::fs::read_to_string(path).expect("a CA file")
        };
        let text: String = cas.iter().map(read).collect();
        self.write(file, &text);
    }

    fn add_servers(&self, ips: &[IpAddr]) {
        let with_ips = |options: LeafOptions| ips.iter().fold(options, LeafOptions::san);
        let names = [
            "kubernetes",
            "kubernetes.default",
            SERVER_NAME,
            "localhost",
            "127.0.0.1",
        ];
        self.leaf(
            "apiserver",
            "ca",
            &with_ips(LeafOptions::server("kube-apiserver", &names)),
        );
        let etcd = LeafOptions::server("etcd-server", &["localhost", "127.0.0.1"])
            .usage(ExtendedKeyUsagePurpose::ClientAuth);
        self.leaf("etcd-server", "etcd-ca", &with_ips(etcd));
    }

    fn add_clients(&self) {
        let client = LeafOptions::client;
        for (name, ca, options) in [
            (
                "admin",
                "ca",
                client("kubernetes-admin").org("system:masters"),
            ),
            ("alice", "ca", client("alice").org("devs").org("qa")),
            (
                "front-proxy-client",
                "front-proxy-ca",
                client("front-proxy-client"),
            ),
            ("not-a-peer", "front-proxy-ca", client("someone-else")),
            (
                "rogue",
                "rogue-ca",
                client("kubernetes-admin").org("system:masters"),
            ),
            // A CSR for this is approved; trimmed on the way, it is the cluster's administrator.
            ("blank", "ca", client("mallory").org("system:masters ")),
            (
                "expired",
                "ca",
                client("kubernetes-admin").org("system:masters").expired(),
            ),
            ("etcd-client", "etcd-ca", client("etcd-client")),
        ] {
            self.leaf(name, ca, &options);
        }
    }

    fn add_service_accounts(&self) {
        let key = new_key();
        self.write("sa.key", &key.serialize_pem());
        self.write("sa.pub", &key.public_key_pem());
    }

    /// Replaces the file atomically.
    fn write(&self, file: &str, text: &str) {
        let path = self.path(file);
        let new = self.path(&format!(".{file}.new"));
        std::fs::write(&new, text).expect("write to the PKI's directory");
        std::fs::rename(&new, &path).expect("rename in the PKI's directory");
    }
}

fn ca_params(options: &LeafOptions) -> CertificateParams {
    let mut params = options.params();
    params.extended_key_usages.clear();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params
}

pub(crate) fn new_key() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a P-256 key")
}
