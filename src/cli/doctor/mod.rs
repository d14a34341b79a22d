//! `check --live`: checks that the servers and files of the configuration exist, are the expected ones, and agree.
//!
//! Each subject has a part that observes and a pure part, which turns observations into the findings of [`told`]. Probes run
//! concurrently and each has a time limit, so that one dead server hides no other finding. Nothing is changed: servers get
//! GETs only; etcd gets reads, and transactions whose condition never holds.

pub mod addresses;
pub mod apiserver;
pub mod certificates;
pub mod clock;
pub mod connection_failure;
pub mod etcd;
pub mod finding;
pub mod http_probe;
pub mod identity;
pub mod inventory;
pub mod local_proxy;
pub mod peers;
pub mod storage;
pub mod stored;
pub mod told;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderMap;

use self::addresses::HostAddresses;
use self::finding::{Finding, Level};
use crate::client::ClientMaker;
use crate::cluster::connector;
use crate::cluster::state::canonical;
use crate::config::{self, Config};
use crate::publish::identity::host_name;
use crate::server::rotate;
use crate::tls::credentials::Current;
use crate::tls::error::TlsError;
use crate::tls::files::FileSnapshot;

/// Time limit for one subject. Two run one after the other: together they stay below half a minute.
const PATIENCE: Duration = Duration::from_secs(12);

/// Checks everything that the configuration in `file` names, as far as possible even if the file has problems.
pub async fn examine(file: &Path) -> Vec<Finding> {
    let about = format!("configuration {}", file.display());
    let mut findings: Vec<Finding> = match config::load(file) {
        Ok(_) => vec![told::no_problems(&about)],
        Err(problems) => {
            let problems = problems.iter();
            problems
                .map(|problem| told::misconfigured(&about, problem))
                .collect()
        }
    };
    match config::load_without_files(file) {
        Ok(config) => findings.extend(live(&config, file).await),
        Err(_) => findings.push(told::skipped(
            "everything else",
            "the configuration must be right first",
        )),
    }
    findings
}

async fn live(config: &Config, file: &Path) -> Vec<Finding> {
    let mut named = rotate::files(config);
    named.extend(connector::files(&config.etcd));
    let reading = FileSnapshot::read(&named);
    let trusting = |ca_file| http_probe::credentials_trusting(config, ca_file, &reading);
    let maker = peer_maker(config, trusting(&config.peer.ca_file));
    let local = trusting(&config.api_server.ca_file);
    let credentials = local.as_ref().ok().cloned();
    let ((apiserver, skew), local_proxy, etcd) = tokio::join!(
        apiserver::check(config, local, &reading),
        local_proxy::probe(config, maker.as_ref().ok()),
        etcd::check(config, &reading),
    );
    let mut findings = certificates::findings(config, &named, &reading, SystemTime::now());
    findings.extend(etcd.findings);
    let answers = apiserver.iter().all(|found| found.level < Level::Problem);
    findings.extend(apiserver);
    if let (true, Some(credentials), Some(client)) = (answers, credentials, etcd.client) {
        findings.extend(storage::check(config, &credentials, &client).await);
    }
    findings.extend(local_proxy::findings(config, &local_proxy));
    findings.extend(addresses::findings(config, &HostAddresses::read()));
    let mut skews = Vec::from_iter(skew);
    match etcd.stored {
        Some(stored) => {
            let running = local_proxy.running();
            let own = identity::own(config, &host_name(), running, &stored);
            findings.extend(identity::findings(config, own.as_deref(), running, &stored));
            let running = running.map(|running| canonical(running.endpoint));
            let mine = [canonical(config.peer.advertise_address)].into_iter();
            let mine: Vec<_> = mine.chain(running).collect();
            let names = &config.serving.request_headers;
            let (peers, peer_skews) = peers::check(maker, names, &mine, &stored).await;
            findings.extend(peers);
            findings.extend(peers::absent(&stored, &mine, file));
            skews.extend(peer_skews);
        }
        None => findings.push(told::skipped(
            "server ID and peers",
            "no endpoint of etcd tells of them",
        )),
    }
    findings.extend(clock::findings(&skews, config.identity.lease_duration));
    findings
}

/// Clients that connect to peers as the proxy does.
fn peer_maker(
    config: &Config,
    credentials: Result<Current, TlsError>,
) -> Result<Arc<ClientMaker>, String> {
    let maker = ClientMaker::new(
        &config.peer.server_name,
        credentials.map_err(|error| error.to_string())?,
        |credentials| &credentials.peers,
        HeaderMap::new(),
        http_probe::PATIENCE,
    );
    maker.map(Arc::new).map_err(|error| error.to_string())
}
