//! `check --live`: checks that the servers and files of the configuration exist, are the expected ones, and agree.
//!
//! Each subject is probed in a module of its own; all findings are in [`told`]. Probes run concurrently and each has a time
//! limit, so that one dead server hides no other finding. Nothing is changed: servers get
//! GETs only; etcd gets reads, and transactions whose condition never holds.

pub mod addresses;
pub mod apiserver;
pub mod certificates;
pub mod etcd;
pub mod finding;
pub mod local_proxy;
pub mod peers;
pub mod probe;
pub mod storage;
pub mod stored;
pub mod told;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use http::HeaderMap;

use self::finding::{Finding, Level};
use self::local_proxy::LocalProxy;
use self::stored::Inventory;
use crate::client::{ClientMaker, MakerError};
use crate::cluster::connector;
use crate::cluster::state::canonical;
use crate::config::{self, Config};
use crate::local;
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
    let local = Clients::new(config, &config.api_server.ca_file, &reading, local::maker);
    let peers = Clients::new(config, &config.peer.ca_file, &reading, peers_maker);
    let (apiserver, here, etcd) = tokio::join!(
        apiserver::check(config, &local, &reading),
        LocalProxy::check(config, peers.as_ref().ok().map(|clients| &clients.maker)),
        etcd::check(config, &reading),
    );
    findings.extend(etcd.findings);
    let answers = apiserver.iter().all(|found| found.level < Level::Problem);
    findings.extend(apiserver);
    if let (true, Ok(clients), Some(client)) = (answers, &local, etcd.client) {
        findings.extend(storage::check(config, clients, &client).await);
    }
    let servers = match &etcd.stored {
        Some(stored) => cluster(config, file, &peers, &here, stored).await,
        None => {
            let why = "no endpoint of etcd tells of them";
            vec![told::skipped("server ID and peers", why)]
        }
    };
    findings.extend(here.findings);
    findings.extend(addresses::unserved(config));
    findings.extend(servers);
    findings
}

/// This server and its peers, as etcd has them.
async fn cluster(
    config: &Config,
    file: &Path,
    clients: &anyhow::Result<Clients>,
    here: &LocalProxy,
    stored: &Inventory,
) -> Vec<Finding> {
    let configured = canonical(config.peer.advertise_address);
    let mine: Vec<_> = [configured].into_iter().chain(here.advertised).collect();
    let runs_as = here
        .running
        .as_ref()
        .and_then(|running| running.id.as_deref());
    let id = config.identity.server_id.as_deref().or(runs_as);
    let mut findings = peers::server_ids(id, &mine, stored);
    let names = &config.serving.request_headers;
    findings.extend(match clients {
        Ok(clients) => peers::check(&clients.maker, names, &mine, stored).await,
        Err(why) => vec![told::skipped("peers", why)],
    });
    findings.extend(peers::absent(stored, &mine, file));
    findings
}

/// Clients of the apiserver, or of peers, that connect as the proxy does.
pub struct Clients {
    credentials: Current,
    maker: Arc<ClientMaker>,
}

impl Clients {
    /// They trust `ca_file` only: what is wrong with the other one hides nothing.
    fn new(
        config: &Config,
        ca_file: &Path,
        reading: &FileSnapshot<'_>,
        maker: impl Fn(&Config, Current) -> Result<ClientMaker, MakerError>,
    ) -> anyhow::Result<Self> {
        let identity = &config.api_server.proxy_client;
        let trust = Arc::new(Trust::read(ca_file, identity, reading)?);
        let credentials = Arc::new(ArcSwap::from_pointee(Credentials {
            local: trust.clone(),
            peers: trust,
        }));
        Ok(Self {
            maker: Arc::new(maker(config, credentials.clone())?),
            credentials,
        })
    }
}

fn peers_maker(config: &Config, credentials: Current) -> Result<ClientMaker, MakerError> {
    ClientMaker::new(
        &config.peer.server_name,
        credentials,
        |credentials| &credentials.peers,
        HeaderMap::new(),
        probe::PATIENCE,
    )
}
