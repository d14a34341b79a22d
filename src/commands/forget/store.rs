//! What `forget` asks of etcd: everything about one server at one revision, and one transaction.
//!
//! Endpoints are asked one after the other, all of them within [`PATIENCE`].

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use etcd_client::{Client, Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse};
use tokio::runtime::Runtime;

use super::super::PATIENCE;
use super::super::text::plain;
use super::known::{Ids, Known, Standing, Stored};
use super::remains::{self, Remains};
use crate::cluster::connector::{self, Connector, bounded};
use crate::cluster::etcd::MAX_MESSAGE;
use crate::cluster::keys::{Keys, Topic};
use crate::cluster::source::SourceError;
use crate::config::Config;
use crate::tls::reading::Reading;
use crate::tls::store::TlsError;

/// Keys of known servers that are listed.
const LISTED: i64 = 1000;

/// The cluster's etcd.
pub(super) struct Store {
    runtime: Runtime,
    connector: Connector,
    endpoints: Vec<String>,
    keys: Keys,
    namespaces: Vec<String>,
}

/// Why etcd cannot be asked at all.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error("etcd's certificate files: {0}")]
    Tls(#[from] TlsError),
    #[error("cannot start: {0}")]
    Runtime(#[from] std::io::Error),
}

/// Why no endpoint answered: each with its reason, in one line.
#[derive(Debug)]
pub(super) struct Unanswered(Vec<(String, SourceError)>);

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("etcd cannot be asked")?;
        for (endpoint, error) in &self.0 {
            write!(f, "; {endpoint}: {}", plain(&reason(error)))?;
        }
        Ok(())
    }
}

impl Error for Unanswered {}

/// Why etcd could not be asked, with a hint where the certificate may be to blame.
fn reason(error: &SourceError) -> String {
    let said = error.said();
    let low = said.to_ascii_lowercase();
    let hung_up = ["fatal alert", "closed", "reset", "broken pipe"];
    match hung_up.iter().any(|how| low.contains(how)) {
        // In TLS 1.3 a certificate is refused when the client takes the connection for good already, and what it hears of
        // that is a matter of luck.
        true => format!("{said}: does it take the client certificate, etcd.certFile?"),
        false => said,
    }
}

/// What was found.
pub(super) struct Look {
    pub(super) known: Known,
    /// The records of all other servers.
    pub(super) others: Vec<Vec<u8>>,
    pub(super) remains: Remains,
}

/// What became of it.
pub(super) enum Dropped {
    /// It is not there any more.
    Gone,
    /// It is as it was: something is otherwise than it was shown.
    Changed(Known),
}

impl Store {
    /// Connects when first asked.
    pub(super) fn new(config: &Config) -> Result<Self, StartError> {
        let etcd = &config.etcd;
        let files = connector::files(etcd);
        let tls = connector::tls_options(etcd, &Reading::of(&files))?;
        let tls = Arc::new(ArcSwapOption::from_pointee(tls));
        let namespaces = &config.identity.lease_namespaces;
        Ok(Self {
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?,
            connector: Connector::new(etcd, tls),
            endpoints: etcd.endpoints.clone(),
            keys: Keys::new(&etcd.prefix, namespaces),
            namespaces: namespaces.clone(),
        })
    }

    /// Everything about `id`.
    pub(super) fn look(&self, id: &str) -> Result<Look, Unanswered> {
        self.in_turn(async |mut client: Client| {
            let reads = self.reads(id);
            let answer = client.txn(Txn::new().and_then(reads)).await?;
            let mut known = self.known(id, answer.op_responses());
            if let Some(record) = &mut known.record {
                // Not every etcd knows (kine): then it is not told.
                let told = client.lease_time_to_live(record.lease, None).await.ok();
                let seconds = told.and_then(|told| u64::try_from(told.ttl()).ok());
                record.left = seconds.map(Duration::from_secs);
            }
            let mut kv = client.kv_client().max_decoding_message_size(MAX_MESSAGE);
            let prefix = Some(GetOptions::new().with_prefix());
            let records = kv.get(self.keys.of(Topic::Servers), prefix).await?;
            let [own, ..] = self.own_keys(id);
            let others = records.kvs().iter();
            let others = others.filter(|kv| kv.key() != own.as_bytes());
            let others = others.map(|kv| kv.value().to_vec()).collect();
            let remains = self.remains(id, &mut client).await?;
            Ok(Look {
                known,
                others,
                remains,
            })
        })
    }

    /// Drops the record, if nothing has changed since `record` was read.
    pub(super) fn drop(&self, id: &str, record: &Stored) -> Result<Dropped, Unanswered> {
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
        let answer = self.in_turn(async |mut client: Client| client.txn(txn.clone()).await)?;
        if answer.succeeded() {
            return Ok(Dropped::Gone);
        }
        let known = self.known(id, answer.op_responses());
        // An attempt whose answer got lost may have done it.
        Ok(match known.standing() {
            Standing::Unknown => Dropped::Gone,
            _ => Dropped::Changed(known),
        })
    }

    /// Every server with a key of its own.
    pub(super) fn ids(&self) -> Result<Ids, Unanswered> {
        self.in_turn(async |mut client: Client| {
            let mut ids = Ids::new();
            for (topic, lives) in [
                (Topic::Servers, false),
                (Topic::Live, true),
                (Topic::PeerEndpoints, true),
            ] {
                let prefix = self.keys.of(topic);
                let options = GetOptions::new().with_prefix().with_keys_only();
                let options = Some(options.with_limit(LISTED));
                let answer = client.get(prefix.as_str(), options).await?;
                let found = answer.kvs().iter().filter_map(|kv| below(&prefix, kv));
                ids.extend(found.map(|id| (id.to_owned(), lives)));
            }
            Ok(ids)
        })
    }

    /// The record's, the live key's, and that of native apiservers.
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

    /// Reads the answers to [`Self::reads`].
    fn known(&self, id: &str, answers: Vec<TxnOpResponse>) -> Known {
        let mut answers = answers.into_iter().map(|answer| match answer {
            TxnOpResponse::Get(get) => get.kvs().to_vec(),
            _ => Vec::new(),
        });
        let mut next = || answers.next().unwrap_or_default();
        let one = |kvs: Vec<KeyValue>| kvs.first().map(stored);
        let (record, live, entry) = (one(next()), one(next()), one(next()));
        let claims = self.keys.claims(id);
        Known {
            record,
            live,
            entry,
            claims: next()
                .iter()
                .filter_map(|kv| below(&claims, kv))
                .map(str::to_owned)
                .collect(),
        }
    }

    async fn remains(&self, id: &str, client: &mut Client) -> Result<Remains, etcd_client::Error> {
        let mut remains = Remains::default();
        for (number, namespace) in (0..).zip(&self.namespaces) {
            let key = format!("{}{id}", self.keys.of(Topic::Leases(number)));
            let answer = client.get(key, None).await?;
            let lease = answer.kvs().first();
            if let Some(lease) = lease.and_then(|kv| remains::identity(kv.value())) {
                remains.leases.push((namespace.clone(), lease));
            }
        }
        let mut kv = client.kv_client().max_decoding_message_size(MAX_MESSAGE);
        let prefix = self.keys.of(Topic::StorageVersions);
        let options = GetOptions::new().with_prefix();
        let answer = kv.get(prefix, Some(options)).await?;
        let naming = answer.kvs().iter();
        let naming = naming.filter(|kv| remains::names(kv.value(), id));
        remains.storage_versions = naming.count();
        Ok(remains)
    }

    /// Asks one endpoint after the other until one answers.
    fn in_turn<T>(
        &self,
        request: impl AsyncFn(Client) -> Result<T, etcd_client::Error>,
    ) -> Result<T, Unanswered> {
        let count = u32::try_from(self.endpoints.len()).unwrap_or(u32::MAX);
        let share = PATIENCE / count.max(1);
        let mut connector = self.connector.clone().limited(share);
        self.runtime.block_on(async {
            let mut failures = Vec::new();
            for endpoint in &self.endpoints {
                let attempt = async {
                    let client = connector.connect().await?;
                    bounded(share, request(client)).await
                };
                let attempt = tokio::time::timeout(share, attempt).await;
                match attempt.unwrap_or(Err(SourceError::Timeout)) {
                    Ok(answer) => return Ok(answer),
                    Err(error) => failures.push((endpoint.clone(), error)),
                }
            }
            Err(Unanswered(failures))
        })
    }
}

fn stored(kv: &KeyValue) -> Stored {
    Stored {
        value: kv.value().to_vec(),
        revision: kv.mod_revision(),
        lease: kv.lease(),
        left: None,
    }
}

/// A key's name below a prefix.
fn below<'a>(prefix: &str, kv: &'a KeyValue) -> Option<&'a str> {
    kv.key_str().ok()?.strip_prefix(prefix)
}
