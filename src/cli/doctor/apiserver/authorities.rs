//! Compares the proxy's client CAs with those that the kube-apiserver publishes in the ConfigMap
//! `extension-apiserver-authentication`. Pure.
//!
//! The ConfigMap also keeps CAs from earlier starts, so a difference means little. Without any common CA, one of the two
//! rejects every client.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rustls::pki_types::CertificateDer;
use serde::Deserialize;

use crate::cli::doctor::finding::Finding;
use crate::config::Config;
use crate::tls::files::FileSnapshot;
use crate::x509::pem::{self, have_common_authority};

const USERS: &str = "client-ca-file";
const PEERS: &str = "requestheader-client-ca-file";

/// Data of the ConfigMap: CAs in PEM.
#[derive(Debug, Default, Deserialize)]
pub struct PublishedAuthorities {
    #[serde(default)]
    data: BTreeMap<String, String>,
}

impl PublishedAuthorities {
    /// Empty if `body` is not a ConfigMap.
    pub fn read(body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_default()
    }

    fn of(&self, field: &str) -> Option<Vec<CertificateDer<'static>>> {
        pem::parse_certs(self.data.get(field)?.as_bytes()).ok()
    }
}

pub fn findings(
    about: &str,
    config: &Config,
    reading: &FileSnapshot<'_>,
    published: &PublishedAuthorities,
) -> Vec<Finding> {
    let serving = &config.serving;
    let users = (
        "serving.clientCAFile",
        &serving.client_ca_file,
        USERS,
        "users' certificates",
    );
    let peers = (
        "serving.requestHeaderClientCAFile",
        &serving.request_header_client_ca_file,
        PEERS,
        "certificates of proxies",
    );
    let differs = |(key, file, field, whose): (&str, &PathBuf, &str, &str)| {
        let (ours, theirs) = (reading.client_authorities(file).ok()?, published.of(field)?);
        (!have_common_authority(&ours, &theirs)).then(|| {
            Finding::problem(
                about,
                format!("none of its authorities for {whose} (--{field}) is in {key}"),
                format!("put what --{field} names into {key}"),
            )
        })
    };
    [users, peers].into_iter().filter_map(differs).collect()
}
