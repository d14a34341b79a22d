//! Whether users and peers are verified here by the authorities that the kube-apiserver has. Pure.
//!
//! It tells its own in the ConfigMap of which belief is judged too. What apiservers were started with before stays there,
//! so a difference means little; nothing in common means that all of them are refused at one of the two.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rustls::pki_types::CertificateDer;
use serde::Deserialize;

use crate::config::Config;
use crate::config::pem::{self, have_common_authority};
use crate::doctor::finding::Finding;
use crate::tls::reading::Reading;

const USERS: &str = "client-ca-file";
const PEERS: &str = "requestheader-client-ca-file";

/// Authorities in PEM, by their names in the ConfigMap.
#[derive(Debug, Default, Deserialize)]
pub struct Told {
    #[serde(default)]
    data: BTreeMap<String, String>,
}

impl Told {
    /// From a ConfigMap; nothing where it is none.
    pub fn read(body: &[u8]) -> Self {
        serde_json::from_slice(body).unwrap_or_default()
    }

    fn of(&self, field: &str) -> Option<Vec<CertificateDer<'static>>> {
        pem::parse_certs(self.data.get(field)?.as_bytes()).ok()
    }
}

/// What is to be said of them, if anything.
pub fn findings(about: &str, config: &Config, reading: &Reading<'_>, told: &Told) -> Vec<Finding> {
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
        let (ours, theirs) = (reading.authorities(file).ok()?, told.of(field)?);
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
