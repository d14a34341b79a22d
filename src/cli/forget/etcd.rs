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
use super::server_keys::{Liveness, ServerKeys, ServerLivenessById, StoredKey};
use crate::cluster::codec::Lease;
use crate::cluster::connector::{self, Connector, failed};
use crate::cluster::etcd;
use crate::cluster::json;
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::cluster::record::Record;
use crate::cluster::source::{EtcdItem, SourceError};
use crate::config::Config;
use crate::tls::error::TlsError;
use crate::tls::files::FileSnapshot;

pub(super) struct EtcdAccess {
    connector: Connector,
    endpoints: Vec<String>,
    keys: EtcdKeys,
    namespaces: Vec<String>,
}

/// What etcd knows of servers.
pub(super) struct KnownServers {
    /// All of the server that is asked for.
    pub(super) keys: ServerKeys,
    /// Records of other servers that can be read.
    pub(super) others: Vec<Record>,
    /// All servers.
    pub(super) ids: ServerLivenessById,
    pub(super) remaining: RemainingReferences,
}

impl EtcdAccess {
    /// Connects with the first request.
    pub(super) fn new(config: &Config) -> Result<Self, TlsError> {
        let etcd = &config.etcd;
        let files = connector::files(etcd);
        let tls = connector::tls_options(etcd, &FileSnapshot::read(&files))?;
        let tls = Arc::new(ArcSwapOption::from_pointee(tls));
        let namespaces = &config.identity.lease_namespaces;
        Ok(Self {
            connector: Connector::new(etcd, tls),
            endpoints: etcd.endpoints.clone(),
            keys: EtcdKeys::new(&etcd.prefix, namespaces),
            namespaces: namespaces.clone(),
        })
    }

    pub(super) async fn known(&self, id: &str) -> Result<KnownServers, Reason> {
        self.ask(async |mut client: Client| {
            let list = async |topic: Topic, keys_only: bool| {
                let below = self.keys.of(topic);
                let listing = etcd::list(client.kv_client(), &below, keys_only).await?;
                Ok::<_, SourceError>(listing.items)
            };
            // What announces life is read last: who comes back meanwhile is seen.
            let records = list(Topic::Servers, false).await?;
            let versions = list(Topic::StorageVersions, false).await?;
            let claims = list(Topic::Claims, true).await?;
            let lives = list(Topic::Live, false).await?;
            let entries = list(Topic::PeerEndpoints, false).await?;
            let claims = claims.iter().filter_map(|claim| claim.key.split_once('/'));
            let claims = claims.filter(|(claimed, _)| *claimed == id);
            let mut keys = ServerKeys {
                record: of(&records, id),
                live: of(&lives, id),
                entry: of(&entries, id),
                claims: claims.map(|(_, address)| address.to_owned()).collect(),
            };
            if let Some(record) = &mut keys.record {
                record.left = self.time_left(id, &mut client).await?;
            }
            let gone = records.iter().map(|item| (item.key.clone(), false));
            let alive = lives.iter().chain(&entries);
            let others = records.iter().filter(|other| other.key != id);
            let naming = versions.iter();
            let naming = naming.filter(|item| remaining::names(&item.value, id));
            Ok(KnownServers {
                keys,
                others: others
                    .filter_map(|other| json::read(&other.value).ok())
                    .collect(),
                ids: gone
                    .chain(alive.map(|item| (item.key.clone(), true)))
                    .collect(),
                remaining: RemainingReferences {
                    leases: self.leases(id, &mut client).await?,
                    storage_versions: naming.count(),
                },
            })
        })
        .await
    }

    /// Deletes the record if nothing has changed since `record` was read. Otherwise returns what is known now.
    pub(super) async fn drop(
        &self,
        id: &str,
        record: &StoredKey,
    ) -> Result<Option<ServerKeys>, Reason> {
        let absent = |key: String| Compare::version(key, CompareOp::Equal, 0);
        let own = self.key(Topic::Servers, id);
        let txn = Txn::new()
            .when([
                Compare::mod_revision(own.clone(), CompareOp::Equal, record.revision),
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
    async fn time_left(
        &self,
        id: &str,
        client: &mut Client,
    ) -> Result<Option<Duration>, SourceError> {
        let answer = client.get(self.key(Topic::Servers, id), None).await;
        let answer = answer.map_err(failed)?;
        let lease = answer.kvs().first().map_or(0, etcd_client::KeyValue::lease);
        let answer = client.lease_time_to_live(lease, None).await.ok();
        let seconds = answer.and_then(|answer| u64::try_from(answer.ttl()).ok());
        Ok(seconds.map(Duration::from_secs))
    }

    /// Identity Leases of this name, with their namespaces.
    async fn leases(
        &self,
        id: &str,
        client: &mut Client,
    ) -> Result<Vec<(String, Lease)>, SourceError> {
        let mut leases = Vec::new();
        for (number, namespace) in (0..).zip(&self.namespaces) {
            let key = self.key(Topic::Leases(number), id);
            let answer = client.get(key, None).await.map_err(failed)?;
            let lease = answer.kvs().first();
            let lease = lease.and_then(|kv| remaining::identity(kv.value()));
            leases.extend(lease.map(|lease| (namespace.clone(), lease)));
        }
        Ok(leases)
    }

    /// Tries one endpoint after the other until one answers. The error is one line.
    async fn ask<T>(
        &self,
        request: impl AsyncFn(Client) -> Result<T, SourceError>,
    ) -> Result<T, Reason> {
        let count = u32::try_from(self.endpoints.len()).unwrap_or(u32::MAX);
        let share = PATIENCE / count.max(1);
        let mut connector = self.connector.clone().limited(share);
        let mut failures = String::new();
        for endpoint in &self.endpoints {
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

/// The key of a server among those of all.
fn of(items: &[EtcdItem], id: &str) -> Option<StoredKey> {
    let item = items.iter().find(|item| item.key == id)?;
    Some(StoredKey {
        value: item.value.clone(),
        revision: item.mod_revision,
        left: None,
    })
}
