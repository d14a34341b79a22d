//! Reads what is stored in etcd, and finds out what this proxy may do there. Nothing is written: write permission is
//! tested with transactions whose condition never holds; etcd checks permissions before conditions.

use std::time::{Duration, Instant};

use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp};

use crate::cli::doctor::concurrent::join_all;
use crate::cli::inventory::Inventory;
use crate::cluster::connector::{Connector, within};
use crate::cluster::etcd;
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::cluster::source::{EtcdItem, SourceError};
use crate::config::{BareServersMode, Config};

/// A key name below each prefix that nothing writes: neither a server ID nor a Lease can have it.
pub const UNUSED_NAME: &str = ".check";
/// Most other prefixes that are named.
const MAX_OTHER_PREFIXES: usize = 4;
/// For everything below one prefix.
const LISTING_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub struct EtcdInventory {
    /// Prefixes that this proxy may not read and must.
    pub unreadable: Vec<String>,
    /// What tells only of apiservers without a proxy: it works without.
    pub unreadable_of_bare_servers: Vec<String>,
    /// The key with the header names by which apiservers recognise users: they are asked for it.
    pub unreadable_header_names: Vec<String>,
    /// Prefixes that this proxy may not write.
    pub unwritable: Vec<String>,
    /// Requests that failed for other reasons.
    pub failed: Vec<FailedRequests>,
    /// Other prefixes that have keys, if kube-apiservers store nothing below `etcd.prefix`.
    pub other_prefixes: Vec<String>,
    /// What could be read.
    pub stored: Inventory,
}

/// Requests that failed for the same reason, other than permissions.
#[derive(Debug)]
pub struct FailedRequests {
    /// `read` or `write`.
    pub to: &'static str,
    /// The prefixes.
    pub below: Vec<String>,
    /// etcd's message.
    pub why: String,
}

/// Reads everything over `connector`, which has one endpoint.
pub async fn read(config: &Config, connector: &Connector, client: &Client) -> EtcdInventory {
    let keys = EtcdKeys::new(&config.etcd.prefix, &config.identity.lease_namespaces);
    let mut inventory = EtcdInventory::default();
    let ignored = config.rerouting.bare_servers == BareServersMode::Ignore;
    let topics = keys.topics();
    let topics = topics.filter(|topic| !(ignored && topic.is_of_bare_servers()));
    let lists = topics.map(|topic| {
        let (below, connector) = (keys.of(topic), connector.clone());
        async move {
            let listing = list(connector, topic, &below).await;
            (topic, below, listing)
        }
    });
    let ours = [
        Topic::Servers,
        Topic::Live,
        Topic::Claims,
        Topic::PeerEndpoints,
    ];
    let writes = ours.map(|topic| {
        let (below, client) = (keys.of(topic), client.clone());
        async move {
            let written = try_to_write(client, &below).await;
            (below, written)
        }
    });
    let (lists, writes) = tokio::join!(join_all(lists), join_all(writes));
    for (topic, below, listing) in lists {
        match listing {
            Ok(items) => inventory.stored.take(topic, &below, &items),
            Err(error) if error.is_denied() && topic.is_of_bare_servers() => {
                inventory.unreadable_of_bare_servers.push(below);
            }
            Err(error) if error.is_denied() && topic == Topic::HeaderNames => {
                inventory.unreadable_header_names.push(below);
            }
            Err(error) if error.is_denied() => inventory.unreadable.push(below),
            Err(error) => inventory.failed("read", below, &error),
        }
    }
    for (below, written) in writes {
        match written {
            Ok(()) => {}
            Err(error) if error.is_denied() => inventory.unwritable.push(below),
            Err(error) => inventory.failed("write", below, &error),
        }
    }
    if inventory.stored.has_apiserver_keys == Some(false) {
        inventory.other_prefixes = other_prefixes(client.clone()).await;
    }
    inventory
}

impl EtcdInventory {
    fn failed(&mut self, to: &'static str, below: String, error: &SourceError) {
        let why = error.said();
        let mut known = self.failed.iter_mut();
        match known.find(|failed| failed.to == to && failed.why == why) {
            Some(failed) => failed.below.push(below),
            None => self.failed.push(FailedRequests {
                to,
                below: vec![below],
                why,
            }),
        }
    }
}

async fn list(
    mut connector: Connector,
    topic: Topic,
    below: &str,
) -> Result<Vec<EtcdItem>, SourceError> {
    let keys_only = matches!(
        topic,
        Topic::StorageVersions | Topic::Definitions | Topic::ApiServices | Topic::Claims
    );
    let listing = async {
        let client = connector.connect().await?;
        let listing = etcd::list(client.kv_client(), below, keys_only).await?;
        Ok(listing.items)
    };
    let listing = tokio::time::timeout(LISTING_TIMEOUT, listing).await;
    listing.unwrap_or(Err(SourceError::Timeout))
}

/// The condition never holds: no key has the highest possible revision. kine understands this form too.
async fn try_to_write(mut client: Client, below: &str) -> Result<(), SourceError> {
    let key = format!("{below}{UNUSED_NAME}");
    let never = Compare::mod_revision(key.as_str(), CompareOp::Equal, i64::MAX);
    let txn = Txn::new()
        .when([never])
        .and_then([TxnOp::put(key.as_str(), "", None)])
        .or_else([TxnOp::get(key.as_str(), None)]);
    within(client.txn(txn)).await?;
    Ok(())
}

/// First path segments of some keys that are not the proxy's; empty without permission.
async fn other_prefixes(mut client: Client) -> Vec<String> {
    let end = Instant::now() + Duration::from_secs(2);
    let mut prefixes: Vec<String> = Vec::new();
    let mut from = vec![0];
    while prefixes.len() < MAX_OTHER_PREFIXES && Instant::now() < end {
        let options = GetOptions::new()
            .with_from_key()
            .with_limit(1)
            .with_keys_only();
        let Ok(answer) = within(client.get(from, Some(options))).await else {
            break;
        };
        let Some(key) = answer.kvs().first().map(etcd_client::KeyValue::key) else {
            break;
        };
        let length = key.iter().skip(1).position(|byte| *byte == b'/');
        let prefix: Vec<u8> = key
            .iter()
            .copied()
            .take(length.map_or(key.len(), |at| at + 1))
            .collect();
        if !prefix.starts_with(b"/kube-interop-proxy") {
            prefixes.push(String::from_utf8_lossy(&prefix).into_owned());
        }
        // After every key that begins with this segment and a slash.
        from = [prefix, b"0".to_vec()].concat();
    }
    prefixes
}
