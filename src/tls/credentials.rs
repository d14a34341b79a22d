//! What connections to apiservers are made with: CAs, and the proxy client certificate.
//!
//! One reading of the files makes one [`Credentials`], replaced as a whole by `server::rotate`. Readers: each serving
//! thread's pools, the proxy's own requests, and long-running requests that may stand on older ones.

use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;

use super::reading::Reading;
use super::store::{self, TlsError};
use crate::config::pem::{self, Authority};
use crate::config::{Config, KeyPair};

/// The credentials of the moment.
pub type Current = Arc<ArcSwap<Credentials>>;

/// What connections are made with, as of one reading of the files.
pub struct Credentials {
    /// To the apiserver beside us.
    pub local: Arc<Trust>,
    /// To other proxies and native kube-apiservers.
    pub peers: Arc<Trust>,
}

/// TLS with servers of one CA bundle.
pub struct Trust {
    /// Presents the proxy client certificate.
    pub with_certificate: Arc<ClientConfig>,
    /// Presents none.
    pub without: Arc<ClientConfig>,
    certificate: CertificateDer<'static>,
    authorities: Vec<Authority>,
}

impl Credentials {
    /// From the files of `apiServer` and `peer`.
    pub fn read(config: &Config, reading: &Reading<'_>) -> Result<Self, TlsError> {
        let identity = &config.api_server.proxy_client;
        let trust = |ca_file| Trust::read(ca_file, identity, reading).map(Arc::new);
        Ok(Self {
            local: trust(&config.api_server.ca_file)?,
            peers: trust(&config.peer.ca_file)?,
        })
    }
}

impl Trust {
    /// Trusts servers of `ca_file`, to whom `identity` is presented.
    pub fn read(
        ca_file: &Path,
        identity: &KeyPair,
        reading: &Reading<'_>,
    ) -> Result<Self, TlsError> {
        let cas = reading.authorities(ca_file)?;
        let (chain, key) = reading.pair(identity)?;
        let certificate = chain.first().cloned().ok_or(TlsError::NoCertificate)?;
        Ok(Self {
            with_certificate: Arc::new(store::client(&cas, Some((chain, key)))?),
            without: Arc::new(store::client(&cas, None)?),
            certificate,
            authorities: cas.iter().filter_map(pem::authority).collect(),
        })
    }

    /// Whether connections that were made with `former` could have been made with this as well: no CA was withdrawn, nor
    /// the certificate replaced, if that was presented.
    pub fn covers(&self, former: &Self, presented: bool) -> bool {
        let kept = |authority| self.authorities.contains(authority);
        former.authorities.iter().all(kept)
            && (!presented || former.certificate == self.certificate)
    }
}
