//! What is stored in etcd, decoded. Pure.
//!
//! Each prefix is read on its own: etcd refuses a whole transaction if one of its ranges may not be read, and what could be
//! read of the others is shown all the same.

use std::net::IpAddr;

use crate::cluster::bare::usable_address;
use crate::cluster::codec::{self, Lease, PeerEndpoint};
use crate::cluster::json;
use crate::cluster::keys::Topic;
use crate::cluster::record::{LiveKey, Record};
use crate::cluster::source::EtcdItem;

#[derive(Debug, Default)]
pub struct Inventory {
    /// Whether kube-apiservers store something below `etcd.prefix`; `None`: unknown.
    pub has_apiserver_keys: Option<bool>,
    /// Keys whose values cannot be decoded, and why.
    pub undecodable: Vec<(String, String)>,
    /// Records of servers, by server ID.
    pub records: Vec<(String, Record)>,
    /// Live keys of proxies, by server ID.
    pub lives: Vec<(String, LiveKey)>,
    /// Entries below `peerserverleases`, by server ID.
    pub entries: Vec<(String, PeerEndpoint)>,
    /// `<server ID>/<address>` of proxies that may not use their ID.
    pub claims: Vec<String>,
    /// Addresses of living apiservers, as keys below `masterleases/` name them.
    pub advertised: Vec<IpAddr>,
    /// Leases of all namespaces, by name.
    pub leases: Vec<(String, Lease)>,
}

impl Inventory {
    /// `items`: everything below the prefix `below` of the topic.
    pub fn take(&mut self, topic: Topic, below: &str, items: &[EtcdItem]) {
        let bad = &mut self.undecodable;
        match topic {
            Topic::Servers => self.records = decoded(below, items, bad, json::read),
            Topic::Live => self.lives = decoded(below, items, bad, json::read),
            Topic::PeerEndpoints => self.entries = decoded(below, items, bad, codec::endpoints),
            Topic::Leases(_) => self.leases.extend(decoded(below, items, bad, codec::lease)),
            Topic::Claims => self.claims = items.iter().map(|item| item.key.clone()).collect(),
            // Every kube-apiserver writes APIServices, and nothing else does.
            Topic::ApiServices => self.has_apiserver_keys = Some(!items.is_empty()),
            Topic::MasterLeases => {
                for item in items {
                    match usable_address(&item.key, true) {
                        Some(ip) => self.advertised.push(ip),
                        None => bad.push((
                            format!("{below}{}", item.key),
                            "it names no address that a server can have".to_owned(),
                        )),
                    }
                }
            }
            Topic::HeaderNames => {
                let read = |item: &EtcdItem| codec::header_names(&item.value).err();
                let error = items.first().and_then(read);
                bad.extend(error.map(|error| (below.to_owned(), error.to_string())));
            }
            Topic::StorageVersions | Topic::Definitions => {}
        }
    }
}

fn decoded<T, E: std::error::Error>(
    below: &str,
    items: &[EtcdItem],
    bad: &mut Vec<(String, String)>,
    decode: impl Fn(&[u8]) -> Result<T, E>,
) -> Vec<(String, T)> {
    let mut good = Vec::new();
    for item in items {
        match decode(&item.value) {
            Ok(value) => good.push((item.key.clone(), value)),
            Err(error) => bad.push((format!("{below}{}", item.key), error.to_string())),
        }
    }
    good
}
