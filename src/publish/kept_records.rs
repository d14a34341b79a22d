//! Prolongs the records of other servers whose proxy is down while their apiserver lives and cannot be read.
//!
//! Nobody else writes such a record. When it ended, what only this apiserver serves would count as served by nobody, and
//! its controllers would get false 404s. Only the lease is new, the value stays, and the write is a transaction on the
//! revision that was seen: what `forget` has deleted, or the server itself has written, is left alone.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::etcd_key::EtcdKey;
use crate::cluster::connector::Session;
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::cluster::source::SourceError;
use crate::log_throttle::{LogThrottle, warn_new};
use crate::retry::jittered;

/// A record is prolonged after this part of its lifetime.
const ROUNDS_PER_LIFE: u32 = 3;
/// How much of its lifetime is left is unknown for a record that was not seen before: it is prolonged within this part.
const LOOKS_PER_LIFE: u32 = 30;
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Runs until it is dropped. `records`: by server ID, with their revisions. `ttl`: lifetime of a record.
pub async fn run(
    mut etcd: Session,
    keys: EtcdKeys,
    mut records: watch::Receiver<BTreeMap<String, i64>>,
    ttl: Duration,
) {
    let mut prolonged: BTreeMap<String, Instant> = BTreeMap::new();
    let throttle = LogThrottle::default();
    while records.has_changed().is_ok() {
        tokio::time::sleep(jittered((ttl / LOOKS_PER_LIFE).min(LONGEST_PAUSE))).await;
        prolonged.retain(|_, at| at.elapsed() < ttl / ROUNDS_PER_LIFE);
        let mut due = records.borrow_and_update().clone();
        due.retain(|id, _| !prolonged.contains_key(id));
        for (id, revision) in due {
            let mut record = EtcdKey::new(format!("{}{id}", keys.of(Topic::Servers)));
            let text = "the record of a server without its proxy cannot be renewed, retrying";
            // Written again with a new lease, if it still has this revision.
            let prolong = async {
                let value = record.read(&mut etcd).await?.map(<[u8]>::to_vec);
                if let Some(value) = value.filter(|_| record.revision() == revision) {
                    record.put(&mut etcd, value, ttl).await?;
                }
                Ok::<(), SourceError>(())
            };
            match prolong.await {
                Ok(()) => {
                    let _ = throttle.recovered(&id);
                    prolonged.insert(id, Instant::now());
                }
                Err(error) => warn_new!(throttle, id.clone(), &error, peer = ?id, "{text}"),
            }
            // The next try is over another connection, and long after.
            etcd.close();
        }
    }
}
