//! What is stored in etcd, and what this proxy may do there. Nothing is written: write permission is tested with
//! transactions whose condition never holds; etcd checks permissions before conditions.

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
    failed: Vec<FailedRequest>,
    /// Other prefixes that have keys, if kube-apiservers store nothing below `etcd.prefix`.
    other_prefixes: Vec<String>,
    /// What could be read.
    pub values: Inventory,
}

#[derive(Debug)]
struct FailedRequest {
    /// `read` or `write`.
    to: &'static str,
    topic: Topic,
    below: String,
    error: SourceError,
}

pub async fn read(config: &Config, client: &Client) -> Stored {
    let keys = EtcdKeys::new(&config.etcd.prefix, &config.identity.lease_namespaces);
    let ignored = config.rerouting.bare_servers == BareServersMode::Ignore;
    let topics = keys.topics();
    let topics = topics.filter(|topic| !(ignored && topic.is_of_bare_servers()));
    let lists = topics.map(|topic| {
        let below = keys.of(topic);
        async move {
            let listing = list(client, topic, &below).await;
            (topic, below, listing)
        }
    });
    let writes = OURS.map(|topic| {
        let below = keys.of(topic);
        async move {
            let written = try_to_write(client.clone(), &below).await;
            (topic, below, written)
        }
    });
    let (lists, writes) = tokio::join!(join_all(lists), join_all(writes));
    let mut stored = Stored::default();
    for (topic, below, listing) in lists {
        match listing {
            Ok(items) => stored.values.take(topic, &below, &items),
            Err(error) => stored.failed("read", topic, below, error),
        }
    }
    for (topic, below, written) in writes {
        if let Err(error) = written {
            stored.failed("write", topic, below, error);
        }
    }
    if stored.values.has_apiserver_keys == Some(false) {
        stored.other_prefixes = other_prefixes(client.clone()).await;
    }
    stored
}

impl Stored {
    fn failed(&mut self, to: &'static str, topic: Topic, below: String, error: SourceError) {
        self.failed.push(FailedRequest {
            to,
            topic,
            below,
            error,
        });
    }
}

/// `user`: common name of the client certificate.
pub fn findings(config: &EtcdConfig, user: Option<&str>, stored: &Stored) -> Vec<Finding> {
    let user = match user {
        Some(user) => format!("user {user} (etcd.certFile)"),
        None => "this proxy".to_owned(),
    };
    let mut findings = failures(&user, &stored.failed);
    if findings.iter().all(|it| it.level < Level::Problem) {
        findings.push(told::permitted(PERMISSIONS, user));
    }
    let prefix = &config.prefix;
    findings.extend(stored.values.has_apiserver_keys.map(|some| match some {
        true => told::prefix("etcd.prefix", prefix),
        false => {
            let hint = match stored.other_prefixes.as_slice() {
                [] => "there is nothing else in this etcd either".to_owned(),
                places => format!("there are keys below {}", places.join(", ")),
            };
            told::other_prefix("etcd.prefix", prefix, hint)
        }
    }));
    let undecodable = stored.values.undecodable.iter();
    findings
        .extend(undecodable.map(|(key, why)| told::undecodable(format!("etcd key {key}"), why)));
    findings
}

/// One finding for all prefixes of which the same is to be said.
fn failures(user: &str, failed: &[FailedRequest]) -> Vec<Finding> {
    let mut groups: Vec<(&FailedRequest, Vec<&str>)> = Vec::new();
    for request in failed {
        match groups.iter_mut().find(|(first, _)| first.is_like(request)) {
            Some((_, below)) => below.push(&request.below),
            None => groups.push((request, vec![&request.below])),
        }
    }
    let told = groups
        .iter()
        .map(|(first, below)| first.told(user, &below.join(", ")));
    told.collect()
}

impl FailedRequest {
    fn is_like(&self, other: &Self) -> bool {
        let same_why = self.error.said() == other.error.said();
        same_why && self.to == other.to && self.optional_topic() == other.optional_topic()
    }

    /// What the proxy works without, and may not read.
    fn optional_topic(&self) -> Option<Topic> {
        let optional = self.error.is_denied() && self.topic.is_optional();
        optional.then_some(self.topic)
    }

    fn told(&self, user: &str, below: &str) -> Finding {
        match (self.error.is_denied(), self.topic) {
            (true, Topic::MasterLeases) => told::bare_servers_denied(PERMISSIONS, user, below),
            (true, Topic::HeaderNames) => told::header_names_denied(PERMISSIONS, user, below),
            (true, _) => told::denied(PERMISSIONS, user, self.to, below),
            (false, _) => {
                let why = self.error.said();
                let no_space = why.contains("space exceeded").then_some(NO_SPACE);
                let advice = no_space.unwrap_or("look again in a while, and read etcd's log");
                told::failed_request("etcd requests", self.to, below, why, advice)
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
async fn try_to_write(mut client: Client, below: &str) -> Result<(), SourceError> {
    let key = format!("{below}{UNUSED_NAME}");
    let never = Compare::mod_revision(key.as_str(), CompareOp::Equal, i64::MAX);
    let txn = Txn::new()
        .when([never])
        .and_then([TxnOp::put(key.as_str(), "", None)])
        .or_else([TxnOp::get(key.as_str(), None)]);
    within(client.txn(txn)).await.map(drop)
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
