//! Observes what is stored in etcd, and what this proxy may do there. Nothing is written: whether it may write is asked
//! with transactions whose condition never holds, which etcd judges as if it did.

use std::time::{Duration, Instant};

use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp};

use crate::cluster::codec::{self, Lease, PeerEndpoint};
use crate::cluster::connector::{Connector, REQUEST_TIMEOUT, within};
use crate::cluster::etcd::EtcdSource;
use crate::cluster::json;
use crate::cluster::keys::{Keys, Topic};
use crate::cluster::record::{Live, Record};
use crate::cluster::source::{Item, Listing, Source, SourceError};
use crate::config::Config;
use crate::doctor::together::together;

/// Below each prefix; neither a server ID nor a Lease can have this name, and nobody writes it.
pub const NOBODYS: &str = ".check";
/// Other places in etcd that are named.
const PLACES: usize = 4;

/// What was seen.
#[derive(Debug, Default)]
pub struct Store {
    /// Prefixes below which we may not read.
    pub unreadable: Vec<String>,
    /// Prefixes below which we may not write.
    pub unwritable: Vec<String>,
    /// What failed in another way.
    pub failed: Vec<Failed>,
    /// Whether kube-apiservers store something below `etcd.prefix`; none: unknown.
    pub filled: Option<bool>,
    /// Where else there are keys, if not there.
    pub elsewhere: Vec<String>,
    /// Keys whose values cannot be understood, and why.
    pub undecodable: Vec<(String, String)>,
    /// What proxies know of servers.
    pub records: Vec<(String, Record)>,
    /// Proxies that live.
    pub lives: Vec<(String, Live)>,
    /// What native apiservers, or proxies for them, say.
    pub entries: Vec<(String, PeerEndpoint)>,
    /// `<server ID>/<address>` of proxies that may not use their ID.
    pub claims: Vec<String>,
    /// Leases of all namespaces.
    pub leases: Vec<(String, Lease)>,
}

/// Requests that failed, and not for want of permission.
#[derive(Debug)]
pub struct Failed {
    /// `read` or `write`.
    pub to: &'static str,
    /// Below which prefixes.
    pub below: Vec<String>,
    /// etcd's words.
    pub why: String,
}

/// Looks at everything, over `connector`, which has one endpoint.
pub async fn look(config: &Config, connector: &Connector, client: &Client) -> Store {
    let keys = Keys::new(&config.etcd.prefix, &config.identity.lease_namespaces);
    let mut store = Store::default();
    let lists = keys.topics().map(|topic| {
        let (below, connector) = (keys.of(topic), connector.clone());
        async move {
            let listing = list(&connector, topic, &below).await;
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
    let (lists, writes) = tokio::join!(together(lists), together(writes));
    for (topic, below, listing) in lists {
        match listing {
            Ok(listing) => store.take(topic, &below, &listing.items),
            Err(error) if is_denied(&error) => store.unreadable.push(below),
            Err(error) => store.failed("read", below, &error),
        }
    }
    for (below, written) in writes {
        match written {
            Ok(()) => {}
            Err(error) if is_denied(&error) => store.unwritable.push(below),
            Err(error) => store.failed("write", below, &error),
        }
    }
    if store.filled == Some(false) {
        store.elsewhere = elsewhere(client.clone()).await;
    }
    store
}

impl Store {
    fn failed(&mut self, to: &'static str, below: String, error: &SourceError) {
        let why = error.said();
        let mut known = self.failed.iter_mut();
        match known.find(|failed| failed.to == to && failed.why == why) {
            Some(failed) => failed.below.push(below),
            None => self.failed.push(Failed {
                to,
                below: vec![below],
                why,
            }),
        }
    }

    fn take(&mut self, topic: Topic, below: &str, items: &[Item]) {
        let bad = &mut self.undecodable;
        match topic {
            Topic::Servers => self.records = decoded(below, items, bad, json::read),
            Topic::Live => self.lives = decoded(below, items, bad, json::read),
            Topic::PeerEndpoints => self.entries = decoded(below, items, bad, codec::endpoints),
            Topic::Leases(_) => self.leases.extend(decoded(below, items, bad, codec::lease)),
            Topic::Claims => self.claims = items.iter().map(|item| item.key.clone()).collect(),
            // Every kube-apiserver has them, and nobody else.
            Topic::ApiServices => self.filled = Some(!items.is_empty()),
            Topic::StorageVersions | Topic::Definitions => {}
        }
    }
}

fn decoded<T, E: std::error::Error>(
    below: &str,
    items: &[Item],
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

async fn list(connector: &Connector, topic: Topic, below: &str) -> Result<Listing, SourceError> {
    let keys_only = matches!(
        topic,
        Topic::StorageVersions | Topic::Definitions | Topic::ApiServices | Topic::Claims
    );
    let mut source = EtcdSource::new(connector.clone(), REQUEST_TIMEOUT);
    let listing = tokio::time::timeout(REQUEST_TIMEOUT, source.list(below, keys_only));
    listing.await.unwrap_or(Err(SourceError::Timeout))
}

/// No key was ever written at the last revision there can be. The form is one that kine knows too.
async fn try_to_write(mut client: Client, below: &str) -> Result<(), SourceError> {
    let key = format!("{below}{NOBODYS}");
    let never = Compare::mod_revision(key.as_str(), CompareOp::Equal, i64::MAX);
    let txn = Txn::new()
        .when([never])
        .and_then([TxnOp::put(key.as_str(), "", None)])
        .or_else([TxnOp::get(key.as_str(), None)]);
    within(client.txn(txn)).await?;
    Ok(())
}

fn is_denied(error: &SourceError) -> bool {
    error.said().contains("permission denied")
}

/// The first parts of some keys that are not ours; nothing if we may not see them.
async fn elsewhere(mut client: Client) -> Vec<String> {
    let end = Instant::now() + Duration::from_secs(2);
    let mut places: Vec<String> = Vec::new();
    let mut from = vec![0];
    while places.len() < PLACES && Instant::now() < end {
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
        let place: Vec<u8> = key
            .iter()
            .copied()
            .take(length.map_or(key.len(), |at| at + 1))
            .collect();
        if !place.starts_with(b"/kube-interop-proxy") {
            places.push(String::from_utf8_lossy(&place).into_owned());
        }
        // Behind everything that begins with it and a slash.
        from = [place, b"0".to_vec()].concat();
    }
    places
}
