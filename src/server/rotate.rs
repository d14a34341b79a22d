//! Using new certificate files without dropping a connection: new connections are made with them, and who asks is judged
//! by them from the next request on, also on connections that are open.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use tokio::task::JoinSet;

use crate::config::Config;
use crate::relay::shared::Shared;
use crate::relay::upstream::Credentials;
use crate::request::who::Judge;
use crate::tls::rotation::Rotation;
use crate::tls::store::{self, TlsError};

/// Follows the files of the TLS port, and those that connections to apiservers are made with.
pub fn start(shared: &Arc<Shared>, tls: &Arc<ArcSwap<ServerConfig>>, control: &mut JoinSet<()>) {
    let (owner, tls) = (shared.clone(), tls.clone());
    let serving = Rotation {
        what: "serving",
        files: serving_files(&shared.config),
        apply: move || serve(&owner, &tls),
        broken: shared.metrics.certificates_broken("serving"),
    };
    let owner = shared.clone();
    let upstream = Rotation {
        what: "upstream",
        files: upstream_files(&shared.config),
        apply: move || connect(&owner),
        broken: shared.metrics.certificates_broken("upstream"),
    };
    control.spawn(serving.run());
    control.spawn(upstream.run());
}

fn serve(shared: &Shared, tls: &ArcSwap<ServerConfig>) -> Result<(), TlsError> {
    let (server, cas) = store::serving(&shared.config.serving)?;
    let before = shared.judge.load();
    shared.judge.store(Arc::new(Judge {
        generation: before.generation + 1,
        cas,
        allowed_names: before.allowed_names.clone(),
    }));
    tls.store(server);
    Ok(())
}

fn connect(shared: &Shared) -> Result<(), TlsError> {
    let credentials = Credentials::read(&shared.config)?;
    shared.credentials.store(Arc::new(credentials));
    shared.local.belief().reconsider();
    Ok(())
}

fn serving_files(config: &Config) -> Vec<PathBuf> {
    let serving = &config.serving;
    let pair = &serving.tls;
    [
        &pair.cert_file,
        &pair.key_file,
        &serving.client_ca_file,
        &serving.request_header_client_ca_file,
    ]
    .map(PathBuf::clone)
    .into()
}

fn upstream_files(config: &Config) -> Vec<PathBuf> {
    let pair = &config.api_server.proxy_client;
    [
        &pair.cert_file,
        &pair.key_file,
        &config.api_server.ca_file,
        &config.peer.ca_file,
    ]
    .map(PathBuf::clone)
    .into()
}
