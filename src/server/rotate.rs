//! Applies new certificate files without closing connections: new connections use them, and callers are identified by
//! them from the next request on, also on open connections. Long-running requests that depend on removed certificates
//! end one after the other ([`crate::relay::watch`]).
//!
//! The only writer of the TLS port's configuration, the judge, the credentials and etcd's TLS options.

use crate::tls::metrics::CertificateMetrics;
use std::sync::Arc;

use arc_swap::ArcSwap;
use etcd_client::TlsOptions;
use tokio::task::JoinSet;

use crate::cluster::connector::{self, EtcdTls};
use crate::config::Config;
use crate::relay::shared::Shared;
use crate::request::caller::Authenticator;
use crate::tls::credentials::Credentials;
use crate::tls::error::TlsError;
use crate::tls::files::{FileSnapshot, TlsFile};
use crate::tls::rotation::Rotation;
use crate::tls::serving::ServingTls;
use crate::tls::verify::ClientCas;

type Server = (ServingTls, ClientCas);

/// The contents of all certificate files at the start.
pub struct InitialCertificates {
    /// The TLS port's configuration.
    pub server: ServingTls,
    /// Client CAs.
    pub cas: ClientCas,
    /// Credentials of connections to apiservers.
    pub credentials: Credentials,
    /// TLS options of connections to etcd.
    pub etcd: Option<TlsOptions>,
}

/// All certificate files, grouped by use.
pub struct Rotations {
    serving: Rotation<Server>,
    upstream: Rotation<Credentials>,
    etcd: Rotation<Option<TlsOptions>>,
}

/// Reads all files that `config` names.
pub fn begin(config: &Config) -> Result<(InitialCertificates, Rotations), TlsError> {
    let serving = config.serving.clone();
    let make = move |reading: &FileSnapshot<'_>| ServingTls::read(&serving, reading);
    let ((server, cas), serving) = Rotation::begin("serving", serving_files(config), make)?;
    warn(&server);
    let whole = config.clone();
    let make = move |reading: &FileSnapshot<'_>| Credentials::read(&whole, reading);
    let (credentials, upstream) = Rotation::begin("upstream", upstream_files(config), make)?;
    let etcd = config.etcd.clone();
    let make = move |reading: &FileSnapshot<'_>| connector::tls_options(&etcd, reading);
    let files = connector::files(&config.etcd);
    let (options, etcd) = Rotation::begin("etcd", files, make)?;
    let initial = InitialCertificates {
        server,
        cas,
        credentials,
        etcd: options,
    };
    let rotations = Rotations {
        serving,
        upstream,
        etcd,
    };
    Ok((initial, rotations))
}

impl Rotations {
    /// Watches all files.
    pub fn start(
        self,
        shared: &Arc<Shared>,
        metrics: &Arc<CertificateMetrics>,
        tls: &Arc<ArcSwap<ServingTls>>,
        etcd: &EtcdTls,
        control: &mut JoinSet<()>,
    ) {
        let (owner, tls) = (shared.clone(), tls.clone());
        let serve = move |new| serve(&owner, &tls, new);
        control.spawn(self.serving.run(metrics.clone(), serve));
        let owner = shared.clone();
        let connect = move |new| {
            owner.credentials.store(Arc::new(new));
            owner.local.trust_outdated.notify_one();
            owner.callers.revalidations.send_replace(());
        };
        control.spawn(self.upstream.run(metrics.clone(), connect));
        let etcd = etcd.clone();
        let follow = move |new: Option<_>| etcd.store(new.map(Arc::new));
        control.spawn(self.etcd.run(metrics.clone(), follow));
    }
}

/// What the TLS port would use.
pub fn serving_tls(config: &Config) -> Result<ServingTls, TlsError> {
    let files = serving_files(config);
    let read = ServingTls::read(&config.serving, &FileSnapshot::read(&files));
    read.map(|(server, _)| server)
}

fn warn(server: &ServingTls) {
    if let Some(warning) = server.warning() {
        tracing::warn!("{warning}");
    }
}

fn serve(shared: &Shared, tls: &ArcSwap<ServingTls>, (server, cas): Server) {
    warn(&server);
    let before = shared.callers.judge.load();
    shared.callers.judge.store(Arc::new(Authenticator {
        generation: before.generation + 1,
        cas,
        allowed_names: before.allowed_names.clone(),
    }));
    tls.store(Arc::new(server));
    shared.callers.revalidations.send_replace(());
}

/// All files but those of etcd.
pub fn files(config: &Config) -> Vec<TlsFile> {
    let mut files = serving_files(config);
    files.extend(upstream_files(config));
    files
}

fn serving_files(config: &Config) -> Vec<TlsFile> {
    let serving = &config.serving;
    let mut files = vec![
        TlsFile::certificates("serving.certFile", &serving.tls.cert_file),
        TlsFile::key("serving.keyFile", &serving.tls.key_file),
        TlsFile::certificates("serving.clientCAFile", &serving.client_ca_file),
        TlsFile::certificates(
            "serving.requestHeaderClientCAFile",
            &serving.request_header_client_ca_file,
        ),
    ];
    for (index, certificate) in serving.sni_certificates.iter().enumerate() {
        let key = |name| format!("serving.sniCertificates[{index}].{name}");
        let pair = &certificate.pair;
        files.push(TlsFile::certificates(key("certFile"), &pair.cert_file));
        files.push(TlsFile::key(key("keyFile"), &pair.key_file));
    }
    files
}

fn upstream_files(config: &Config) -> Vec<TlsFile> {
    let server = &config.api_server;
    let pair = &server.proxy_client;
    vec![
        TlsFile::certificates("apiServer.proxyClientCertFile", &pair.cert_file),
        TlsFile::key("apiServer.proxyClientKeyFile", &pair.key_file),
        TlsFile::certificates("apiServer.caFile", &server.ca_file),
        TlsFile::certificates("peer.caFile", &config.peer.ca_file),
    ]
}
