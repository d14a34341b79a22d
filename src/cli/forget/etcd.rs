//! Access to etcd for `forget`: reads what is known of servers, and deletes the record of one.
//!
//! Endpoints are tried one after the other, all of them within [`PATIENCE`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use tokio::time::timeout;

use crate::cli::PATIENCE;
use crate::cli::text::plain;
use crate::cluster::codec;
use crate::cluster::connector::{self, Connector, failed};
use crate::cluster::etcd;
use crate::cluster::json;
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::cluster::record::{LiveKey, Record};
use crate::cluster::source::{EtcdItem, SourceError};
use crate::config::Config;
use crate::tls::error::TlsError;
use crate::tls::files::FileSnapshot;

pub(super) struct EtcdAccess<'c> {
    config: &'c Config,
    connector: Connector,
    keys: EtcdKeys,
}

/// What etcd knows of servers.
pub(super) struct KnownServers {
    /// Of the server that is asked for.
    pub(super) record: Option<EtcdItem>,
    /// Why it is not gone. The keys of a dead server expire after `peer.leaseTTL`.
    pub(super) alive: Option<String>,
    /// Records of other servers that can be read.
    pub(super) others: Vec<Record>,
    /// All servers, and whether they live.
    pub(super) ids: BTreeMap<String, bool>,
}

impl<'c> EtcdAccess<'c> {
    /// Connects with the first request.
    pub(super) fn new(config: &'c Config) -> Result<Self, TlsError> {
        let etcd = &config.etcd;
        let files = connector::files(etcd);
        let tls = connector::tls_options(etcd, &FileSnapshot::read(&files))?;
        let tls = Arc::new(ArcSwapOption::from_pointee(tls));
        Ok(Self {
            config,
            connector: Connector::new(etcd, tls),
            keys: EtcdKeys::new(&etcd.prefix, &config.identity.lease_namespaces),
        })
    }

    pub(super) async fn known(&self, id: &str) -> Result<KnownServers, String> {
        self.ask(async |client: Client| self.read(id, client).await)
            .await
    }

    async fn read(&self, id: &str, client: Client) -> Result<KnownServers, SourceError> {
        let list = async |topic: Topic, keys_only: bool| {
            let below = self.keys.of(topic);
            let listing = etcd::list(client.kv_client(), &below, keys_only).await?;
            Ok::<_, SourceError>(listing.items)
        };
        // What announces life is read last: who comes back meanwhile is seen.
        let records = list(Topic::Servers, false).await?;
        let claims = list(Topic::Claims, true).await?;
        let lives = list(Topic::Live, false).await?;
        let entries = list(Topic::PeerEndpoints, false).await?;
        let of = |items: &[EtcdItem]| items.iter().find(|item| item.key == id).cloned();
        let others = records.iter().filter(|other| other.key != id);
        let others = others.filter_map(|other| json::read(&other.value).ok());
        let gone = records.iter().map(|item| (item.key.clone(), false));
        let alive = lives.iter().chain(&entries);
        let alive = alive.map(|item| (item.key.clone(), true));
        Ok(KnownServers {
            record: of(&records),
            alive: sign_of_life(id, of(&lives), of(&entries), &claims),
            others: others.collect(),
            ids: gone.chain(alive).collect(),
        })
    }

    /// Deletes the record if nothing has changed since its `revision`. Otherwise returns what is known now.
    pub(super) async fn drop(
        &self,
        id: &str,
        revision: i64,
    ) -> Result<Option<KnownServers>, String> {
        let absent = |key: String| Compare::version(key, CompareOp::Equal, 0);
        let own = self.key(Topic::Servers, id);
        let txn = Txn::new()
            .when([
                Compare::mod_revision(own.clone(), CompareOp::Equal, revision),
                absent(self.key(Topic::Live, id)),
                absent(self.key(Topic::PeerEndpoints, id)),
                absent(self.keys.claims(id)).with_prefix(),
            ])
            .and_then([TxnOp::delete(own, None)]);
        let request = async |mut client: Client| client.txn(txn.clone()).await.map_err(failed);
        if self.ask(request).await?.succeeded() {
            return Ok(None);
        }
        let known = self.known(id).await?;
        // An earlier attempt whose response was lost may have deleted it.
        let is_gone = known.record.is_none() && known.alive.is_none();
        Ok((!is_gone).then_some(known))
    }

    fn key(&self, topic: Topic, id: &str) -> String {
        self.keys.of(topic) + id
    }

    /// Tries one endpoint after the other until one answers. The error is one line.
    async fn ask<T>(
        &self,
        request: impl AsyncFn(Client) -> Result<T, SourceError>,
    ) -> Result<T, String> {
        let endpoints = &self.config.etcd.endpoints;
        let count = u32::try_from(endpoints.len()).unwrap_or(u32::MAX);
        let share = PATIENCE / count.max(1);
        let mut connector = self.connector.clone().limited(share);
        let mut failures = String::new();
        for endpoint in endpoints {
            let attempt = async { request(connector.connect().await?).await };
            match timeout(share, attempt).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => failures += &format!("; {endpoint}: {}", plain(&reason(&error))),
                Err(_) => failures += &format!("; {endpoint}: {}", SourceError::Timeout),
            }
        }
        Err(format!("etcd cannot be asked{failures}"))
    }
}

/// `live`: exists while its proxy lives; `entry`: below `peerserverleases` while its apiserver lives, written by a proxy
/// too; `claims`: of proxies that may not use their ID.
fn sign_of_life(
    id: &str,
    live: Option<EtcdItem>,
    entry: Option<EtcdItem>,
    claims: &[EtcdItem],
) -> Option<String> {
    let shown = |address: Option<SocketAddr>| {
        address.map_or_else(|| "an unknown address".to_owned(), |at| at.to_string())
    };
    if let Some(live) = live {
        let at = json::read::<LiveKey>(&live.value).map(|key| key.endpoint);
        return Some(format!("its proxy at {} has a live key", shown(at.ok())));
    }
    if let Some(entry) = entry {
        let at = codec::endpoints(&entry.value).map(|value| value.address);
        let at = shown(at.ok());
        return Some(format!(
            "the apiserver at {at} has an entry below peerserverleases"
        ));
    }
    let mut claims = claims.iter().filter_map(|claim| claim.key.split_once('/'));
    let (_, at) = claims.find(|(claimed, _)| *claimed == id)?;
    Some(format!(
        "a proxy at {} takes this ID for its own",
        plain(at)
    ))
}

/// The error, with a hint if the client certificate may be the cause.
fn reason(error: &SourceError) -> String {
    let message = error.said();
    let low = message.to_ascii_lowercase();
    let hung_up = ["fatal alert", "closed", "reset", "broken pipe"];
    match hung_up.iter().any(|how| low.contains(how)) {
        // With TLS 1.3 the client considers the connection established before the server rejects its certificate, so the
        // error may be any of these.
        true => format!("{message}: does it take the client certificate, etcd.certFile?"),
        false => message,
    }
}

#[cfg(test)]
mod tests;
