//! `check --live`: whether what the configuration names is there, is what it should be, and agrees with the others.
//!
//! Each subject has a pure part, which turns what was seen into [`Finding`]s, and an edge that looks (`look`, `store`).
//! Looks run at once and each is bounded in time: what is dead hides nothing of the rest. Nothing is changed anywhere:
//! servers are asked with GETs, etcd with reads and with transactions whose condition never holds.
//!
//! Written by nobody; read by `main`.

pub mod apiserver;
pub mod ask;
pub mod certificates;
pub mod clock;
pub mod etcd;
pub mod finding;
pub mod here;
pub mod identity;
pub mod peers;
pub mod together;
pub mod trouble;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::HeaderMap;
use rustls::pki_types::CertificateDer;
use tokio::time::timeout;

use self::apiserver::authorities;
use self::clock::Skew;
use self::etcd::look::Tls;
use self::etcd::store::{self, Store};
use self::finding::Finding;
use self::here::Running;
use self::peers::Peer;
use self::together::together;
use self::trouble::Trouble;
use crate::client::ClientMaker;
use crate::cluster::connector;
use crate::cluster::keys::{Keys, Topic};
use crate::cluster::state::canonical;
use crate::config::{self, Config, pem};
use crate::publish::identity::host_name;
use crate::server::rotate;
use crate::tls::credentials::Current;
use crate::tls::reading::{File, Reading};
use crate::tls::store::{self as files, TlsError};

/// For one subject with all its looks; of two that are looked at one after the other, the sum is below half a minute.
const PATIENCE: Duration = Duration::from_secs(12);

/// Looks at everything that the configuration in `file` names. Whatever can be found out is, also when some of the file is
/// wrong.
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
    let reading = Reading::of(&named);
    let mut findings = certificates::findings(config, &named, &reading, SystemTime::now());

    let peer_credentials = ask::trusting(config, &config.peer.ca_file, &reading);
    let maker = maker(config, peer_credentials);
    let local = ask::trusting(config, &config.api_server.ca_file, &reading);
    let etcd = etcd_tls(config, &reading);
    let user = etcd_user(config, &reading);
    let ((apiserver, apiserver_skew), here, (etcd, store)) = tokio::join!(
        look_at_apiserver(config, local, &reading),
        here::look::look(config, maker.as_ref().ok()),
        look_at_etcd(config, etcd, user.as_deref()),
    );
    findings.extend(etcd);
    findings.extend(apiserver);
    findings.extend(here::findings(config, &here));
    let mut skews: Vec<(String, Skew)> = apiserver_skew.into_iter().collect();
    match store {
        Some(store) => {
            let running = here.running();
            let own = identity::own(config, &host_name(), &store.leases);
            findings.extend(identity::findings(config, own, running, &store));
            let (said, told) = look_at_peers(config, file, maker, running, &store).await;
            findings.extend(said);
            skews.extend(told);
        }
        None => findings.push(passed_over(
            "server ID and peers",
            "no endpoint of etcd tells of them",
        )),
    }
    findings.extend(clock::findings(&skews, config.identity.lease_duration));
    findings
}

fn named_files(config: &Config) -> Vec<File> {
    let mut files = rotate::files(config);
    files.extend(connector::files(&config.etcd));
    files
}

/// Clients that speak to peers as the proxy does.
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
        ask::PATIENCE,
    );
    Ok(Arc::new(maker.map_err(|error| error.to_string())?))
}

fn etcd_tls(config: &Config, reading: &Reading<'_>) -> Result<Tls, TlsError> {
    let options = connector::tls_options(&config.etcd, reading)?;
    let Some(ca_file) = &config.etcd.ca_file else {
        return Ok(Tls::default());
    };
    let pair = config.etcd.client.as_ref();
    let pair = pair.map(|pair| reading.pair(pair)).transpose()?;
    let mut config = files::client(&reading.authorities(ca_file)?, pair)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Tls {
        options,
        config: Some(Arc::new(config)),
    })
}

/// Whom etcd takes us for, if it asks who may do what.
fn etcd_user(config: &Config, reading: &Reading<'_>) -> Option<String> {
    let pair = config.etcd.client.as_ref()?;
    let chain = reading.certificates(&pair.cert_file).ok()?;
    let leaf: &CertificateDer<'_> = chain.first()?;
    let leaf = pem::parsed(leaf)?;
    let name = leaf.subject().iter_common_name().last()?.as_str().ok()?;
    Some(name.to_owned())
}

/// What cannot be looked at because of files of which the configuration's problems tell.
fn passed_over(about: impl std::fmt::Display, why: impl std::fmt::Display) -> Finding {
    Finding::info(about, format!("not looked at: {why}"))
}

async fn look_at_apiserver(
    config: &Config,
    credentials: Result<Current, TlsError>,
    reading: &Reading<'_>,
) -> (Vec<Finding>, Option<(String, Skew)>) {
    let about = apiserver::about(config);
    let credentials = match credentials {
        Ok(credentials) => credentials,
        Err(error) => return (vec![passed_over(about, error)], None),
    };
    let seen = timeout(PATIENCE, apiserver::look::look(config, credentials)).await;
    let seen = seen.unwrap_or(Err(Trouble::Silent));
    let skew = seen.as_ref().ok().and_then(|seen| seen.ready.skew);
    let mut findings = apiserver::findings(config, &seen);
    if let Ok(seen) = &seen {
        let told = &seen.authorities;
        findings.extend(authorities::findings(&about, config, reading, told));
    }
    (findings, skew.map(|skew| (about, skew)))
}

/// What is to be said of etcd, and what is stored there if any endpoint answers.
async fn look_at_etcd(
    config: &Config,
    tls: Result<Tls, TlsError>,
    user: Option<&str>,
) -> (Vec<Finding>, Option<Store>) {
    let tls = match tls {
        Ok(tls) => tls,
        Err(error) => return (vec![passed_over("etcd", error)], None),
    };
    let looks = config.etcd.endpoints.iter().map(|endpoint| {
        let (config, endpoint, tls) = (config.etcd.clone(), endpoint.clone(), tls.clone());
        async move {
            let seen = etcd::look::endpoint(&config, &endpoint, &tls).await;
            (endpoint, seen)
        }
    });
    let endpoints = together(looks).await;
    let first = endpoints
        .iter()
        .find_map(|(endpoint, seen)| Some((endpoint.clone(), seen.as_ref().ok()?.1.clone())));
    let store = async {
        let (endpoint, client) = first?;
        let connector = etcd::look::connector(&config.etcd, &endpoint, &tls);
        let looking = store::look(config, &connector, &client);
        timeout(PATIENCE, looking).await.ok()
    };
    let keys = Keys::new(&config.etcd.prefix, &[]);
    let key = format!("{}{}", keys.of(Topic::Live), store::NOBODYS);
    let progress = together(endpoints.into_iter().map(|(endpoint, seen)| {
        let key = key.clone();
        async move {
            let seen = match seen {
                Ok((mut seen, client)) => {
                    let asks = !seen.version.is_empty();
                    seen.progress = etcd::look::progress(client, &key, asks).await;
                    Ok(seen)
                }
                Err(trouble) => Err(trouble),
            };
            (endpoint, seen)
        }
    }));
    let (endpoints, store) = tokio::join!(progress, store);
    let mut findings = etcd::endpoints(&endpoints);
    if let Some(store) = &store {
        findings.extend(etcd::stored(&config.etcd, user, store));
    }
    (findings, store)
}

/// What is to be said of peers, and what their clocks told.
async fn look_at_peers(
    config: &Config,
    file: &Path,
    maker: Result<Arc<ClientMaker>, String>,
    running: Option<&Running>,
    store: &Store,
) -> (Vec<Finding>, Vec<(String, Skew)>) {
    let running = running.map(|running| canonical(running.endpoint));
    let mine = canonical(config.peer.advertise_address);
    let mine: Vec<_> = [mine].into_iter().chain(running).collect();
    let mut findings = peers::dead(store, &mine, file);
    let maker = match maker {
        Ok(maker) => maker,
        Err(why) => {
            findings.push(passed_over("peers", why));
            return (findings, Vec::new());
        }
    };
    let names = &config.serving.request_headers;
    let mut wanted = peers::wanted(store, &mine);
    if wanted.len() > peers::MOST {
        let left = wanted.split_off(peers::MOST).len();
        findings.push(Finding::info(
            "peers",
            format!("{left} more were not looked at"),
        ));
    }
    let looks = wanted
        .into_iter()
        .map(|peer: Peer| peers::look::look(maker.clone(), names.clone(), peer));
    let seen = together(looks).await;
    let skews = seen.iter().filter_map(|(peer, seen)| {
        let skew = seen.as_ref().ok()?.ready.skew?;
        Some((peer.about(), skew))
    });
    let skews = skews.collect();
    findings.splice(0..0, peers::findings(&seen));
    (findings, skews)
}
