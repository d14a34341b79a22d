//! The files that the configuration names: how long they are valid, and whether others will believe them. Pure, but for
//! the files' contents, which were read before.
//!
//! Files that cannot be read or used at all are problems of the configuration, and nothing is said of them here.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::finding::Finding;
use crate::config::Config;
use crate::config::pem;
use crate::request::who::{Caller, Connection, Judge};
use crate::tls::expiry::Step;
use crate::tls::reading::{Content, File, Reading};
use crate::tls::store::provider;
use crate::tls::verify::ClientCas;

/// What is to be said of all files at `now`.
pub fn findings(
    config: &Config,
    files: &[File],
    reading: &Reading<'_>,
    now: SystemTime,
) -> Vec<Finding> {
    let now = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let mut seen: Vec<&Path> = Vec::new();
    let mut findings = Vec::new();
    for file in files {
        let path = file.path.as_path();
        if file.content == Content::Key || seen.contains(&path) {
            continue;
        }
        seen.push(path);
        if let Ok(certificates) = reading.certificates(path) {
            let about = about(files, path);
            findings.extend(validity(&about, is_bundle(file), &certificates, now));
        }
    }
    findings.extend(as_a_peer(config, files, reading, now));
    findings.extend(as_a_server(config, files, reading, now));
    findings
}

/// A file is said once, with all keys that name it.
fn about(files: &[File], path: &Path) -> String {
    let naming = files.iter().filter(|file| file.path == path);
    let keys: Vec<_> = naming.map(|file| file.key).collect();
    format!("certificate {} ({})", path.display(), keys.join(", "))
}

fn is_bundle(file: &File) -> bool {
    file.key.to_ascii_lowercase().ends_with("cafile")
}

/// Of several authorities, one that is over does no harm.
fn validity(
    about: &str,
    bundle: bool,
    certificates: &[CertificateDer<'_>],
    now: Duration,
) -> Option<Finding> {
    const RENEW: &str = "renew it";
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let parsed: Vec<_> = certificates.iter().filter_map(pem::parsed).collect();
    let valid = parsed
        .iter()
        .map(|certificate| certificate.validity().clone());
    let first = valid.clone().min_by_key(|it| it.not_after.timestamp())?;
    let last = valid
        .clone()
        .max_by_key(|it| it.not_before.timestamp())?
        .not_before;
    let is_over = |end: i64| end < now;
    if is_over(first.not_after.timestamp()) {
        let others = valid.filter(|it| !is_over(it.not_after.timestamp()));
        let left = others.count();
        return Some(match bundle && left > 0 {
            true => Finding::info(
                about,
                format!(
                    "{} of {} authorities have expired",
                    parsed.len() - left,
                    parsed.len()
                ),
            ),
            false => Finding::problem(about, format!("expired on {}", first.not_after), RENEW),
        });
    }
    if last.timestamp() > now {
        let what = format!("not valid before {last}");
        return Some(Finding::problem(
            about,
            what,
            "see whether this machine's clock is right",
        ));
    }
    let until = format!("until {}", first.not_after);
    Some(match Step::of(first.not_after.timestamp() - now) {
        Step::Far => Finding::ok(about, format!("valid {until}")),
        _ => Finding::warning(about, format!("about to expire, valid {until} only"), RENEW),
    })
}

/// Whether peers that are configured as this one take the proxy client certificate for a proxy's.
fn as_a_peer(
    config: &Config,
    files: &[File],
    reading: &Reading<'_>,
    now: Duration,
) -> Option<Finding> {
    let path = &config.api_server.proxy_client.cert_file;
    let serving = &config.serving;
    let chain = reading.certificates(path).ok()?;
    let users = reading.authorities(&serving.client_ca_file).ok()?;
    let peers = reading
        .authorities(&serving.request_header_client_ca_file)
        .ok()?;
    let cas = ClientCas::new(&provider(), &users, &peers).ok()?;
    let now = inside(&chain, now)?;
    let signed = cas.is_peer(&chain, UnixTime::since_unix_epoch(now));
    let names = &serving.request_header_allowed_names;
    let judge = Judge {
        generation: 0,
        cas,
        allowed_names: names.clone(),
    };
    let connection = Connection::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0, chain);
    let about = about(files, path);
    Some(
        match judge.caller(&connection, false, SystemTime::UNIX_EPOCH + now) {
            Caller::Peer => Finding::ok(about, "peers will take it for a proxy's"),
            _ if signed => Finding::problem(
                about,
                format!(
                    "its CN is none of serving.requestHeaderAllowedNames [{}]: no peer will believe this proxy",
                    names.join(", ")
                ),
                "use a certificate with such a CN, or add its CN there and to the apiservers' \
                 --requestheader-allowed-names",
            ),
            _ => Finding::problem(
                about,
                "it is not signed for clients by a CA of serving.requestHeaderClientCAFile: no peer will believe this \
                 proxy",
                "use a client certificate of that CA (--proxy-client-cert-file of the kube-apiserver)",
            ),
        },
    )
}

/// Whether peers that are configured as this one would verify the serving certificate.
fn as_a_server(
    config: &Config,
    files: &[File],
    reading: &Reading<'_>,
    now: Duration,
) -> Option<Finding> {
    let path = &config.serving.tls.cert_file;
    let chain = reading.certificates(path).ok()?;
    let authorities = reading.authorities(&config.peer.ca_file).ok()?;
    let (leaf, intermediates) = chain.split_first()?;
    let leaf = EndEntityCert::try_from(leaf).ok()?;
    let name = &config.peer.server_name;
    let expected = ServerName::try_from(name.as_str()).ok()?;
    let about = about(files, path);
    if leaf.verify_is_valid_for_subject_name(&expected).is_err() {
        return Some(Finding::warning(
            about,
            format!(
                "it lacks the name {name}, which peers verify that have this file's peer.serverName"
            ),
            format!("have it issued with the name {name} too"),
        ));
    }
    let now = UnixTime::since_unix_epoch(inside(&chain, now)?);
    let anchors: Vec<_> = authorities
        .iter()
        .filter_map(|ca| Some(anchor_from_trusted_cert(ca).ok()?.to_owned()))
        .collect();
    let algorithms = provider().signature_verification_algorithms.all;
    let usage = KeyUsage::server_auth();
    let verified =
        leaf.verify_for_usage(algorithms, &anchors, intermediates, now, usage, None, None);
    Some(match verified {
        Ok(_) => Finding::ok(about, format!("peers will take it for {name}")),
        Err(_) => Finding::warning(
            about,
            "it is not signed for servers by a CA of peer.caFile: peers that have the same one refuse it",
            "put the CA that signed it into every proxy's peer.caFile",
        ),
    })
}

/// The moment nearest to `now` at which the certificate itself is valid: that it is not is said already.
fn inside(chain: &[CertificateDer<'_>], now: Duration) -> Option<Duration> {
    let validity = crate::tls::verify::validity(chain.first()?)?;
    let now = now.as_secs().clamp(*validity.start(), *validity.end());
    Some(Duration::from_secs(now))
}
