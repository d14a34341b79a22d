//! Certificates of everybody, made at the start.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair,
};
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Client;

pub const SERVER_NAME: &str = "kubernetes.default.svc";

pub struct Pair {
    name: String,
    certificate: Certificate,
    key: KeyPair,
}

pub struct Pki {
    /// Removed at the end.
    dir: tempfile::TempDir,
    pub users: Pair,
    pub peers: Pair,
    alice: Pair,
    peer: Pair,
    stranger: Pair,
}

impl Pki {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let (users, peers, other) = (ca("kubernetes"), ca("front-proxy-ca"), ca("other"));
        let pki = Self {
            alice: leaf(&users, "alice", Some("devs")),
            peer: leaf(&peers, "front-proxy-client", None),
            stranger: leaf(&other, "alice", Some("devs")),
            users,
            peers,
            dir,
        };
        pki.users.write(pki.dir.path(), "ca");
        pki.peers.write(pki.dir.path(), "front-proxy-ca");
        pki.peer.write(pki.dir.path(), "front-proxy-client");
        leaf(&pki.users, SERVER_NAME, None).write(pki.dir.path(), "apiserver");
        pki
    }

    /// A configuration that uses them. `local`: where the local apiserver is.
    pub fn config(&self, local: SocketAddr) -> String {
        let dir = self.dir.path().display();
        format!(
            "apiVersion: kube-interop-proxy/v1alpha1
kind: ProxyConfiguration
serving:
  bindAddress: 127.0.0.1:6443
  certFile: {dir}/apiserver.crt
  keyFile: {dir}/apiserver.key
  clientCAFile: {dir}/ca.crt
  requestHeaderClientCAFile: {dir}/front-proxy-ca.crt
  requestHeaderAllowedNames: [front-proxy-client]
apiServer:
  address: {local}
  caFile: {dir}/ca.crt
  proxyClientCertFile: {dir}/front-proxy-client.crt
  proxyClientKeyFile: {dir}/front-proxy-client.key
etcd:
  endpoints: [http://127.0.0.1:2379]
peer:
  advertiseAddress: 127.0.0.1:6443
  caFile: {dir}/ca.crt
"
        )
    }

    pub fn chain(&self, client: Client) -> Vec<CertificateDer<'static>> {
        self.of(client).map(Pair::der).into_iter().collect()
    }

    /// `without`: trust, and no certificate.
    pub fn client_tls(&self, client: Client, without: &Arc<ClientConfig>) -> Arc<ClientConfig> {
        let mut tls = ClientConfig::clone(without);
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        if let Some(pair) = self.of(client) {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(self.users.der()).expect("a CA");
            let key = PrivateKeyDer::try_from(pair.key.serialize_der()).expect("a key");
            tls = ClientConfig::builder()
                .with_root_certificates(roots)
                .with_client_auth_cert(vec![pair.der()], key)
                .expect("a certificate");
        }
        Arc::new(tls)
    }

    fn of(&self, client: Client) -> Option<&Pair> {
        match client {
            Client::Anonymous => None,
            Client::Alice => Some(&self.alice),
            Client::Peer => Some(&self.peer),
            Client::Stranger => Some(&self.stranger),
        }
    }
}

impl Pair {
    pub fn der(&self) -> CertificateDer<'static> {
        self.certificate.der().clone()
    }

    fn write(&self, dir: &Path, name: &str) {
        let write = |kind: &str, text: String| {
            std::fs::write(dir.join(format!("{name}.{kind}")), text).expect("a file");
        };
        write("crt", self.certificate.pem());
        write("key", self.key.serialize_pem());
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn ca(name: &str) -> Pair {
    let key = KeyPair::generate().expect("a key");
    let mut params = params(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    Pair {
        name: name.to_owned(),
        certificate: params.self_signed(&key).expect("a certificate"),
        key,
    }
}

fn leaf(ca: &Pair, name: &str, organization: Option<&str>) -> Pair {
    let key = KeyPair::generate().expect("a key");
    let mut subject = params(name);
    if let Some(organization) = organization {
        let names = &mut subject.distinguished_name;
        names.push(DnType::OrganizationName, organization);
    }
    subject.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let issuer = Issuer::new(params(&ca.name), &ca.key);
    let certificate = subject.signed_by(&key, &issuer);
    Pair {
        name: name.to_owned(),
        certificate: certificate.expect("a certificate"),
        key,
    }
}
