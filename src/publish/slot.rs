//! A key of ours in etcd, written only over what is known to be there.
//!
//! Every write is a transaction on the key's revision, in the forms that kine knows too. An etcd that answers and refuses
//! to write (its space is used up) still keeps leases alive: a key that says the truth is kept with the one it has.

use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse,
};

use crate::cluster::connector::{Connector, bounded};
use crate::cluster::source::SourceError;
use crate::trouble::{Trouble, chain};

/// A connection to a member of etcd, with a limit for each request.
pub struct Session {
    client: Client,
    limit: Duration,
}

impl Session {
    /// To the next member.
    pub async fn open(connector: &mut Connector, limit: Duration) -> Result<Self, SourceError> {
        let client = connector.connect().await?;
        Ok(Self { client, limit })
    }

    /// The names of all keys below a prefix, without it.
    pub async fn names(&mut self, prefix: &str) -> Result<Vec<String>, SourceError> {
        let options = GetOptions::new().with_prefix().with_keys_only();
        let request = self.client.get(prefix, Some(options));
        let answer = bounded(self.limit, request).await?;
        let names = answer.kvs().iter().filter_map(|kv| kv.key_str().ok());
        let names = names.filter_map(|key| key.strip_prefix(prefix));
        Ok(names.map(str::to_owned).collect())
    }

    /// Whether a lease lives on.
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
pub struct Slot {
    key: String,
    /// The revision that is believed to be there; 0: none.
    revision: i64,
    /// Lease of what was sent without an answer since: it may be there.
    unanswered: Option<i64>,
    /// What was written last, and its lease.
    written: Option<(Vec<u8>, i64)>,
    /// etcd refuses to write it.
    refused: Trouble,
}

impl Slot {
    /// Believed to be absent.
    pub fn new(key: String) -> Self {
        Self {
            key,
            revision: 0,
            unanswered: None,
            written: None,
            refused: Trouble::default(),
        }
    }

    /// The revision that is believed to be there.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Reads it, and takes what is there for what may be written over.
    pub async fn read(&mut self, session: &mut Session) -> Result<Option<KeyValue>, SourceError> {
        let request = session.client.get(self.key.as_str(), None);
        let answer = bounded(session.limit, request).await?;
        let there = answer.kvs().first().cloned();
        self.revision = there.as_ref().map_or(0, KeyValue::mod_revision);
        Ok(there)
    }

    /// Writes it under a fresh lease, unless something else is there than believed. Whether it was written, or is there
    /// with this value and lives on; if not, an absent key is known to be absent now.
    pub async fn put(
        &mut self,
        session: &mut Session,
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
                if self.refused.is_news((), chain(&error)) {
                    tracing::warn!(
                        key = self.key,
                        error = &error as &dyn std::error::Error,
                        "etcd refuses to write: the key is kept alive as it is"
                    );
                }
                Ok(true)
            }
            Ok(written) => {
                if let Some(after) = self.refused.is_over(&()) {
                    tracing::info!(key = self.key, ?after, "etcd writes again");
                }
                Ok(written)
            }
            Err(error) => Err(error),
        }
    }

    async fn write(
        &mut self,
        session: &mut Session,
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

    /// Removes it, unless something else is there than believed.
    pub async fn delete(&mut self, session: &mut Session) -> Result<bool, SourceError> {
        if self.revision == 0 && self.unanswered.is_none() {
            return Ok(true);
        }
        let delete = TxnOp::delete(self.key.as_str(), None);
        let before = self.unanswered;
        let deleted = self.exchange(session, delete, before, |_| 0).await?;
        (self.unanswered, self.written) = (None, None);
        Ok(deleted)
    }

    /// `unanswered`: lease of what may be there because it was sent before.
    async fn exchange(
        &mut self,
        session: &mut Session,
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
        session: &mut Session,
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
    /// Something else than believed is there.
    Found(Option<KeyValue>),
}
