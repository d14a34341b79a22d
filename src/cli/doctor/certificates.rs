//! Findings about certificate files: how long they are valid, and whether peers will accept them. Pure: the files were read
//! before.
//!
//! Files that cannot be read or used are problems of the configuration, not findings of this module.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::certificate::Validity;

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

/// The files, and when they are judged.
struct Judge<'a> {
    config: &'a Config,
    files: &'a [TlsFile],
    reading: &'a FileSnapshot<'a>,
    now: Duration,
}

pub fn findings(
    config: &Config,
    files: &[TlsFile],
    reading: &FileSnapshot<'_>,
    now: SystemTime,
) -> Vec<Finding> {
    let judge = Judge {
        config,
        files,
        reading,
        now: now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default(),
    };
    let mut checked = BTreeSet::new();
    let certificates = files.iter().filter(|file| {
        let is_certificate = file.content == FileContent::Certificates;
        is_certificate && checked.insert(&file.path)
    });
    let validity = certificates.filter_map(|file| judge.validity(file));
    let uses = [
        judge.client_certificate(),
        judge.serving_certificate(),
        judge.handshake(),
    ];
    validity.chain(uses.into_iter().flatten()).collect()
}

impl Judge<'_> {
    /// A file is named once, with all its keys.
    fn about(&self, path: &Path) -> String {
        let naming = self.files.iter().filter(|file| file.path == path);
        let keys: Vec<_> = naming.map(|file| &*file.key).collect();
        format!("certificate {} ({})", path.display(), keys.join(", "))
    }

    /// In a bundle, one expired authority among others does no harm.
    fn validity(&self, file: &TlsFile) -> Option<Finding> {
        const RENEW: &str = "renew it";
        let certificates = self.reading.certificates(&file.path).ok()?;
        let parsed = certificates.iter().filter_map(pem::parsed);
        let times: Vec<_> = parsed.map(|it| it.validity().clone()).collect();
        let first = times.iter().map(|it| it.not_after).min()?;
        let last = times.iter().map(|it| it.not_before).max()?;
        let about = self.about(&file.path);
        let now = i64::try_from(self.now.as_secs()).unwrap_or(i64::MAX);
        let over = |validity: &&Validity| validity.not_after.timestamp() < now;
        let (count, all) = (times.iter().filter(over).count(), times.len());
        let bundle = file.key.to_ascii_lowercase().ends_with("cafile");
        Some(match ExpiryStage::of(first.timestamp() - now) {
            _ if count > 0 && bundle && count < all => {
                Finding::info(about, format!("{count} of {all} authorities have expired"))
            }
            _ if count > 0 => Finding::problem(about, format!("expired on {first}"), RENEW),
            _ if last.timestamp() > now => Finding::problem(
                about,
                format!("not valid before {last}"),
                "see whether this machine's clock is right",
            ),
            ExpiryStage::Far => Finding::ok(about, format!("valid until {first}")),
            _ => {
                let what = format!("about to expire, valid until {first} only");
                Finding::warning(about, what, RENEW)
            }
        })
    }

    /// Whether peers with this configuration accept the proxy client certificate as a proxy's.
    fn client_certificate(&self) -> Option<Finding> {
        let path = &self.config.api_server.proxy_client.cert_file;
        let serving = &self.config.serving;
        let authorities = |file| self.reading.client_authorities(file).ok();
        let chain = self.reading.certificates(path).ok()?;
        let users = authorities(&serving.client_ca_file)?;
        let peers = authorities(&serving.request_header_client_ca_file)?;
        let cas = ClientCas::new(&users, &peers).ok()?;
        let now = self.nearest_valid_time(&chain)?;
        let presented = PresentedChain::parse(&chain);
        let signed = presented.is_some_and(|chain| cas.is_peer(&chain, now.as_secs()));
        let names = &serving.request_header_allowed_names;
        let judge = Authenticator {
            generation: 0,
            cas,
            allowed_names: names.clone(),
        };
        let connection = ClientConnection::new(Ipv4Addr::LOCALHOST.into(), 0, chain);
        let about = self.about(path);
        let caller = judge.caller(&connection, false, SystemTime::UNIX_EPOCH + now);
        Some(match caller {
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
        })
    }

    /// Whether peers with this configuration accept the serving certificate.
    fn serving_certificate(&self) -> Option<Finding> {
        let peer = &self.config.peer;
        let name = &peer.server_name;
        let expected = ServerName::try_from(name.as_str()).ok()?;
        let sent = matches!(expected, ServerName::DnsName(_)).then_some(name.as_str());
        let address = peer.advertise_address.ip();
        let chosen = certificate_for(&self.config.serving, self.reading, sent, address).ok()?;
        let chain = self.reading.certificates(&chosen.cert_file).ok()?;
        let authorities = self.reading.authorities(&peer.ca_file).ok()?;
        let (leaf, intermediates) = chain.split_first()?;
        let leaf = EndEntityCert::try_from(leaf).ok()?;
        let about = self.about(&chosen.cert_file);
        if leaf.verify_is_valid_for_subject_name(&expected).is_err() {
            return Some(Finding::warning(
                about,
                format!(
                    "it lacks the name {name}, which peers verify that have this file's peer.serverName"
                ),
                format!("have it issued with the name {name} too"),
            ));
        }
        let now = UnixTime::since_unix_epoch(self.nearest_valid_time(&chain)?);
        let anchors = authorities
            .iter()
            .filter_map(|ca| anchor_from_trusted_cert(ca).ok());
        let anchors: Vec<_> = anchors.map(|anchor| anchor.to_owned()).collect();
        let (algorithms, usage) = (
            provider().signature_verification_algorithms.all,
            KeyUsage::server_auth(),
        );
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

    /// Files that are usable each, and not together, or not quite. Other errors are problems of the configuration.
    fn handshake(&self) -> Option<Finding> {
        const ABOUT: &str = "TLS of clients";
        match ServingTls::read(&self.config.serving, self.reading) {
            Err(error @ TlsError::Handshake(_)) => {
                Some(Finding::problem(ABOUT, error, "use shorter files"))
            }
            Err(_) => None,
            Ok((tls, _)) => tls
                .warning()
                .map(|warning| Finding::warning(ABOUT, warning, "remove CAs that sign no clients")),
        }
    }

    /// The time nearest to now at which the certificate is valid: [`Self::validity`] reports if it is not.
    fn nearest_valid_time(&self, chain: &[CertificateDer<'_>]) -> Option<Duration> {
        let validity = crate::tls::verify::validity(chain.first()?)?;
        let now = self.now.as_secs();
        let now = now.clamp(*validity.start(), *validity.end());
        Some(Duration::from_secs(now))
    }
}
