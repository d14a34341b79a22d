//! What is stored in etcd, and what this proxy may do there. Nothing is written: write permission is tested with
//! transactions whose condition never holds; etcd checks permissions before conditions.
//!
//! Each prefix is read on its own: etcd refuses a whole transaction if one of its ranges may not be read, and what could be
//! read of the others is shown all the same.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use futures_util::future::join_all;
use tokio::time::timeout;

use super::finding::{Finding, Level};
use super::told;
use crate::cli::etcd::decoded;
use crate::cluster::bare::usable_address;
use crate::cluster::codec::{self, PeerEndpoint};
use crate::cluster::connector::within;
use crate::cluster::etcd;
use crate::cluster::json;
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::cluster::record::{LiveKey, Record};
use crate::cluster::source::{EtcdItem, SourceError};
use crate::config::{BareServersMode, Config};

/// A key name below each prefix that nothing writes: neither a server ID nor a Lease can have it.
pub const UNUSED_NAME: &str = ".check";
const PERMISSIONS: &str = "etcd permissions";

/// For everything below one prefix.
const LISTING_TIMEOUT: Duration = Duration::from_secs(5);

/// What could be read and decoded.
#[derive(Debug, Default)]
pub struct Inventory {
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
    /// Whether kube-apiservers store something below `etcd.prefix`; `None`: unknown.
    pub has_apiserver_keys: Option<bool>,
}

pub async fn check(config: &Config, client: &Client) -> (Vec<Finding>, Inventory) {
    use Topic::{Claims, Draining, Live, PeerEndpoints, Servers};
    // What proxies write.
    const OURS: [Topic; 5] = [Servers, Live, Draining, Claims, PeerEndpoints];
    let keys = EtcdKeys::new(&config.etcd.prefix, &config.identity.lease_namespaces);
    let ignored = config.rerouting.bare_servers == BareServersMode::Ignore;
    let topics = keys.topics();
    let topics = topics.filter(|topic| !(ignored && *topic == Topic::MasterLeases));
    let lists = topics.map(async |topic| (topic, list(client, topic, &keys.of(topic)).await));
    let writes = OURS.map(async |topic| (topic, try_to_write(client, &keys.of(topic)).await));
    let (lists, writes) = tokio::join!(join_all(lists), join_all(writes));
    let mut inventory = Inventory::default();
    let mut failed = Vec::new();
    for (topic, listing) in lists {
        match listing {
            Ok(items) => inventory.take(topic, &items),
            Err(error) => failed.push(("read", topic, error)),
        }
    }
    for (topic, written) in writes {
        failed.extend(written.err().map(|error| ("write", topic, error)));
    }
    let mut findings = requests(&keys, &failed);
    if inventory.has_apiserver_keys == Some(false) {
        findings.push(told::other_prefix("etcd.prefix", &config.etcd.prefix));
    }
    (findings, inventory)
}

/// One finding for all prefixes of which the same is to be said.
fn requests(keys: &EtcdKeys, failed: &[(&'static str, Topic, SourceError)]) -> Vec<Finding> {
    let mut alike: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for (to, topic, error) in failed {
        let why = (!error.is_denied()).then(|| error.said());
        let optional = why.is_none() && topic.is_optional();
        let below = alike.entry((*to, optional, why)).or_default();
        below.push(keys.of(*topic));
    }
    let told = alike.into_iter().map(|((to, optional, why), below)| {
        let below = below.join(", ");
        match why {
            Some(why) => told::failed_request("etcd requests", to, below, why),
            None if optional => told::optional_denied(PERMISSIONS, below),
            None => told::denied(PERMISSIONS, to, below),
        }
    });
    let mut findings: Vec<_> = told.collect();
    if findings.iter().all(|it| it.level < Level::Problem) {
        findings.push(told::permitted(PERMISSIONS));
    }
    findings
}

async fn list(client: &Client, topic: Topic, below: &str) -> Result<Vec<EtcdItem>, SourceError> {
    use Topic::{ApiServices, Claims, Definitions, StorageVersions};
    let keys_only = [StorageVersions, Definitions, ApiServices, Claims].contains(&topic);
    let listing = etcd::list(client.kv_client(), below, keys_only);
    let listing = timeout(LISTING_TIMEOUT, listing).await;
    Ok(listing.map_err(|_| SourceError::Timeout)??.items)
}

/// The condition never holds: no key has the highest possible revision. kine understands this form too.
async fn try_to_write(client: &Client, below: &str) -> Result<(), SourceError> {
    let key = format!("{below}{UNUSED_NAME}");
    let never = Compare::mod_revision(key.as_str(), CompareOp::Equal, i64::MAX);
    let txn = Txn::new()
        .when([never])
        .and_then([TxnOp::put(key.as_str(), "", None)])
        .or_else([TxnOp::get(key.as_str(), None)]);
    within(client.kv_client().txn(txn)).await.map(drop)
}

impl Inventory {
    /// `items`: everything below the prefix of the topic.
    fn take(&mut self, topic: Topic, items: &[EtcdItem]) {
        match topic {
            Topic::Servers => self.records = decoded(items, json::read).collect(),
            Topic::Live => self.lives = decoded(items, json::read).collect(),
            Topic::PeerEndpoints => self.entries = decoded(items, codec::endpoints).collect(),
            Topic::Claims => self.claims = items.iter().map(|item| item.key.clone()).collect(),
            // Every kube-apiserver writes APIServices, and nothing else does.
            Topic::ApiServices => self.has_apiserver_keys = Some(!items.is_empty()),
            Topic::MasterLeases => {
                let addresses = items.iter().map(|item| usable_address(&item.key, true));
                self.advertised = addresses.flatten().collect();
            }
            // Only whether they may be read counts.
            Topic::Draining
            | Topic::HeaderNames
            | Topic::Leases(_)
            | Topic::StorageVersions
            | Topic::Definitions => {}
        }
    }
}
