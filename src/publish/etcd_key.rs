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
        match self.write(session, &value, ttl).await {
            Err(error @ SourceError::Failed(_)) => {
                let same = self.written.as_ref().filter(|(before, _)| *before == value);
                let Some((_, lease)) = same else {
                    return Err(error);
                };
                if !session.keep_alive(*lease).await.unwrap_or(false) {
                    return Err(error);
                }
                if self.refused.should_log((), chain(&error)) {
                    tracing::warn!(
                        key = self.key,
                        error = &error as &dyn std::error::Error,
                        "etcd refuses to write: the key is kept alive as it is"
                    );
                }
                Ok(true)
            }
            Ok(written) => {
                if let Some(after) = self.refused.recovered(&()) {
                    tracing::info!(key = self.key, ?after, "etcd writes again");
                }
                Ok(written)
            }
            Err(error) => Err(error),
        }
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
        let written = self.exchange(session, put, before, |revision| revision);
        let written = written.await?;
        self.unanswered = None;
        self.written = written.then(|| (value.to_vec(), lease));
        Ok(written)
    }

    /// Deletes the key, unless its revision is not the known one.
    pub async fn delete(&mut self, session: &mut EtcdSession) -> Result<bool, SourceError> {
        if self.revision == 0 && self.unanswered.is_none() {
            return Ok(true);
        }
        let delete = TxnOp::delete(self.key.as_str(), None);
        let before = self.unanswered;
        let deleted = self.exchange(session, delete, before, |_| 0).await?;
        (self.unanswered, self.written) = (None, None);
        Ok(deleted)
    }

    /// `unanswered`: lease of an earlier write that may have succeeded.
    async fn exchange(
        &mut self,
        session: &mut EtcdSession,
        operation: TxnOp,
        unanswered: Option<i64>,
        becomes: impl Fn(i64) -> i64,
    ) -> Result<bool, SourceError> {
        let there = match self.attempt(session, operation.clone(), &becomes).await? {
            Attempt::Done => return Ok(true),
            Attempt::Found(there) => there,
        };
        match there {
            None => self.revision = 0,
            Some(kv) if unanswered == Some(kv.lease()) => {
                self.revision = kv.mod_revision();
                let again = self.attempt(session, operation, &becomes).await?;
                return Ok(matches!(again, Attempt::Done));
            }
            Some(_) => {}
        }
        Ok(false)
    }

    async fn attempt(
        &mut self,
        session: &mut EtcdSession,
        operation: TxnOp,
        becomes: &impl Fn(i64) -> i64,
    ) -> Result<Attempt, SourceError> {
        let key = self.key.as_str();
        let txn = Txn::new()
            .when([Compare::mod_revision(key, CompareOp::Equal, self.revision)])
            .and_then([operation])
            .or_else([TxnOp::get(key, None)]);
        let answer = bounded(session.limit, session.client.txn(txn)).await?;
        if answer.succeeded() {
            self.revision = becomes(answer.header().map_or(0, |header| header.revision()));
            return Ok(Attempt::Done);
        }
        let there = answer
            .op_responses()
            .into_iter()
            .find_map(|response| match response {
                TxnOpResponse::Get(get) => get.kvs().first().cloned(),
                _ => None,
            });
        Ok(Attempt::Found(there))
    }
}

enum Attempt {
    Done,
    /// The key has another revision, or is absent.
    Found(Option<KeyValue>),
}
