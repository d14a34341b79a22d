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

use arc_swap::ArcSwap;
use http::HeaderMap;

use self::addresses::HostAddresses;
use self::clock::Skew;
use self::finding::{Finding, Level};
use self::inventory::Inventory;
use self::local_proxy::LocalObservations;
use crate::client::ClientMaker;
use crate::cluster::connector;
use crate::cluster::state::canonical;
use crate::config::{self, Config};
use crate::local;
use crate::publish::identity::host_name;
use crate::server::rotate;
use crate::tls::credentials::{Credentials, Current, Trust};
use crate::tls::files::FileSnapshot;

/// Time limit for one subject. Two run one after the other: together they stay below half a minute.
const PATIENCE: Duration = Duration::from_secs(12);

/// Checks everything that the configuration in `file` names, as far as possible even if the file has problems.
pub async fn examine(file: &Path) -> Vec<Finding> {
    let about = format!("configuration {}", file.display());
    let problems = config::load(file).err().unwrap_or_default();
    let told = problems.iter();
    let mut findings: Vec<_> = told
        .map(|problem| told::misconfigured(&about, problem))
        .collect();
    if problems.is_empty() {
        findings.push(told::no_problems(about));
    }
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
    let mut findings = certificates::findings(config, &named, &reading, SystemTime::now());
    let local = Clients::trusting(config, &config.api_server.ca_file, &reading);
    let peers = Clients::trusting(config, &config.peer.ca_file, &reading);
    let ((apiserver, skew), here, etcd) = tokio::join!(
        apiserver::check(config, &local, &reading),
        local_proxy::probe(config, peers.as_ref().ok()),
        etcd::check(config, &reading),
    );
    findings.extend(etcd.findings);
    let answers = apiserver.iter().all(|found| found.level < Level::Problem);
    findings.extend(apiserver);
    if let (true, Ok(clients), Some(client)) = (answers, &local, etcd.client) {
        findings.extend(storage::check(config, clients, &client).await);
    }
    findings.extend(local_proxy::findings(config, &here));
    let host = HostAddresses::read(config.serving.bind_address.port());
    findings.extend(addresses::findings(config, &host));
    let (servers, skews) = match &etcd.stored {
        Some(stored) => cluster(config, file, &peers, &here, stored).await,
        None => {
            let why = "no endpoint of etcd tells of them";
            (vec![told::skipped("server ID and peers", why)], Vec::new())
        }
    };
    findings.extend(servers);
    let skews: Vec<_> = skew.into_iter().chain(skews).collect();
    findings.extend(clock::findings(&skews, config.identity.lease_duration));
    findings
}

/// This server and its peers, as etcd has them. Returns the differences of peers' clocks too.
async fn cluster(
    config: &Config,
    file: &Path,
    clients: &anyhow::Result<Clients>,
    here: &LocalObservations,
    stored: &Inventory,
) -> (Vec<Finding>, Vec<(String, Skew)>) {
    let configured = canonical(config.peer.advertise_address);
    let mine: Vec<_> = [configured].into_iter().chain(here.advertised()).collect();
    let runs_as = here.running().and_then(|running| running.id.as_deref());
    let mut findings = identity::findings(config, &host_name(), &mine, runs_as, stored);
    let names = &config.serving.request_headers;
    let (peers, skews) = match clients {
        Ok(clients) => peers::check(&clients.peers, names, &mine, stored).await,
        Err(why) => (vec![told::skipped("peers", why)], Vec::new()),
    };
    findings.extend(peers);
    findings.extend(peers::absent(stored, &mine, file));
    (findings, skews)
}

/// Clients of the apiserver, or of peers, that connect as the proxy does.
pub struct Clients {
    credentials: Current,
    apiserver: Arc<ClientMaker>,
    peers: Arc<ClientMaker>,
}

impl Clients {
    /// They trust `ca_file` only: what is wrong with the other one hides nothing.
    fn trusting(
        config: &Config,
        ca_file: &Path,
        reading: &FileSnapshot<'_>,
    ) -> anyhow::Result<Self> {
        let identity = &config.api_server.proxy_client;
        let trust = Arc::new(Trust::read(ca_file, identity, reading)?);
        let credentials = Arc::new(ArcSwap::from_pointee(Credentials {
            local: trust.clone(),
            peers: trust,
        }));
        let peers = ClientMaker::new(
            &config.peer.server_name,
            credentials.clone(),
            |credentials| &credentials.peers,
            HeaderMap::new(),
            http_probe::PATIENCE,
        );
        Ok(Self {
            apiserver: Arc::new(local::maker(config, credentials.clone())?),
            peers: Arc::new(peers?),
            credentials,
        })
    }
}
