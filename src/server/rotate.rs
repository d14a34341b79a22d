//! Using new certificate files without dropping a connection: new connections are made with them, and who asks is judged
//! by them from the next request on, also on connections that are open. Long-running requests that stand on what is gone
//! end in their turn ([`crate::relay::standing`]).
//!
//! The only writer of the TLS port's configuration, the judge, the credentials and what etcd's clients are made with.

use std::sync::Arc;

use arc_swap::ArcSwap;
use etcd_client::TlsOptions;
use rustls::ServerConfig;
use tokio::task::JoinSet;

use crate::cluster::connector::{self, EtcdTls};
use crate::config::Config;
use crate::relay::shared::Shared;
use crate::request::who::Judge;
use crate::tls::credentials::Credentials;
use crate::tls::reading::{File, Reading};
use crate::tls::rotation::Rotation;
use crate::tls::store::{self, TlsError};
use crate::tls::verify::ClientCas;

type Server = (Arc<ServerConfig>, ClientCas);

/// What all files were good for at the start.
pub struct Beginning {
    /// The TLS port's configuration.
    pub server: Arc<ServerConfig>,
    /// What client certificates are judged by.
    pub cas: ClientCas,
    /// What connections to apiservers are made with.
    pub credentials: Credentials,
    /// What connections to etcd are made with.
    pub etcd: Option<TlsOptions>,
}

/// All files, by what they are used for together.
pub struct Rotations {
    serving: Rotation<Server>,
    upstream: Rotation<Credentials>,
    etcd: Rotation<Option<TlsOptions>>,
}

/// Reads all files that `config` names.
pub fn begin(config: &Config) -> Result<(Beginning, Rotations), TlsError> {
    let serving = config.serving.clone();
    let make = move |reading: &Reading<'_>| store::serving(&serving, reading);
    let ((server, cas), serving) = Rotation::begin("serving", serving_files(config), make)?;
    let whole = config.clone();
    let make = move |reading: &Reading<'_>| Credentials::read(&whole, reading);
    let (credentials, upstream) = Rotation::begin("upstream", upstream_files(config), make)?;
    let etcd = config.etcd.clone();
    let make = move |reading: &Reading<'_>| connector::tls_options(&etcd, reading);
    let files = connector::files(&config.etcd);
    let (options, etcd) = Rotation::begin("etcd", files, make)?;
    let beginning = Beginning {
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
    Ok((beginning, rotations))
}

impl Rotations {
    /// Follows them all.
    pub fn start(
        self,
        shared: &Arc<Shared>,
        tls: &Arc<ArcSwap<ServerConfig>>,
        etcd: &EtcdTls,
        control: &mut JoinSet<()>,
    ) {
        let metrics = &shared.metrics;
        let (owner, tls) = (shared.clone(), tls.clone());
        let serve = move |new| serve(&owner, &tls, new);
        control.spawn(self.serving.run(metrics.clone(), serve));
        let owner = shared.clone();
        let connect = move |new| {
            owner.credentials.store(Arc::new(new));
            owner.local.belief().reconsider();
            owner.rotated.send_replace(());
        };
        control.spawn(self.upstream.run(metrics.clone(), connect));
        let etcd = etcd.clone();
        let follow = move |new: Option<_>| etcd.store(new.map(Arc::new));
        control.spawn(self.etcd.run(metrics.clone(), follow));
    }
}

fn serve(shared: &Shared, tls: &ArcSwap<ServerConfig>, (server, cas): Server) {
    let before = shared.judge.load();
    shared.judge.store(Arc::new(Judge {
        generation: before.generation + 1,
        cas,
        allowed_names: before.allowed_names.clone(),
    }));
    tls.store(server);
    shared.rotated.send_replace(());
}

/// All files but those of etcd.
pub fn files(config: &Config) -> Vec<File> {
    let mut files = serving_files(config);
    files.extend(upstream_files(config));
    files
}

fn serving_files(config: &Config) -> Vec<File> {
    let serving = &config.serving;
    vec![
        File::certificates("serving.certFile", &serving.tls.cert_file),
        File::key("serving.keyFile", &serving.tls.key_file),
        File::certificates("serving.clientCAFile", &serving.client_ca_file),
        File::certificates(
            "serving.requestHeaderClientCAFile",
            &serving.request_header_client_ca_file,
        ),
    ]
}

fn upstream_files(config: &Config) -> Vec<File> {
    let server = &config.api_server;
    let pair = &server.proxy_client;
    vec![
        File::certificates("apiServer.proxyClientCertFile", &pair.cert_file),
        File::key("apiServer.proxyClientKeyFile", &pair.key_file),
        File::certificates("apiServer.caFile", &server.ca_file),
        File::certificates("peer.caFile", &config.peer.ca_file),
    ]
}
