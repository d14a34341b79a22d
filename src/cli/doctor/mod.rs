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
pub mod pre;
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
use self::probe::Maker;
use self::stored::Inventory;
use crate::client::{ClientMaker, MakerError};
use crate::cluster::connector;
use crate::cluster::record::canonical;
use crate::config::{self, Config, Problem};
use crate::local;
use crate::server::rotate;
use crate::tls::credentials::{Credentials, Current, Trust};
use crate::tls::files::FileSnapshot;

/// Time limit for one subject. Two run one after the other: together they stay below half a minute.
const PATIENCE: Duration = Duration::from_secs(12);

/// What is to be said of a configuration file with these problems.
pub fn of_file(file: &Path, problems: Option<Vec<Problem>>) -> Vec<Finding> {
    let about = format!("configuration {}", file.display());
    let Some(problems) = problems else {
        return vec![told::no_problems(about)];
    };
    let told = problems.iter().map(|it| told::misconfigured(&about, it));
    told.collect()
}

/// Checks everything that the configuration in `file` names, as far as possible even if the file has problems.
pub async fn examine(file: &Path) -> Vec<Finding> {
    let mut findings = of_file(file, config::load(file).err());
    let why = "the configuration must be right first";
    match config::load_without_files(file) {
        Ok(config) => findings.extend(live(&config, file, true).await),
        Err(_) => findings.push(told::skipped("everything else", why)),
    }
    findings
}

/// `is_installed`: the addresses of the configuration are to lead to this proxy.
async fn live(config: &Config, file: &Path, is_installed: bool) -> Vec<Finding> {
    let mut named = rotate::files(config);
    named.extend(connector::files(&config.etcd));
    let reading = FileSnapshot::read(&named);
    let mut findings = certificates::findings(config, &reading, SystemTime::now());
    let local = maker(config, &config.api_server.ca_file, &reading, local::maker);
    let peers = maker(config, &config.peer.ca_file, &reading, of_peers);
    let addressed = peers.as_ref().ok().filter(|_| is_installed);
    let (apiserver, here, (of_etcd, client, stored)) = tokio::join!(
        apiserver::check(config, &local, &reading),
        LocalProxy::check(config, addressed),
        etcd::check(config, &reading),
    );
    findings.extend(of_etcd);
    let answers = apiserver.iter().all(|found| found.level < Level::Problem);
    findings.extend(apiserver);
    if let (true, Ok(maker), Some(client)) = (answers, &local, client) {
        findings.extend(storage::check(config, maker, &client).await);
    }
    let servers = match &stored {
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
    maker: &anyhow::Result<Maker>,
    here: &LocalProxy,
    stored: &Inventory,
) -> Vec<Finding> {
    let configured = canonical(config.peer.advertise_address);
    let mine: Vec<_> = [configured].into_iter().chain(here.advertised).collect();
    let runs_as = here.running.as_ref().and_then(|it| it.id.as_deref());
    let id = config.identity.server_id.as_deref().or(runs_as);
    let mut findings = peers::server_ids(id, &mine, stored);
    let names = &config.serving.request_headers;
    findings.extend(match maker {
        Ok(maker) => peers::check(maker, names, &mine, stored).await,
        Err(why) => vec![told::skipped("peers", why)],
    });
    findings.extend(peers::absent(stored, &mine, file));
    findings
}

/// Makes clients of peers that connect as the proxy does.
pub fn peers_maker(config: &Config) -> anyhow::Result<Maker> {
    let (files, ca_file) = (rotate::files(config), &config.peer.ca_file);
    maker(config, ca_file, &FileSnapshot::read(&files), of_peers)
}

/// Makes clients of the node's apiserver with the proxy's own rights.
pub fn local_maker(config: &Config) -> anyhow::Result<Maker> {
    let (files, ca_file) = (rotate::files(config), &config.api_server.ca_file);
    maker(config, ca_file, &FileSnapshot::read(&files), local::maker)
}

/// The clients trust `ca_file` only: what is wrong with the other one hides nothing.
fn maker(
    config: &Config,
    ca_file: &Path,
    reading: &FileSnapshot<'_>,
    make: impl Fn(&Config, Current) -> Result<ClientMaker, MakerError>,
) -> anyhow::Result<Maker> {
    let identity = &config.api_server.proxy_client;
    let trust = Arc::new(Trust::read(ca_file, identity, reading)?);
    let credentials = ArcSwap::from_pointee(Credentials {
        local: trust.clone(),
        peers: trust,
    });
    Ok(Arc::new(make(config, Arc::new(credentials))?))
}

fn of_peers(config: &Config, credentials: Current) -> Result<ClientMaker, MakerError> {
    ClientMaker::of_peers(config, credentials, HeaderMap::new(), probe::PATIENCE)
}
