//! `check --live`: checks that the servers and files of the configuration exist, are the expected ones, and agree.
//!
//! Each subject has a pure part, which turns observations into [`Finding`]s, and a part that observes (`probe`,
//! `inventory`). Probes run concurrently and each has a time limit, so that one dead server hides no other finding. Nothing
//! is changed: servers get GETs only; etcd gets reads, and transactions whose condition never holds.

pub mod addresses;
pub mod apiserver;
pub mod certificates;
pub mod clock;
pub mod concurrent;
pub mod connection_failure;
pub mod etcd;
pub mod finding;
pub mod http_probe;
pub mod identity;
pub mod local_proxy;
pub mod peers;
pub mod storage;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use rustls::pki_types::CertificateDer;
use tokio::time::timeout;

use self::addresses::HostAddresses;
use self::apiserver::authorities;
use self::clock::Skew;
use self::concurrent::join_all;
use self::connection_failure::ConnectionFailure;
use self::etcd::inventory::{self, EtcdInventory};
use self::etcd::probe::ProbeTls;
use self::finding::{Finding, Level};
use self::local_proxy::RunningProxy;
use self::peers::PeerServer;
use crate::cli::inventory::Inventory;
use crate::client::ClientMaker;
use crate::cluster::connector;
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::cluster::state::canonical;
use crate::config::{self, Config};
use crate::local;
use crate::publish::identity::host_name;
use crate::server::rotate;
use crate::tls::credentials::Current;
use crate::tls::error::TlsError;
use crate::tls::files::{FileSnapshot, TlsFile};
use crate::tls::store as files;
use crate::x509::pem;

/// Time limit for one subject. Two run one after the other: together they stay below half a minute.
const PATIENCE: Duration = Duration::from_secs(12);

/// Checks everything that the configuration in `file` names, as far as possible even if the file has problems.
pub async fn examine(file: &Path) -> Vec<Finding> {
    let about = format!("configuration {}", file.display());
    let mut findings: Vec<Finding> = match config::load(file) {
        Ok(_) => vec![Finding::ok(&about, "no problems")],
        Err(problems) => problems
            .iter()
            .map(|problem| Finding::problem(&about, problem, "correct it there"))
            .collect(),
    };
    match config::load_without_files(file) {
        Ok(config) => findings.extend(live(&config, file).await),
        Err(_) => findings.push(Finding::info(
            "everything else",
            "not looked at: the configuration must be right first",
        )),
    }
    findings
}

async fn live(config: &Config, file: &Path) -> Vec<Finding> {
    let named = named_files(config);
    let reading = FileSnapshot::read(&named);
    let mut findings = certificates::findings(config, &named, &reading, SystemTime::now());

    let peer_credentials = http_probe::credentials_trusting(config, &config.peer.ca_file, &reading);
    let maker = maker(config, peer_credentials);
    let local = http_probe::credentials_trusting(config, &config.api_server.ca_file, &reading);
    let etcd = etcd_tls(config, &reading);
    let user = etcd_user(config, &reading);
    let local_credentials = local.as_ref().ok().cloned();
    let ((apiserver, apiserver_skew), local_proxy, (etcd, etcd_client, inventory)) = tokio::join!(
        check_apiserver(config, local, &reading),
        local_proxy::probe::probe(config, maker.as_ref().ok()),
        check_etcd(config, etcd, user.as_deref()),
    );
    findings.extend(etcd);
    let answers = apiserver.iter().all(|found| found.level < Level::Problem);
    findings.extend(apiserver);
    if let (true, Some(credentials), Some(client)) = (answers, local_credentials, etcd_client) {
        findings.extend(check_storage(config, &credentials, &client).await);
    }
    findings.extend(local_proxy::findings(config, &local_proxy));
    findings.extend(addresses::findings(config, &HostAddresses::read()));
    let mut skews: Vec<(String, Skew)> = apiserver_skew.into_iter().collect();
    match inventory {
        Some(inventory) => {
            let running = local_proxy.running();
            let own = identity::own(config, &host_name(), running, &inventory.stored);
            let own = own.as_deref();
            findings.extend(identity::findings(config, own, running, &inventory.stored));
            let (peer_findings, peer_skews) =
                check_peers(config, file, maker, running, &inventory.stored).await;
            findings.extend(peer_findings);
            skews.extend(peer_skews);
        }
        None => findings.push(skipped(
            "server ID and peers",
            "no endpoint of etcd tells of them",
        )),
    }
    findings.extend(clock::findings(&skews, config.identity.lease_duration));
    findings
}

fn named_files(config: &Config) -> Vec<TlsFile> {
    let mut files = rotate::files(config);
    files.extend(connector::files(&config.etcd));
    files
}

/// Clients that connect to peers as the proxy does.
fn maker(
    config: &Config,
    credentials: Result<Current, TlsError>,
) -> Result<Arc<ClientMaker>, String> {
    let credentials = credentials.map_err(|error| error.to_string())?;
    let maker = ClientMaker::new(
        &config.peer.server_name,
        credentials,
        |credentials| &credentials.peers,
        HeaderMap::new(),
        http_probe::PATIENCE,
    );
    Ok(Arc::new(maker.map_err(|error| error.to_string())?))
}

fn etcd_tls(config: &Config, reading: &FileSnapshot<'_>) -> Result<ProbeTls, TlsError> {
    let options = connector::tls_options(&config.etcd, reading)?;
    let Some(ca_file) = &config.etcd.ca_file else {
        return Ok(ProbeTls::default());
    };
    let pair = config.etcd.client.as_ref();
    let pair = pair.map(|pair| reading.pair(pair)).transpose()?;
    let mut config = files::client(&reading.authorities(ca_file)?, pair)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(ProbeTls {
        options,
        config: Some(Arc::new(config)),
    })
}

/// The user that etcd takes the proxy for, if it has authentication enabled.
fn etcd_user(config: &Config, reading: &FileSnapshot<'_>) -> Option<String> {
    let pair = config.etcd.client.as_ref()?;
    let chain = reading.certificates(&pair.cert_file).ok()?;
    let leaf: &CertificateDer<'_> = chain.first()?;
    let leaf = pem::parsed(leaf)?;
    let name = leaf.subject().iter_common_name().last()?.as_str().ok()?;
    Some(name.to_owned())
}

/// For subjects that cannot be checked because of another problem, which has a finding already.
fn skipped(about: impl std::fmt::Display, why: impl std::fmt::Display) -> Finding {
    Finding::info(about, format!("not looked at: {why}"))
}

async fn check_apiserver(
    config: &Config,
    credentials: Result<Current, TlsError>,
    reading: &FileSnapshot<'_>,
) -> (Vec<Finding>, Option<(String, Skew)>) {
    let about = apiserver::about(config);
    let credentials = match credentials {
        Ok(credentials) => credentials,
        Err(error) => return (vec![skipped(about, error)], None),
    };
    let observed = timeout(PATIENCE, apiserver::probe::probe(config, credentials)).await;
    let observed = observed.unwrap_or(Err(ConnectionFailure::TimedOut));
    let skew = observed
        .as_ref()
        .ok()
        .and_then(|observed| observed.ready.skew);
    let mut findings = apiserver::findings(config, &observed);
    if let Ok(observed) = &observed {
        let published = &observed.authorities;
        findings.extend(authorities::findings(&about, config, reading, published));
    }
    (findings, skew.map(|skew| (about, skew)))
}

/// Which resources the local apiserver stores elsewhere.
async fn check_storage(
    config: &Config,
    credentials: &Current,
    etcd: &etcd_client::Client,
) -> Option<Finding> {
    let maker = Arc::new(local::maker(config, credentials.clone()).ok()?);
    let probing = storage::probe(config, credentials, maker, etcd);
    let stored = timeout(PATIENCE, probing).await.ok()??;
    Some(storage::finding(config, &stored))
}

/// Returns a client of the first endpoint that answers, and what is stored there, too.
async fn check_etcd(
    config: &Config,
    tls: Result<ProbeTls, TlsError>,
    user: Option<&str>,
) -> (
    Vec<Finding>,
    Option<etcd_client::Client>,
    Option<EtcdInventory>,
) {
    let tls = match tls {
        Ok(tls) => tls,
        Err(error) => return (vec![skipped("etcd", error)], None, None),
    };
    let probes = config.etcd.endpoints.iter().map(|endpoint| {
        let (config, endpoint, tls) = (config.etcd.clone(), endpoint.clone(), tls.clone());
        async move {
            let observed = etcd::probe::endpoint(&config, &endpoint, &tls).await;
            (endpoint, observed)
        }
    });
    let endpoints = join_all(probes).await;
    let first = endpoints.iter().find_map(|(endpoint, observed)| {
        Some((endpoint.clone(), observed.as_ref().ok()?.1.clone()))
    });
    let client = first.as_ref().map(|(_, client)| client.clone());
    let inventory = async {
        let (endpoint, client) = first?;
        let connector = etcd::probe::connector(&config.etcd, &endpoint, &tls);
        let reading = inventory::read(config, &connector, &client);
        timeout(PATIENCE, reading).await.ok()
    };
    let keys = EtcdKeys::new(&config.etcd.prefix, &[]);
    let key = format!("{}{}", keys.of(Topic::Live), inventory::UNUSED_NAME);
    let progress = join_all(endpoints.into_iter().map(|(endpoint, observed)| {
        let key = key.clone();
        async move {
            let observed = match observed {
                Ok((mut observed, client)) => {
                    let can_request = !observed.version.is_empty();
                    observed.progress = etcd::probe::progress(client, &key, can_request).await;
                    Ok(observed)
                }
                Err(failure) => Err(failure),
            };
            (endpoint, observed)
        }
    }));
    let (endpoints, inventory) = tokio::join!(progress, inventory);
    let mut findings = etcd::endpoints(&endpoints);
    if let Some(inventory) = &inventory {
        findings.extend(etcd::stored(&config.etcd, user, inventory));
    }
    (findings, client, inventory)
}

/// Returns the clock differences of the peers too.
async fn check_peers(
    config: &Config,
    file: &Path,
    maker: Result<Arc<ClientMaker>, String>,
    running: Option<&RunningProxy>,
    inventory: &Inventory,
) -> (Vec<Finding>, Vec<(String, Skew)>) {
    let running = running.map(|running| canonical(running.endpoint));
    let advertised = canonical(config.peer.advertise_address);
    let own_addresses: Vec<_> = [advertised].into_iter().chain(running).collect();
    let mut findings = peers::absent(inventory, &own_addresses, file);
    let maker = match maker {
        Ok(maker) => maker,
        Err(why) => {
            findings.push(skipped("peers", why));
            return (findings, Vec::new());
        }
    };
    let names = &config.serving.request_headers;
    let mut live = peers::live_peers(inventory, &own_addresses);
    if live.len() > peers::MAX_PEERS {
        let left = live.split_off(peers::MAX_PEERS).len();
        findings.push(Finding::info(
            "peers",
            format!("{left} more were not looked at"),
        ));
    }
    let probes = live
        .into_iter()
        .map(|peer: PeerServer| peers::probe::probe(maker.clone(), names.clone(), peer));
    let observed = join_all(probes).await;
    let skews = observed.iter().filter_map(|(peer, observed)| {
        let skew = observed.as_ref().ok()?.ready.skew?;
        Some((peer.about(), skew))
    });
    let skews = skews.collect();
    findings.splice(0..0, peers::findings(&observed));
    (findings, skews)
}
