//! Access to etcd for `forget`: reads what is known of servers, and deletes the record of one.
//!
//! Endpoints are tried one after the other, all of them within [`PATIENCE`].

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};
use tokio::time::timeout;

use super::super::PATIENCE;
use super::super::text::plain;
use super::Reason;
use super::remaining::{self, RemainingReferences};
use super::server_keys::{Liveness, ServerKeys, ServerLivenessById};
use crate::cluster::connector::{self, Connector, failed};
use crate::cluster::etcd;
use crate::cluster::json;
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::cluster::record::Record;
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
    /// All of the server that is asked for.
    pub(super) keys: ServerKeys,
    /// Time until its record expires, if etcd tells.
    pub(super) left: Option<Duration>,
    /// Records of other servers that can be read.
    pub(super) others: Vec<Record>,
    /// All servers.
    pub(super) ids: ServerLivenessById,
    pub(super) remaining: RemainingReferences,
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

    pub(super) async fn known(&self, id: &str) -> Result<KnownServers, Reason> {
        self.ask(async |client: Client| self.read(id, client).await)
            .await
    }

    async fn read(&self, id: &str, client: Client) -> Result<KnownServers, SourceError> {
        let list = async |below: String, keys_only: bool| {
            let listing = etcd::list(client.kv_client(), &below, keys_only).await?;
            Ok::<_, SourceError>(listing.items)
        };
        let all = |topic: Topic| list(self.keys.of(topic), false);
        // What announces life is read last: who comes back meanwhile is seen.
        let records = all(Topic::Servers).await?;
        let versions = all(Topic::StorageVersions).await?;
        let mut leases = Vec::new();
        for (number, namespace) in (0..).zip(&self.config.identity.lease_namespaces) {
            let found = list(self.key(Topic::Leases(number), id), false).await?;
            let lease = found.first();
            let lease = lease.and_then(|item| remaining::identity(&item.value));
            leases.extend(lease.map(|lease| (namespace.clone(), lease)));
        }
        let left = self.time_left(id, client.clone()).await;
        let claims = list(self.keys.of(Topic::Claims), true).await?;
        let lives = all(Topic::Live).await?;
        let entries = all(Topic::PeerEndpoints).await?;
        let of = |items: &[EtcdItem]| items.iter().find(|item| item.key == id).cloned();
        let claims = claims.iter().filter_map(|claim| claim.key.split_once('/'));
        let claims = claims.filter(|(claimed, _)| *claimed == id);
        let gone = records.iter().map(|item| (item.key.clone(), false));
        let alive = lives.iter().chain(&entries);
        let others = records.iter().filter(|other| other.key != id);
        let others = others.filter_map(|other| json::read(&other.value).ok());
        let naming = versions.iter();
        let naming = naming.filter(|item| remaining::names(&item.value, id));
        Ok(KnownServers {
            keys: ServerKeys {
                record: of(&records),
                live: of(&lives),
                entry: of(&entries),
                claims: claims.map(|(_, address)| address.to_owned()).collect(),
            },
            left,
            others: others.collect(),
            ids: gone
                .chain(alive.map(|item| (item.key.clone(), true)))
                .collect(),
            remaining: RemainingReferences {
                leases,
                storage_versions: naming.count(),
            },
        })
    }

    /// Deletes the record if nothing has changed since its `revision`. Otherwise returns what is known now.
    pub(super) async fn drop(&self, id: &str, revision: i64) -> Result<Option<ServerKeys>, Reason> {
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
        let keys = self.known(id).await?.keys;
        // An earlier attempt whose response was lost may have deleted it.
        Ok(Some(keys).filter(|keys| keys.liveness() != Liveness::Unknown))
    }

    fn key(&self, topic: Topic, id: &str) -> String {
        self.keys.of(topic) + id
    }

    /// Time until the record expires. Not every etcd tells (kine).
    async fn time_left(&self, id: &str, mut client: Client) -> Option<Duration> {
        let answer = client.get(self.key(Topic::Servers, id), None).await.ok()?;
        let lease = answer.kvs().first()?.lease();
        let answer = client.lease_time_to_live(lease, None).await.ok()?;
        u64::try_from(answer.ttl()).map(Duration::from_secs).ok()
    }

    /// Tries one endpoint after the other until one answers. The error is one line.
    async fn ask<T>(
        &self,
        request: impl AsyncFn(Client) -> Result<T, SourceError>,
    ) -> Result<T, Reason> {
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
