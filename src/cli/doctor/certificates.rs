//! Findings about certificate files: how long they are valid, and whether peers will accept them. Pure: the files were read
//! before.
//!
//! Files that cannot be read or used are problems of the configuration, not findings of this module.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::CertificateError;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

use super::finding::Finding;
use super::told;
use crate::config::Config;
use crate::request::caller::{Authenticator, Caller, ClientConnection};
use crate::tls::files::{FileSnapshot, TlsFile};
use crate::tls::rotation::stage;
use crate::tls::serving::certificate_for;
use crate::tls::store::PROVIDER;
use crate::tls::verify::ClientCas;
use crate::x509::pem;

/// `now`: the time for which the files are checked.
pub fn findings(config: &Config, reading: &FileSnapshot<'_>, now: SystemTime) -> Vec<Finding> {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut checked = BTreeSet::new();
    let files = reading.files.iter();
    let once = files.filter(|file| !file.is_key() && checked.insert(&file.path));
    let validity = once.filter_map(|file| validity(reading, file, now));
    let client = presented(config, reading, now);
    let serving = served(config, reading, now);
    validity.chain(client).chain(serving).collect()
}

/// A file is named once, with all its keys.
fn about(reading: &FileSnapshot<'_>, path: &Path) -> String {
    let naming = reading.files.iter().filter(|file| file.path == path);
    let keys: Vec<_> = naming.map(|file| &*file.key).collect();
    format!("certificate {} ({})", path.display(), keys.join(", "))
}

/// In a bundle, one expired authority among others does no harm.
fn validity(reading: &FileSnapshot<'_>, file: &TlsFile, now: Duration) -> Option<Finding> {
    let certificates = reading.certificates(&file.path).ok()?;
    let parsed = certificates.iter().filter_map(pem::parsed);
    let times: Vec<_> = parsed.map(|it| it.validity().clone()).collect();
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let bundle = file.key.to_ascii_lowercase().ends_with("cafile");
    let ends = times.iter().map(|it| it.not_after);
    let left = ends.clone().filter(|end| bundle && end.timestamp() >= now);
    let first = left.min().or(ends.min())?;
    let last = times.iter().map(|it| it.not_before).max()?;
    let about = about(reading, &file.path);
    Some(match stage(first.timestamp() - now) {
        _ if first.timestamp() < now => told::expired(about, first),
        _ if last.timestamp() > now => told::not_yet_valid(about, last),
        0 => told::valid(about, first),
        _ => told::expires(about, first),
    })
}

/// Whether peers with this configuration accept the proxy client certificate as a proxy's.
fn presented(config: &Config, reading: &FileSnapshot<'_>, now: Duration) -> Option<Finding> {
    let path = &config.api_server.proxy_client.cert_file;
    let serving = &config.serving;
    let chain = reading.certificates(path).ok()?;
    let ca_file = &serving.request_header_client_ca_file;
    let peers = reading.client_roots(ca_file).ok()?;
    let now = UNIX_EPOCH + nearest_valid_time(&chain, now)?;
    let names = &serving.request_header_allowed_names;
    let authenticator = Authenticator {
        generation: 0,
        cas: ClientCas {
            users: peers.clone(),
            peers,
        },
        allowed_names: names.clone(),
    };
    let connection = ClientConnection::new(Ipv4Addr::LOCALHOST.into(), 0, chain);
    let accepted = matches!(authenticator.caller(&connection, false, now), Caller::Peer);
    (!accepted).then(|| told::peers_reject(about(reading, path), names.join(", ")))
}

/// Whether peers with this configuration accept the serving certificate.
fn served(config: &Config, reading: &FileSnapshot<'_>, now: Duration) -> Option<Finding> {
    let peer = &config.peer;
    let name = &peer.server_name;
    let expected = ServerName::try_from(name.as_str()).ok()?;
    let sent = matches!(expected, ServerName::DnsName(_)).then_some(name.as_str());
    let address = peer.advertise_address.ip();
    let chosen = certificate_for(&config.serving, reading, sent, address).ok()?;
    let chain = reading.certificates(&chosen.cert_file).ok()?;
    let roots = Arc::new(reading.roots(&peer.ca_file).ok()?);
    let (leaf, intermediates) = chain.split_first()?;
    let about = about(reading, &chosen.cert_file);
    let now = UnixTime::since_unix_epoch(nearest_valid_time(&chain, now)?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, PROVIDER.clone());
    let verifier = verifier.build().ok()?;
    match verifier.verify_server_cert(leaf, intermediates, &expected, &[], now) {
        Ok(_) => None,
        Err(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => Some(told::lacks_name(about, name)),
        Err(_) => Some(told::peers_refuse(about)),
    }
}

/// The time nearest to now at which the certificate is valid: [`validity`] reports if it is not.
fn nearest_valid_time(chain: &[CertificateDer<'_>], now: Duration) -> Option<Duration> {
    let validity = crate::tls::verify::validity(chain.first()?)?;
    let now = now.as_secs().clamp(*validity.start(), *validity.end());
    Some(Duration::from_secs(now))
}
