//! Prolongs the records of other servers whose proxy is gone while their apiserver lives and cannot be read.
//!
//! Nobody else writes such a record. When it ended, what only this apiserver serves would count as served by nobody, and
//! its controllers would get false 404s. Every proxy prolongs it; the first one of a round writes, and the others see the
//! new revision. Only the lease is new, the value stays, and the write is a transaction on the revision that was seen:
//! what `forget` has deleted, or the server itself has written, is left alone.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;
use tokio::sync::watch;
use tokio::time::Instant;

use super::etcd_key::{EtcdKey, EtcdSession};
use crate::cluster::keys::{EtcdKeys, Topic};
use crate::cluster::source::SourceError;
use crate::log_throttle::{LogThrottle, chain};
use crate::retry::sleep_until;

/// A record that was just written is prolonged after this part of its lifetime.
const ROUNDS_PER_LIFE: u32 = 3;
/// How much of its lifetime is left is unknown for a record that was not seen before: it is prolonged within this part.
const SOON_PER_LIFE: u32 = 30;
const SOON: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);

/// The task's inputs.
pub struct RecordKeeper {
    pub etcd: EtcdSession,
    pub keys: EtcdKeys,
    /// By server ID, with their revisions.
    pub records: watch::Receiver<BTreeMap<String, i64>>,
    /// Lifetime of a record.
    pub ttl: Duration,
}

/// When each record is written next, by server ID, with the revision that it has.
#[derive(Debug, Default)]
struct Rounds(BTreeMap<String, (i64, Instant)>);

impl Rounds {
    /// The records are these now. `random`: from 0 up to 1.
    fn update(
        &mut self,
        records: &BTreeMap<String, i64>,
        ttl: Duration,
        now: Instant,
        random: f64,
    ) {
        self.0.retain(|id, _| records.contains_key(id));
        for (id, revision) in records {
            let next = match self.0.get(id) {
                Some((seen, _)) if seen == revision => continue,
                Some(_) => (ttl / ROUNDS_PER_LIFE).mul_f64(1.0 + random / 4.0),
                None => (ttl / SOON_PER_LIFE).min(SOON).mul_f64(random),
            };
            self.0.insert(id.clone(), (*revision, now + next));
        }
    }

    fn next(&self) -> Option<Instant> {
        self.0.values().map(|(_, due)| *due).min()
    }
}

impl RecordKeeper {
    /// Runs until it is dropped.
    pub async fn run(mut self) {
        let mut rounds = Rounds::default();
        let throttle = LogThrottle::default();
        loop {
            let records = self.records.borrow_and_update().clone();
            let random = rand::thread_rng().r#gen();
            rounds.update(&records, self.ttl, Instant::now(), random);
            for (id, (revision, due)) in &mut rounds.0 {
                if *due > Instant::now() {
                    continue;
                }
                let prolonged = self.prolong(id, *revision).await;
                // The next try is over another connection, and long after.
                self.etcd.close();
                // A write shows itself by a new revision before it is due again.
                let pause = match prolonged {
                    Ok(()) => {
                        let _ = throttle.recovered(id);
                        self.ttl / ROUNDS_PER_LIFE
                    }
                    Err(error) => {
                        if throttle.should_log(id.clone(), chain(&error)) {
                            let error = &error as &dyn std::error::Error;
                            tracing::warn!(peer = ?id, error, "record of a server without its proxy cannot be prolonged, trying on");
                        }
                        RETRY.min(self.ttl / SOON_PER_LIFE)
                    }
                };
                *due = Instant::now() + pause;
            }
            tokio::select! {
                () = sleep_until(rounds.next()) => {}
                changed = self.records.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Writes the record again with a new lease, if it still has this revision.
    async fn prolong(&mut self, id: &str, revision: i64) -> Result<(), SourceError> {
        let etcd = &mut self.etcd;
        let mut record = EtcdKey::new(format!("{}{id}", self.keys.of(Topic::Servers)));
        let value = record.read(etcd).await?.map(<[u8]>::to_vec);
        if let Some(value) = value.filter(|_| record.revision() == revision) {
            record.put(etcd, value, self.ttl).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(3600);

    fn records(revision: i64) -> BTreeMap<String, i64> {
        [("b".to_owned(), revision)].into()
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_record_is_prolonged_soon_and_one_just_written_after_a_third_of_its_life() {
        let start = Instant::now();
        let mut rounds = Rounds::default();
        rounds.update(&records(7), TTL, start, 0.5);
        assert_eq!(rounds.next(), Some(start + SOON / 2));
        let now = start + SOON;
        // Another proxy was first.
        rounds.update(&records(8), TTL, now, 1.0);
        let next = rounds.next().unwrap();
        assert!(next >= now + TTL / 3 && next <= now + TTL / 2);
        // Nothing new.
        rounds.update(&records(8), TTL, now + SOON, 0.0);
        assert_eq!(rounds.next(), Some(next));
        rounds.update(&BTreeMap::new(), TTL, now + SOON, 0.0);
        assert_eq!(rounds.next(), None);
    }
}
