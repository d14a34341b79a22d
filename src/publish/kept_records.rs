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
use crate::cluster::connector::{Connector, REQUEST_TIMEOUT};
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
    pub connector: Connector,
    pub keys: EtcdKeys,
    /// By server ID, with their revisions.
    pub records: watch::Receiver<BTreeMap<String, i64>>,
    /// Lifetime of a record.
    pub ttl: Duration,
}

/// When each record is written next.
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
        let before = std::mem::take(&mut self.0);
        let next = |id: &String, revision: i64| match before.get(id) {
            Some((seen, due)) if *seen == revision => *due,
            Some(_) => now + (ttl / ROUNDS_PER_LIFE).mul_f64(1.0 + random / 4.0),
            None => now + (ttl / SOON_PER_LIFE).min(SOON).mul_f64(random),
        };
        let records = records.iter();
        self.0 = records
            .map(|(id, revision)| (id.clone(), (*revision, next(id, *revision))))
            .collect();
    }

    fn next(&self) -> Option<Instant> {
        self.0.values().map(|(_, due)| *due).min()
    }

    fn due(&self, now: Instant) -> Vec<(String, i64)> {
        let due = self.0.iter().filter(|(_, (_, due))| *due <= now);
        due.map(|(id, (revision, _))| (id.clone(), *revision))
            .collect()
    }

    /// It was written, or failed: a write shows itself by a new revision before `again`.
    fn tried(&mut self, id: &str, again: Instant) {
        if let Some((_, due)) = self.0.get_mut(id) {
            *due = again;
        }
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
            for (id, revision) in rounds.due(Instant::now()) {
                match self.prolong(&id, revision).await {
                    Ok(written) => {
                        let _ = throttle.recovered(&id);
                        tracing::debug!(peer = ?id, written, "record of a server without its proxy prolonged");
                        rounds.tried(&id, Instant::now() + self.ttl / ROUNDS_PER_LIFE);
                    }
                    Err(error) => {
                        if throttle.should_log(id.clone(), chain(&error)) {
                            let error = &error as &dyn std::error::Error;
                            tracing::warn!(peer = ?id, error, "record of a server without its proxy cannot be prolonged, trying on");
                        }
                        rounds.tried(&id, Instant::now() + RETRY.min(self.ttl / SOON_PER_LIFE));
                    }
                }
            }
            tokio::select! {
                () = sleep_until(rounds.next()) => {}
                changed = self.records.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Writes the record of `revision` again with a new lease. Returns whether it was still there.
    async fn prolong(&mut self, id: &str, revision: i64) -> Result<bool, SourceError> {
        let mut session = EtcdSession::open(&mut self.connector, REQUEST_TIMEOUT).await?;
        let mut record = EtcdKey::new(format!("{}{id}", self.keys.of(Topic::Servers)));
        let there = record.read(&mut session).await?;
        let Some(there) = there.filter(|there| there.mod_revision() == revision) else {
            return Ok(false);
        };
        record
            .put(&mut session, there.value().to_vec(), self.ttl)
            .await
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
        assert_eq!(rounds.due(start), []);
        let now = start + SOON;
        assert_eq!(rounds.due(now), [("b".to_owned(), 7)]);
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
