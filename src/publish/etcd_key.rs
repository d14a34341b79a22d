//! One of this server's keys in etcd, written only over the revision that was read or written last.
//!
//! Every write is a transaction on the key's revision, in the forms that kine supports too. An etcd that refuses writes
//! because its space is used up still keeps leases alive: a key whose value has not changed is kept with the lease it has.

use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetOptions, GetResponse, PutOptions, Txn, TxnOp};

use crate::cluster::connector::{Session, bounded};
use crate::cluster::source::SourceError;
use crate::log_throttle::{chain, log_rarely};

async fn get(
    etcd: &mut Session,
    key: &str,
    options: GetOptions,
) -> Result<GetResponse, SourceError> {
    let mut client = etcd.client().await?;
    bounded(etcd.limit(), client.get(key, Some(options))).await
}

/// All keys below a prefix, without the prefix.
pub async fn names(etcd: &mut Session, prefix: &str) -> Result<Vec<String>, SourceError> {
    let options = GetOptions::new().with_prefix().with_keys_only();
    let answer = get(etcd, prefix, options).await?;
    let names = answer.kvs().iter().filter_map(|kv| kv.key_str().ok());
    let names = names.filter_map(|key| key.strip_prefix(prefix));
    Ok(names.map(str::to_owned).collect())
}

/// Renews a lease. Returns whether it still existed.
async fn keep_alive(etcd: &mut Session, lease: i64) -> Result<bool, SourceError> {
    let mut client = etcd.client().await?;
    let (mut keeper, mut answers) = bounded(etcd.limit(), client.lease_keep_alive(lease)).await?;
    bounded(etcd.limit(), keeper.keep_alive()).await?;
    let answer = bounded(etcd.limit(), answers.message()).await?;
    Ok(answer.is_some_and(|answer| answer.ttl() > 0))
}

/// One key.
#[derive(Debug)]
pub struct EtcdKey {
    key: String,
    /// As last read or written; `None`: absent.
    known: Option<KnownValue>,
}

#[derive(Debug)]
struct KnownValue {
    revision: i64,
    value: Vec<u8>,
    lease: i64,
}

impl EtcdKey {
    pub fn new(key: String) -> Self {
        Self { key, known: None }
    }

    /// The last known revision; 0: absent.
    pub fn revision(&self) -> i64 {
        self.known.as_ref().map_or(0, |known| known.revision)
    }

    /// Whether etcd has the history in which this key got its known revision, and was not restored from a backup or replaced.
    /// `None`: the key is another one now, and etcd has compacted what was then.
    pub async fn has_its_history(&self, etcd: &mut Session) -> Result<Option<bool>, SourceError> {
        let revision = self.revision();
        if revision == 0 {
            return Ok(Some(true));
        }
        let mut is_compacted = false;
        let options = GetOptions::new().with_revision(revision).with_keys_only();
        let answer = match get(etcd, &self.key, options).await {
            Err(error) if error.is_out_of_range() => {
                is_compacted = error.is_compacted();
                get(etcd, &self.key, GetOptions::new().with_keys_only()).await?
            }
            answer => answer?,
        };
        let there = answer.kvs().first().map(|kv| kv.mod_revision());
        // It has ended since, or somebody else has written it.
        let is_unknown = is_compacted && there.is_none_or(|there| there > revision);
        Ok((!is_unknown).then_some(there == Some(revision)))
    }

    /// Reads the value; the next write may replace it.
    pub async fn read(&mut self, etcd: &mut Session) -> Result<Option<&[u8]>, SourceError> {
        let answer = get(etcd, &self.key, GetOptions::new()).await?;
        self.known = answer.kvs().first().map(|kv| KnownValue {
            revision: kv.mod_revision(),
            value: kv.value().to_vec(),
            lease: kv.lease(),
        });
        Ok(self.known.as_ref().map(|known| &*known.value))
    }

    /// Writes the key with a new lease, unless its revision is not the known one. Returns whether it was written, or has
    /// this value and was kept alive.
    pub async fn put(
        &mut self,
        etcd: &mut Session,
        value: Vec<u8>,
        ttl: Duration,
    ) -> Result<bool, SourceError> {
        let written = self.write(etcd, &value, ttl).await;
        if let (Err(error @ SourceError::Failed(_)), Some(known)) = (&written, &self.known)
            && known.value == value
            && keep_alive(etcd, known.lease).await.unwrap_or(false)
        {
            let (key, error) = (&self.key, chain(error));
            let text = "etcd refuses to write: the key is kept alive as it is";
            log_rarely!(warn, key, error, "{text}");
            return Ok(true);
        }
        written
    }

    async fn write(
        &mut self,
        etcd: &mut Session,
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, SourceError> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
        let mut client = etcd.client().await?;
        let grant = client.lease_grant(seconds, None);
        let lease = bounded(etcd.limit(), grant).await?.id();
        let options = PutOptions::new().with_lease(lease);
        let put = TxnOp::put(self.key.as_str(), value, Some(options));
        let revision = self.attempt(etcd, put).await?;
        if let Some(revision) = revision {
            self.known = Some(KnownValue {
                revision,
                value: value.to_vec(),
                lease,
            });
        }
        Ok(revision.is_some())
    }

    /// Deletes the key, unless its revision is not the known one.
    pub async fn delete(&mut self, etcd: &mut Session) -> Result<(), SourceError> {
        if self.known.is_some() {
            let delete = TxnOp::delete(self.key.as_str(), None);
            self.attempt(etcd, delete).await?;
            self.known = None;
        }
        Ok(())
    }

    /// Does it if the key has the known revision. Returns the revision of that, if it was done.
    async fn attempt(
        &self,
        etcd: &mut Session,
        operation: TxnOp,
    ) -> Result<Option<i64>, SourceError> {
        let key = self.key.as_str();
        let known = Compare::mod_revision(key, CompareOp::Equal, self.revision());
        // kine knows only transactions that else read the key.
        let txn = Txn::new()
            .when([known])
            .and_then([operation])
            .or_else([TxnOp::get(key, None)]);
        let mut client = etcd.client().await?;
        let answer = bounded(etcd.limit(), client.txn(txn)).await?;
        let revision = answer.header().map_or(0, |header| header.revision());
        Ok(answer.succeeded().then_some(revision))
    }
}
