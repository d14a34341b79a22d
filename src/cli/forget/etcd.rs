//! Access to etcd for `forget`: reads all keys about one server at one revision, and deletes its record.
//!
//! Endpoints are tried one after the other, all of them within [`PATIENCE`].

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use etcd_client::{Client, Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse};
use tokio::runtime::Runtime;

use super::super::PATIENCE;
use super::super::text::plain;
use super::remaining::{self, RemainingReferences};
use super::server_keys::{Liveness, ServerKeys, ServerLivenessById, StoredKey};
use crate::cli::inventory::Inventory;
use crate::cluster::connector::{self, Connector, failed};
use crate::cluster::etcd;
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::cluster::record::Record;
use crate::cluster::source::SourceError;
use crate::config::Config;
use crate::tls::error::TlsError;
use crate::tls::files::FileSnapshot;

/// Most keys of known servers that are listed.
const MAX_LISTED: i64 = 1000;

pub(super) struct EtcdAccess {
    runtime: Runtime,
    connector: Connector,
    endpoints: Vec<String>,
    keys: EtcdKeys,
    namespaces: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("etcd's certificate files: {0}")]
    Tls(#[from] TlsError),
    #[error("cannot start: {0}")]
    Runtime(#[from] std::io::Error),
}

/// No endpoint answered; each with its error. The message is one line.
#[derive(Debug)]
pub(super) struct EtcdUnavailable(Vec<(String, SourceError)>);

impl fmt::Display for EtcdUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("etcd cannot be asked")?;
        for (endpoint, error) in &self.0 {
            write!(f, "; {endpoint}: {}", plain(&reason(error)))?;
        }
        Ok(())
    }
}

impl Error for EtcdUnavailable {}

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

pub(super) struct ServerInventory {
    pub(super) keys: ServerKeys,
    /// Records of other servers that can be read.
    pub(super) others: Vec<Record>,
    pub(super) remaining: RemainingReferences,
}

pub(super) enum DropOutcome {
    /// The record does not exist any more.
    Dropped,
    /// Nothing was deleted: the keys have changed since the record was shown.
    Changed(ServerKeys),
}

impl EtcdAccess {
    /// Connects with the first request.
    pub(super) fn new(config: &Config) -> Result<Self, StartError> {
        let etcd = &config.etcd;
        let files = connector::files(etcd);
        let tls = connector::tls_options(etcd, &FileSnapshot::read(&files))?;
        let tls = Arc::new(ArcSwapOption::from_pointee(tls));
        let namespaces = &config.identity.lease_namespaces;
        Ok(Self {
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?,
            connector: Connector::new(etcd, tls),
            endpoints: etcd.endpoints.clone(),
            keys: EtcdKeys::new(&etcd.prefix, namespaces),
            namespaces: namespaces.clone(),
        })
    }

    pub(super) fn inventory(&self, id: &str) -> Result<ServerInventory, EtcdUnavailable> {
        self.try_endpoints(async |mut client: Client| {
            let reads = self.reads(id);
            let answer = client
                .txn(Txn::new().and_then(reads))
                .await
                .map_err(failed)?;
            let mut keys = self.server_keys(id, answer.op_responses());
            if let Some(record) = &mut keys.record {
                // Not every etcd knows (kine): then it is not answer.
                let answer = client.lease_time_to_live(record.lease, None).await.ok();
                let seconds = answer.and_then(|answer| u64::try_from(answer.ttl()).ok());
                record.left = seconds.map(Duration::from_secs);
            }
            let others = self.other_records(id, &client).await?;
            let remaining = self.remaining(id, &mut client).await?;
            Ok(ServerInventory {
                keys,
                others,
                remaining,
            })
        })
    }

    /// Deletes the record if nothing has changed since `record` was read.
    pub(super) fn drop(
        &self,
        id: &str,
        record: &StoredKey,
    ) -> Result<DropOutcome, EtcdUnavailable> {
        let [own, live, entry] = self.own_keys(id);
        let absent = |key: String| Compare::version(key, CompareOp::Equal, 0);
        let txn = Txn::new()
            .when([
                Compare::mod_revision(own.clone(), CompareOp::Equal, record.revision),
                absent(live),
                absent(entry),
                absent(self.keys.claims(id)).with_prefix(),
            ])
            .and_then([TxnOp::delete(own, None)])
            .or_else(self.reads(id));
        let answer = self.try_endpoints(async |mut client: Client| {
            client.txn(txn.clone()).await.map_err(failed)
        })?;
        if answer.succeeded() {
            return Ok(DropOutcome::Dropped);
        }
        let keys = self.server_keys(id, answer.op_responses());
        // An earlier attempt whose response was lost may have deleted it.
        Ok(match keys.liveness() {
            Liveness::Unknown => DropOutcome::Dropped,
            _ => DropOutcome::Changed(keys),
        })
    }

    /// All servers that have a key, up to [`MAX_LISTED`] of each kind.
    pub(super) fn ids(&self) -> Result<ServerLivenessById, EtcdUnavailable> {
        self.try_endpoints(async |mut client: Client| {
            let mut ids = ServerLivenessById::new();
            for (topic, lives) in [
                (Topic::Servers, false),
                (Topic::Live, true),
                (Topic::PeerEndpoints, true),
            ] {
                let prefix = self.keys.of(topic);
                let options = GetOptions::new().with_prefix().with_keys_only();
                let options = Some(options.with_limit(MAX_LISTED));
                let answer = client.get(prefix.as_str(), options).await.map_err(failed)?;
                let found = answer.kvs().iter().filter_map(|kv| name_below(&prefix, kv));
                ids.extend(found.map(|id| (id.to_owned(), lives)));
            }
            Ok(ids)
        })
    }

    /// Keys of the record, the live key, and the entry of native apiservers.
    fn own_keys(&self, id: &str) -> [String; 3] {
        [Topic::Servers, Topic::Live, Topic::PeerEndpoints]
            .map(|topic| format!("{}{id}", self.keys.of(topic)))
    }

    fn reads(&self, id: &str) -> Vec<TxnOp> {
        let options = GetOptions::new().with_prefix().with_keys_only();
        let claims = TxnOp::get(self.keys.claims(id), Some(options));
        let keys = self.own_keys(id).map(|key| TxnOp::get(key, None));
        keys.into_iter().chain([claims]).collect()
    }

    /// Decodes the responses to [`Self::reads`].
    fn server_keys(&self, id: &str, answers: Vec<TxnOpResponse>) -> ServerKeys {
        let mut answers = answers.into_iter().map(|answer| match answer {
            TxnOpResponse::Get(get) => get.kvs().to_vec(),
            _ => Vec::new(),
        });
        let mut next = || answers.next().unwrap_or_default();
        let one = |kvs: Vec<KeyValue>| kvs.first().map(stored);
        let (record, live, entry) = (one(next()), one(next()), one(next()));
        let claims = self.keys.claims(id);
        ServerKeys {
            record,
            live,
            entry,
            claims: next()
                .iter()
                .filter_map(|kv| name_below(&claims, kv))
                .map(str::to_owned)
                .collect(),
        }
    }

    async fn other_records(&self, id: &str, client: &Client) -> Result<Vec<Record>, SourceError> {
        let below = self.keys.of(Topic::Servers);
        let items = etcd::list(client.kv_client(), &below, false).await?.items;
        let mut inventory = Inventory::default();
        inventory.take(Topic::Servers, &below, &items);
        let others = inventory
            .records
            .into_iter()
            .filter(|(other, _)| other != id);
        Ok(others.map(|(_, record)| record).collect())
    }

    async fn remaining(
        &self,
        id: &str,
        client: &mut Client,
    ) -> Result<RemainingReferences, SourceError> {
        let mut remaining = RemainingReferences::default();
        for (number, namespace) in (0..).zip(&self.namespaces) {
            let key = format!("{}{id}", self.keys.of(Topic::Leases(number)));
            let answer = client.get(key, None).await.map_err(failed)?;
            let lease = answer.kvs().first();
            if let Some(lease) = lease.and_then(|kv| remaining::identity(kv.value())) {
                remaining.leases.push((namespace.clone(), lease));
            }
        }
        let prefix = self.keys.of(Topic::StorageVersions);
        let items = etcd::list(client.kv_client(), &prefix, false).await?.items;
        let naming = items.iter();
        let naming = naming.filter(|item| remaining::names(&item.value, id));
        remaining.storage_versions = naming.count();
        Ok(remaining)
    }

    /// Tries one endpoint after the other until one answers.
    fn try_endpoints<T>(
        &self,
        request: impl AsyncFn(Client) -> Result<T, SourceError>,
    ) -> Result<T, EtcdUnavailable> {
        let count = u32::try_from(self.endpoints.len()).unwrap_or(u32::MAX);
        let share = PATIENCE / count.max(1);
        let mut connector = self.connector.clone().limited(share);
        self.runtime.block_on(async {
            let mut failures = Vec::new();
            for endpoint in &self.endpoints {
                let attempt = async {
                    let client = connector.connect().await?;
                    request(client).await
                };
                let attempt = tokio::time::timeout(share, attempt).await;
                match attempt.unwrap_or(Err(SourceError::Timeout)) {
                    Ok(answer) => return Ok(answer),
                    Err(error) => failures.push((endpoint.clone(), error)),
                }
            }
            Err(EtcdUnavailable(failures))
        })
    }
}

fn stored(kv: &KeyValue) -> StoredKey {
    StoredKey {
        value: kv.value().to_vec(),
        revision: kv.mod_revision(),
        lease: kv.lease(),
        left: None,
    }
}

/// The key without the prefix.
fn name_below<'a>(prefix: &str, kv: &'a KeyValue) -> Option<&'a str> {
    kv.key_str().ok()?.strip_prefix(prefix)
}
