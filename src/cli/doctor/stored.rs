//! What is stored in etcd, and what this proxy may do there. Nothing is written: write permission is tested with
//! transactions whose condition never holds; etcd checks permissions before conditions.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp};
use futures_util::future::join_all;
use tokio::time::timeout;

use super::finding::{Finding, Level};
use super::inventory::Inventory;
use super::told;
use crate::cluster::connector::within;
use crate::cluster::etcd;
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::cluster::source::{EtcdItem, SourceError};
use crate::config::{BareServersMode, Config, EtcdConfig};

/// A key name below each prefix that nothing writes: neither a server ID nor a Lease can have it.
pub const UNUSED_NAME: &str = ".check";
pub const NO_SPACE: &str =
    "compact and defragment etcd, or raise its --quota-backend-bytes, then etcdctl alarm disarm";
const PERMISSIONS: &str = "etcd permissions";
/// What proxies write.
const OURS: [Topic; 4] = [
    Topic::Servers,
    Topic::Live,
    Topic::Claims,
    Topic::PeerEndpoints,
];
/// Most other prefixes that are named.
const MAX_OTHER_PREFIXES: usize = 4;
/// For everything below one prefix.
const LISTING_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub struct Stored {
    /// Requests that failed, and below which prefixes.
    failed: BTreeMap<FailedRequest, Vec<String>>,
    /// Other prefixes that have keys, if kube-apiservers store nothing below `etcd.prefix`.
    other_prefixes: Vec<String>,
    /// What could be read.
    pub values: Inventory,
}

/// Requests of which the same is to be said.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FailedRequest {
    /// `read` or `write`.
    to: &'static str,
    denied: bool,
    /// What the proxy works without, and may not read.
    optional: Option<Topic>,
    why: String,
}

pub async fn read(config: &Config, client: &Client) -> Stored {
    let keys = EtcdKeys::new(&config.etcd.prefix, &config.identity.lease_namespaces);
    let ignored = config.rerouting.bare_servers == BareServersMode::Ignore;
    let topics = keys.topics();
    let topics = topics.filter(|topic| !(ignored && topic.is_of_bare_servers()));
    let lists = topics.map(async |topic| (topic, list(client, topic, &keys.of(topic)).await));
    let writes = OURS.map(async |topic| (topic, try_to_write(client, &keys.of(topic)).await));
    let (lists, writes) = tokio::join!(join_all(lists), join_all(writes));
    let mut stored = Stored::default();
    for (topic, listing) in lists {
        let below = keys.of(topic);
        match listing {
            Ok(items) => stored.values.take(topic, &below, &items),
            Err(error) => stored.failed("read", topic, below, &error),
        }
    }
    for (topic, written) in writes {
        if let Err(error) = written {
            stored.failed("write", topic, keys.of(topic), &error);
        }
    }
    if stored.values.has_apiserver_keys == Some(false) {
        stored.other_prefixes = other_prefixes(client.clone()).await;
    }
    stored
}

impl Stored {
    fn failed(&mut self, to: &'static str, topic: Topic, below: String, error: &SourceError) {
        let denied = error.is_denied();
        let request = FailedRequest {
            to,
            denied,
            optional: (denied && topic.is_optional()).then_some(topic),
            why: error.said(),
        };
        self.failed.entry(request).or_default().push(below);
    }
}

/// `user`: common name of the client certificate.
pub fn findings(config: &EtcdConfig, user: Option<&str>, stored: &Stored) -> Vec<Finding> {
    let user = match user {
        Some(user) => format!("user {user} (etcd.certFile)"),
        None => "this proxy".to_owned(),
    };
    let failed = stored.failed.iter();
    let mut findings: Vec<_> = failed
        .map(|(request, below)| request.told(&user, &below.join(", ")))
        .collect();
    if findings.iter().all(|it| it.level < Level::Problem) {
        findings.push(told::permitted(PERMISSIONS, user));
    }
    let hint = || match stored.other_prefixes.as_slice() {
        [] => "there is nothing else in this etcd either".to_owned(),
        places => format!("there are keys below {}", places.join(", ")),
    };
    let prefix = &config.prefix;
    findings.extend(stored.values.has_apiserver_keys.map(|some| match some {
        true => told::prefix("etcd.prefix", prefix),
        false => told::other_prefix("etcd.prefix", prefix, hint()),
    }));
    let undecodable = stored.values.undecodable.iter();
    findings
        .extend(undecodable.map(|(key, why)| told::undecodable(format!("etcd key {key}"), why)));
    findings
}

impl FailedRequest {
    fn told(&self, user: &str, below: &str) -> Finding {
        match self.optional {
            Some(Topic::MasterLeases) => told::bare_servers_denied(PERMISSIONS, user, below),
            Some(_) => told::header_names_denied(PERMISSIONS, user, below),
            None if self.denied => told::denied(PERMISSIONS, user, self.to, below),
            None => {
                let no_space = self.why.contains("space exceeded").then_some(NO_SPACE);
                let advice = no_space.unwrap_or("look again in a while, and read etcd's log");
                told::failed_request("etcd requests", self.to, below, &self.why, advice)
            }
        }
    }
}

async fn list(client: &Client, topic: Topic, below: &str) -> Result<Vec<EtcdItem>, SourceError> {
    let keys_only = matches!(
        topic,
        Topic::StorageVersions | Topic::Definitions | Topic::ApiServices | Topic::Claims
    );
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

/// First path segments of some keys that are not the proxy's; empty without permission.
async fn other_prefixes(mut client: Client) -> Vec<String> {
    let end = Instant::now() + Duration::from_secs(2);
    let mut prefixes: Vec<String> = Vec::new();
    let mut from = vec![0];
    while prefixes.len() < MAX_OTHER_PREFIXES && Instant::now() < end {
        let options = GetOptions::new().with_from_key().with_limit(1);
        let answer = within(client.get(from, Some(options.with_keys_only()))).await;
        let Some(key) = answer.ok().and_then(|mut answer| answer.take_kvs().pop()) else {
            break;
        };
        let slash = key.key().iter().skip(1).position(|byte| *byte == b'/');
        let prefix = &key.key()[..slash.map_or(key.key().len(), |at| at + 1)];
        if !prefix.starts_with(b"/kube-interop-proxy") {
            prefixes.push(String::from_utf8_lossy(prefix).into_owned());
        }
        // After every key that begins with this segment and a slash.
        from = [prefix, b"0"].concat();
    }
    prefixes
}
