//! Credentials for connections to apiservers: CAs and the proxy client certificate.
//!
//! One snapshot of the files makes one [`Credentials`]; `server::rotate` replaces it as a whole. Readers: the connection
//! pools of each serving thread, the proxy's own requests, and long-running requests, which may use older ones.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};

use super::error::TlsError;
use super::files::FileSnapshot;
use super::store;
use crate::config::{Config, KeyPair};

/// The credentials in use now.
pub type Current = Arc<ArcSwap<Credentials>>;

pub struct Credentials {
    /// For the local apiserver.
    pub local: Arc<Trust>,
    /// For other proxies and native kube-apiservers.
    pub peers: Arc<Trust>,
}

/// TLS with servers of one CA bundle.
pub struct Trust {
    /// Presents the proxy client certificate.
    pub with_certificate: Arc<ClientConfig>,
    /// Presents no certificate.
    pub without: Arc<ClientConfig>,
    certificate: Option<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
}

impl Credentials {
    /// From the files of `apiServer` and `peer`.
    pub fn read(config: &Config, reading: &FileSnapshot<'_>) -> Result<Self, TlsError> {
        let identity = &config.api_server.proxy_client;
        let trust = |ca_file| Trust::read(ca_file, identity, reading).map(Arc::new);
        Ok(Self {
            local: trust(&config.api_server.ca_file)?,
            peers: trust(&config.peer.ca_file)?,
        })
    }
}

impl Trust {
    /// Trusts servers with certificates of `ca_file`; presents `identity`.
    pub fn read(
        ca_file: &Path,
        identity: &KeyPair,
        reading: &FileSnapshot<'_>,
    ) -> Result<Self, TlsError> {
        let roots = Arc::new(reading.roots(ca_file)?);
        let pair = reading.certified_key(identity)?;
        Ok(Self {
            certificate: pair.cert.first().cloned(),
            with_certificate: Arc::new(store::client(roots.clone(), Some(pair))?),
            without: Arc::new(store::client(roots.clone(), None)?),
            roots,
        })
    }

    /// Whether connections made with `former` would be made with this as well: no CA was removed and, if `presented`, the
    /// client certificate is the same.
    pub fn covers(&self, former: &Self, presented: bool) -> bool {
        let kept = |authority| self.roots.roots.contains(authority);
        former.roots.roots.iter().all(kept)
            && (!presented || former.certificate == self.certificate)
    }
}
