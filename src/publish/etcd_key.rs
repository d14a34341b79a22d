//! One of this server's keys in etcd, written only over its known revision.
//!
//! Every write is a transaction on the key's revision, in the forms that kine supports too. An etcd that refuses writes
//! because its space is used up still keeps leases alive: a key whose value has not changed is kept with the lease it has.

use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse,
};

use crate::cluster::connector::{Connector, bounded};
use crate::cluster::source::SourceError;
use crate::log_throttle::{LogThrottle, chain};

/// A connection to a member of etcd, with a limit for each request.
pub struct EtcdSession {
    client: Client,
    limit: Duration,
}

impl EtcdSession {
    /// To the next member.
    pub async fn open(connector: &mut Connector, limit: Duration) -> Result<Self, SourceError> {
        let client = connector.connect().await?;
        Ok(Self { client, limit })
    }

    /// All keys below a prefix, without the prefix.
    pub async fn names(&mut self, prefix: &str) -> Result<Vec<String>, SourceError> {
        let options = GetOptions::new().with_prefix().with_keys_only();
        let request = self.client.get(prefix, Some(options));
        let answer = bounded(self.limit, request).await?;
        let names = answer.kvs().iter().filter_map(|kv| kv.key_str().ok());
        let names = names.filter_map(|key| key.strip_prefix(prefix));
        Ok(names.map(str::to_owned).collect())
    }

    /// Renews a lease. Returns whether it still existed.
    async fn keep_alive(&mut self, lease: i64) -> Result<bool, SourceError> {
        let request = self.client.lease_keep_alive(lease);
        let (mut keeper, mut answers) = bounded(self.limit, request).await?;
        bounded(self.limit, keeper.keep_alive()).await?;
        let answer = bounded(self.limit, answers.message()).await?;
        Ok(answer.is_some_and(|answer| answer.ttl() > 0))
    }
}

/// One key.
#[derive(Debug)]
pub struct EtcdKey {
    key: String,
    /// The last known revision; 0: absent.
    revision: i64,
    /// Lease of a write that was not answered: it may have succeeded.
    unanswered: Option<i64>,
    /// The last written value and its lease.
    written: Option<(Vec<u8>, i64)>,
    /// For failures while etcd refuses writes.
    refused: LogThrottle,
}

impl EtcdKey {
    pub fn new(key: String) -> Self {
        Self {
            key,
            revision: 0,
            unanswered: None,
            written: None,
            refused: LogThrottle::default(),
        }
    }

    /// The last known revision; 0: absent.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Whether etcd has another history than that in which this key got its known revision: it was restored from a backup
    /// or replaced. Then the key did not have this revision at this revision.
    pub async fn is_of_other_history(
        &self,
        session: &mut EtcdSession,
    ) -> Result<bool, SourceError> {
        if self.revision == 0 {
            return Ok(false);
        }
        let options = GetOptions::new()
            .with_revision(self.revision)
            .with_keys_only();
        let request = session.client.get(self.key.as_str(), Some(options));
        match bounded(session.limit, request).await {
            Ok(answer) => {
                let there = answer.kvs().first().map(KeyValue::mod_revision);
                Ok(there != Some(self.revision))
            }
            Err(error) if error.is_out_of_range() => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Reads the key; the next write may replace what was read.
    pub async fn read(
        &mut self,
        session: &mut EtcdSession,
    ) -> Result<Option<KeyValue>, SourceError> {
        let request = session.client.get(self.key.as_str(), None);
        let answer = bounded(session.limit, request).await?;
        let there = answer.kvs().first().cloned();
        self.revision = there.as_ref().map_or(0, KeyValue::mod_revision);
        Ok(there)
    }

    /// Writes the key with a new lease, unless its revision is not the known one. Returns whether it was written, or has this
    /// value and was kept alive. If not and the key is absent, the known revision is 0 afterwards.
    pub async fn put(
        &mut self,
        session: &mut EtcdSession,
        value: Vec<u8>,
        ttl: Duration,
    ) -> Result<bool, SourceError> {
        let error = match self.write(session, &value, ttl).await {
            Err(error @ SourceError::Failed(_)) => error,
            result => {
                if result.is_ok()
                    && let Some(after) = self.refused.recovered(&())
                {
                    tracing::info!(key = self.key, ?after, "etcd writes again");
                }
                return result;
            }
        };
        let kept = match &self.written {
            Some((before, lease)) if *before == value => session.keep_alive(*lease).await,
            _ => Ok(false),
        };
        if !kept.unwrap_or(false) {
            return Err(error);
        }
        if self.refused.should_log((), chain(&error)) {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(
                key = self.key,
                error,
                "etcd refuses to write: the key is kept alive as it is"
            );
        }
        Ok(true)
    }

    async fn write(
        &mut self,
        session: &mut EtcdSession,
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, SourceError> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
        let grant = session.client.lease_grant(seconds, None);
        let lease = bounded(session.limit, grant).await?.id();
        let options = PutOptions::new().with_lease(lease);
        let put = TxnOp::put(self.key.as_str(), value, Some(options));
        let before = self.unanswered.replace(lease);
        let revision = self.exchange(session, put, before).await?;
        self.revision = revision.unwrap_or(self.revision);
        self.unanswered = None;
        self.written = revision.map(|_| (value.to_vec(), lease));
        Ok(revision.is_some())
    }

    /// Deletes the key, unless its revision is not the known one.
    pub async fn delete(&mut self, session: &mut EtcdSession) -> Result<bool, SourceError> {
        if self.revision == 0 && self.unanswered.is_none() {
            return Ok(true);
        }
        let delete = TxnOp::delete(self.key.as_str(), None);
        let deleted = self.exchange(session, delete, self.unanswered).await?;
        self.revision = deleted.map_or(self.revision, |_| 0);
        (self.unanswered, self.written) = (None, None);
        Ok(deleted.is_some())
    }

    /// Does it if the key has the known revision. Returns the revision of that, if it was done. `unanswered`: lease of an
    /// earlier write that may have succeeded.
    async fn exchange(
        &mut self,
        session: &mut EtcdSession,
        operation: TxnOp,
        unanswered: Option<i64>,
    ) -> Result<Option<i64>, SourceError> {
        match self.attempt(session, operation.clone()).await? {
            Ok(revision) => Ok(Some(revision)),
            Err(None) => {
                self.revision = 0;
                Ok(None)
            }
            Err(Some(there)) if unanswered == Some(there.lease()) => {
                self.revision = there.mod_revision();
                Ok(self.attempt(session, operation).await?.ok())
            }
            Err(Some(_)) => Ok(None),
        }
    }

    /// The revision at which it was done; else what is there: the key has another revision, or is absent.
    async fn attempt(
        &self,
        session: &mut EtcdSession,
        operation: TxnOp,
    ) -> Result<Result<i64, Option<KeyValue>>, SourceError> {
        let key = self.key.as_str();
        let txn = Txn::new()
            .when([Compare::mod_revision(key, CompareOp::Equal, self.revision)])
            .and_then([operation])
            .or_else([TxnOp::get(key, None)]);
        let answer = bounded(session.limit, session.client.txn(txn)).await?;
        if answer.succeeded() {
            return Ok(Ok(answer.header().map_or(0, |header| header.revision())));
        }
        let mut responses = answer.op_responses().into_iter();
        let there = responses.find_map(|response| match response {
            TxnOpResponse::Get(get) => get.kvs().first().cloned(),
            _ => None,
        });
        Ok(Err(there))
    }
}
