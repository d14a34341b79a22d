//! Findings about certificate files: how long they are valid, and whether peers will accept them. Pure: the files were read
//! before.
//!
//! Files that cannot be read or used are problems of the configuration, not findings of this module.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

use super::finding::Finding;
use crate::config::Config;
use crate::request::caller::{Authenticator, Caller, ClientConnection};
use crate::tls::error::TlsError;
use crate::tls::expiry::ExpiryStage;
use crate::tls::files::{FileContent, FileSnapshot, TlsFile};
use crate::tls::serving::{ServingTls, certificate_for};
use crate::tls::store::provider;
use crate::tls::verify::ClientCas;
use crate::x509::PresentedChain;
use crate::x509::pem;

pub fn findings(
    config: &Config,
    files: &[TlsFile],
    reading: &FileSnapshot<'_>,
    now: SystemTime,
) -> Vec<Finding> {
    let now = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let mut checked: Vec<&Path> = Vec::new();
    let mut findings = Vec::new();
    for file in files {
        let path = file.path.as_path();
        if file.content == FileContent::Key || checked.contains(&path) {
            continue;
        }
        checked.push(path);
        if let Ok(certificates) = reading.certificates(path) {
            let about = about(files, path);
            findings.extend(validity(&about, is_bundle(file), &certificates, now));
        }
    }
    findings.extend(client_certificate(config, files, reading, now));
    findings.extend(serving_certificate(config, files, reading, now));
    findings.extend(handshake(config, reading));
    findings
}

/// Files that are usable each, and not together, or not quite.
fn handshake(config: &Config, reading: &FileSnapshot<'_>) -> Option<Finding> {
    const ABOUT: &str = "TLS of clients";
    match ServingTls::read(&config.serving, reading) {
        Err(error @ TlsError::Handshake(_)) => {
            Some(Finding::problem(ABOUT, error, "use shorter files"))
        }
        // Reported with the file.
        Err(_) => None,
        Ok((tls, _)) => tls
            .warning()
            .map(|warning| Finding::warning(ABOUT, warning, "remove CAs that sign no clients")),
    }
}

/// A file is named once, with all its keys.
fn about(files: &[TlsFile], path: &Path) -> String {
    let naming = files.iter().filter(|file| file.path == path);
    let keys: Vec<_> = naming.map(|file| &*file.key).collect();
    format!("certificate {} ({})", path.display(), keys.join(", "))
}

fn is_bundle(file: &TlsFile) -> bool {
    file.key.to_ascii_lowercase().ends_with("cafile")
}

/// In a bundle, one expired authority among others does no harm.
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
    Some(match ExpiryStage::of(first.not_after.timestamp() - now) {
        ExpiryStage::Far => Finding::ok(about, format!("valid {until}")),
        _ => Finding::warning(about, format!("about to expire, valid {until} only"), RENEW),
    })
}

/// Whether peers with this configuration accept the proxy client certificate as a proxy's.
fn client_certificate(
    config: &Config,
    files: &[TlsFile],
    reading: &FileSnapshot<'_>,
    now: Duration,
) -> Option<Finding> {
    let path = &config.api_server.proxy_client.cert_file;
    let serving = &config.serving;
    let chain = reading.certificates(path).ok()?;
    let users = reading.client_authorities(&serving.client_ca_file).ok()?;
    let peers = reading
        .client_authorities(&serving.request_header_client_ca_file)
        .ok()?;
    let cas = ClientCas::new(&users, &peers).ok()?;
    let now = nearest_valid_time(&chain, now)?;
    let presented = PresentedChain::parse(&chain);
    let signed = presented.is_some_and(|chain| cas.is_peer(&chain, now.as_secs()));
    let names = &serving.request_header_allowed_names;
    let judge = Authenticator {
        generation: 0,
        cas,
        allowed_names: names.clone(),
    };
    let connection = ClientConnection::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0, chain);
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

/// Whether peers with this configuration accept the serving certificate.
fn serving_certificate(
    config: &Config,
    files: &[TlsFile],
    reading: &FileSnapshot<'_>,
    now: Duration,
) -> Option<Finding> {
    let name = &config.peer.server_name;
    let expected = ServerName::try_from(name.as_str()).ok()?;
    let sent = matches!(expected, ServerName::DnsName(_)).then_some(name.as_str());
    let address = config.peer.advertise_address.ip();
    let chosen = certificate_for(&config.serving, reading, sent, address).ok()?;
    let path = &chosen.cert_file;
    let chain = reading.certificates(path).ok()?;
    let authorities = reading.authorities(&config.peer.ca_file).ok()?;
    let (leaf, intermediates) = chain.split_first()?;
    let leaf = EndEntityCert::try_from(leaf).ok()?;
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
    let now = UnixTime::since_unix_epoch(nearest_valid_time(&chain, now)?);
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

/// The time nearest to `now` at which the certificate is valid: [`validity`] reports if it is not.
fn nearest_valid_time(chain: &[CertificateDer<'_>], now: Duration) -> Option<Duration> {
    let validity = crate::tls::verify::validity(chain.first()?)?;
    let now = now.as_secs().clamp(*validity.start(), *validity.end());
    Some(Duration::from_secs(now))
}
