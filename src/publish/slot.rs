//! A key of ours in etcd, written only over what is known to be there.
//!
//! Every write is a transaction on the key's revision, in the forms that kine knows too.

use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse};

use crate::cluster::etcd::within;
use crate::cluster::source::SourceError;

/// One key.
#[derive(Debug)]
pub struct Slot {
    key: String,
    /// The revision that is believed to be there; 0: none.
    revision: i64,
}

impl Slot {
    /// Believed to be absent.
    pub fn new(key: String) -> Self {
        Self { key, revision: 0 }
    }

    /// The revision that is believed to be there.
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Reads it, and takes what is there for what may be written over.
    pub async fn read(&mut self, client: &mut Client) -> Result<Option<KeyValue>, SourceError> {
        let answer = within(client.get(self.key.as_str(), None)).await?;
        let there = answer.kvs().first().cloned();
        self.revision = there.as_ref().map_or(0, KeyValue::mod_revision);
        Ok(there)
    }

    /// Writes it under a fresh lease, unless something else is there than believed. Whether it was written; if not, an
    /// absent key is known to be absent now.
    pub async fn put(
        &mut self,
        client: &mut Client,
        value: Vec<u8>,
        ttl: Duration,
    ) -> Result<bool, SourceError> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
        let lease = within(client.lease_grant(seconds, None)).await?.id();
        let options = PutOptions::new().with_lease(lease);
        let put = TxnOp::put(self.key.as_str(), value, Some(options));
        self.exchange(client, put, |revision| revision).await
    }

    /// Removes it, unless something else is there than believed.
    pub async fn delete(&mut self, client: &mut Client) -> Result<bool, SourceError> {
        if self.revision == 0 {
            return Ok(true);
        }
        let delete = TxnOp::delete(self.key.as_str(), None);
        self.exchange(client, delete, |_| 0).await
    }

    async fn exchange(
        &mut self,
        client: &mut Client,
        operation: TxnOp,
        becomes: impl Fn(i64) -> i64,
    ) -> Result<bool, SourceError> {
        let key = self.key.as_str();
        let txn = Txn::new()
            .when([Compare::mod_revision(key, CompareOp::Equal, self.revision)])
            .and_then([operation])
            .or_else([TxnOp::get(key, None)]);
        let answer = within(client.txn(txn)).await?;
        if answer.succeeded() {
            self.revision = becomes(answer.header().map_or(0, |header| header.revision()));
            return Ok(true);
        }
        let gone = answer
            .op_responses()
            .into_iter()
            .all(|response| match response {
                TxnOpResponse::Get(get) => get.kvs().is_empty(),
                _ => false,
            });
        if gone {
            self.revision = 0;
        }
        Ok(false)
    }
}
