//! Applies new certificate files without closing connections: new connections use them, and callers are identified by
//! them from the next request on, also on open connections. Long-running requests that depend on removed certificates
//! end one after the other ([`crate::relay::watch`]).
//!
//! The only writer of the TLS port's configuration, the authenticator of clients, the credentials and etcd's TLS options.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use etcd_client::TlsOptions;
use tokio::task::JoinSet;

use crate::cluster::connector::{self, EtcdTls};
use crate::config::Config;
use crate::relay::shared::Shared;
use crate::request::caller::Authenticator;
use crate::tls::credentials::{Credentials, Current};
use crate::tls::error::TlsError;
use crate::tls::files::{FileSnapshot, TlsFile};
use crate::tls::metrics::CertificateMetrics;
use crate::tls::rotation::Rotation;
use crate::tls::serving::ServingTls;
use crate::tls::verify::ClientCas;

type Server = (ServingTls, ClientCas);

/// What is made of the certificate files, and made again when they change.
pub struct Certificates {
    /// The TLS port's configuration.
    pub server: Arc<ArcSwap<ServingTls>>,
    /// Credentials of connections to apiservers.
    pub credentials: Current,
    /// TLS options of connections to etcd.
    pub etcd: EtcdTls,
}

/// All certificate files, grouped by use: `serving`, `upstream`, `etcd`.
pub type Rotations = (
    Rotation<Server>,
    Rotation<Credentials>,
    Rotation<Option<TlsOptions>>,
);

/// Reads all files that `config` names. Also the client CAs.
pub fn begin(config: &Config) -> Result<(Certificates, ClientCas, Rotations), TlsError> {
    let serving = config.serving.clone();
    let make = move |reading: &FileSnapshot<'_>| ServingTls::read(&serving, reading);
    let ((server, cas), serving) = Rotation::begin("serving", serving_files(config), make)?;
    let whole = config.clone();
    let make = move |reading: &FileSnapshot<'_>| Credentials::read(&whole, reading);
    let (credentials, upstream) = Rotation::begin("upstream", upstream_files(config), make)?;
    let etcd = config.etcd.clone();
    let make = move |reading: &FileSnapshot<'_>| connector::tls_options(&etcd, reading);
    let (options, etcd) = Rotation::begin("etcd", connector::files(&config.etcd), make)?;
    let certificates = Certificates {
        server: Arc::new(ArcSwap::from_pointee(server)),
        credentials: Arc::new(ArcSwap::from_pointee(credentials)),
        etcd: Arc::new(ArcSwapOption::from_pointee(options)),
    };
    Ok((certificates, cas, (serving, upstream, etcd)))
}

/// Watches all files.
pub fn start(
    (serving, upstream, etcd): Rotations,
    certificates: Certificates,
    shared: &Arc<Shared>,
    metrics: &Arc<CertificateMetrics>,
    control: &mut JoinSet<()>,
) {
    let owner = shared.clone();
    let serve = move |new| serve(&owner, &certificates.server, new);
    control.spawn(serving.run(metrics.clone(), serve));
    let owner = shared.clone();
    let connect = move |new| {
        certificates.credentials.store(Arc::new(new));
        owner.local.trust_outdated.notify_one();
        owner.callers.revalidations.send_replace(());
    };
    control.spawn(upstream.run(metrics.clone(), connect));
    let follow = move |new: Option<_>| certificates.etcd.store(new.map(Arc::new));
    control.spawn(etcd.run(metrics.clone(), follow));
}

fn serve(shared: &Shared, tls: &ArcSwap<ServingTls>, (server, cas): Server) {
    let before = shared.callers.authenticator.load();
    shared.callers.authenticator.store(Arc::new(Authenticator {
        generation: before.generation + 1,
        cas,
        allowed_names: before.allowed_names.clone(),
    }));
    tls.store(Arc::new(server));
    shared.callers.revalidations.send_replace(());
}

/// All files but those of etcd.
pub fn files(config: &Config) -> Vec<TlsFile> {
    [serving_files(config), upstream_files(config)].concat()
}

fn serving_files(config: &Config) -> Vec<TlsFile> {
    let serving = &config.serving;
    let mut files = vec![
        TlsFile::new("serving.certFile", &serving.tls.cert_file),
        TlsFile::new("serving.keyFile", &serving.tls.key_file),
        TlsFile::new("serving.clientCAFile", &serving.client_ca_file),
        TlsFile::new(
            "serving.requestHeaderClientCAFile",
            &serving.request_header_client_ca_file,
        ),
    ];
    for (index, certificate) in serving.sni_certificates.iter().enumerate() {
        let key = |name| format!("serving.sniCertificates[{index}].{name}");
        let pair = &certificate.pair;
        files.push(TlsFile::new(key("certFile"), &pair.cert_file));
        files.push(TlsFile::new(key("keyFile"), &pair.key_file));
    }
    files
}

fn upstream_files(config: &Config) -> Vec<TlsFile> {
    let server = &config.api_server;
    let pair = &server.proxy_client;
    vec![
        TlsFile::new("apiServer.proxyClientCertFile", &pair.cert_file),
        TlsFile::new("apiServer.proxyClientKeyFile", &pair.key_file),
        TlsFile::new("apiServer.caFile", &server.ca_file),
        TlsFile::new("peer.caFile", &config.peer.ca_file),
    ]
}
