//! Proves that no server is missing in what is followed: without that, "no server lists it" may be true of the past only.
//!
//! A member of etcd that lags says how far it has come, and that is not far enough. So a request that would be told "no
//! such resource" waits for a linearizable read of the keys by which servers show themselves, begun after the request
//! came, and then until everything that it showed is in the snapshot. One read at a time serves all requests that came
//! before it, and those that come meanwhile wait for the next one. Nothing is read while no request waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::Client;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::connector::Session;
use super::etcd;
use super::keys::{EtcdKeys, Topic};
use super::source::{Listing, SourceError};
use crate::log_throttle::{LogThrottle, warn_new};

/// The keys by which servers show themselves.
pub const TOPICS: [Topic; 5] = [
    Topic::Servers,
    Topic::Live,
    Topic::PeerEndpoints,
    Topic::Claims,
    Topic::MasterLeases,
];

/// A revision for each of [`TOPICS`].
pub type Revisions = [i64; TOPICS.len()];

/// With these revisions, and 0 for the other topics.
pub fn revisions(known: &[(Topic, i64)]) -> Revisions {
    TOPICS.map(|topic| {
        let found = known.iter().find(|(of, _)| *of == topic);
        found.map_or(0, |(_, revision)| *revision)
    })
}

/// How long a request waits.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time for a read. Then another member is asked, while requests still wait.
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// After a read that failed.
const PAUSE: Duration = Duration::from_millis(100);

/// A linearizable read of the keys by which servers show themselves.
pub trait NewestWrites: Send {
    /// The revision of the newest write to each topic. `followed`: up to which revisions they are known.
    fn read(
        &mut self,
        followed: Revisions,
    ) -> impl Future<Output = Result<Revisions, SourceError>> + Send;
}

/// Between the requests, the reader and the catalog.
#[derive(Debug, Default)]
pub struct Absence {
    /// Requests so far.
    asked: AtomicU64,
    wanted: Notify,
    read: watch::Sender<Reading>,
    /// Up to which revision the published snapshot knows each topic.
    pub followed: watch::Sender<Revisions>,
}

/// The last read.
#[derive(Debug, Clone, Copy, Default)]
struct Reading {
    /// Requests that had come when it began.
    asked: u64,
    /// Of the last write that each topic shows.
    newest: Revisions,
}

impl Absence {
    /// Whether the snapshot gets, within two seconds, all servers that have written their keys before this call.
    pub async fn is_nobody_missing(&self) -> bool {
        let caught_up = async {
            let newest = self.newest().await;
            let mut followed = self.followed.subscribe();
            // The sender is in `self`.
            let _ = followed.wait_for(|now| covers(now, &newest)).await;
        };
        timeout(PATIENCE, caught_up).await.is_ok()
    }

    /// What a read shows that begins after this call.
    async fn newest(&self) -> Revisions {
        let mut read = self.read.subscribe();
        let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        self.wanted.notify_one();
        let reading = read.wait_for(|reading| reading.asked >= number).await;
        reading.map_or([i64::MAX; TOPICS.len()], |reading| reading.newest)
    }

    /// Reads when requests wait. Runs until dropped.
    pub async fn serve(&self, mut source: impl NewestWrites) {
        let throttle = LogThrottle::default();
        loop {
            self.wanted.notified().await;
            while self.read.receiver_count() > 0 {
                let asked = self.asked.load(Ordering::SeqCst);
                let followed = *self.followed.borrow();
                match source.read(followed).await {
                    Ok(newest) => {
                        throttle.recovered(&());
                        self.read.send_replace(Reading { asked, newest });
                        break;
                    }
                    Err(error) => {
                        let text = "etcd cannot be asked for servers: no 404 is certain";
                        warn_new!(throttle, (), &error, "{text}");
                        sleep(PAUSE).await;
                    }
                }
            }
        }
    }
}

/// Whether everything that was read, or written, is known.
pub fn covers(followed: &Revisions, newest: &Revisions) -> bool {
    followed.iter().zip(newest).all(|(known, new)| known >= new)
}

/// The revision of the last write that a listing shows. `followed`: up to which revision the topic was known before.
fn last_write(listing: &Listing, followed: i64) -> Result<i64, SourceError> {
    if listing.revision < followed {
        let what = format!("revision {followed} was known, and has not been written yet");
        return Err(SourceError::OtherHistory(what));
    }
    let writes = listing.items.iter().map(|item| item.mod_revision);
    Ok(writes.max().unwrap_or(0))
}

/// Reads etcd, over a connection of its own.
pub struct EtcdReader {
    pub etcd: Session,
    pub keys: EtcdKeys,
}

impl NewestWrites for EtcdReader {
    async fn read(&mut self, followed: Revisions) -> Result<Revisions, SourceError> {
        let reading = async {
            let client = self.etcd.client().await?;
            let [servers, live, endpoints, claims, masters] =
                std::array::from_fn(|at| self.last_write(&client, TOPICS[at], followed[at]));
            let (servers, live, endpoints, claims, masters) =
                tokio::try_join!(servers, live, endpoints, claims, masters)?;
            Ok([servers, live, endpoints, claims, masters])
        };
        let read = timeout(READ_TIMEOUT, reading).await;
        let read = read.unwrap_or(Err(SourceError::Timeout));
        if read.is_err() {
            self.etcd.close();
        }
        read
    }
}

impl EtcdReader {
    async fn last_write(
        &self,
        client: &Client,
        topic: Topic,
        followed: i64,
    ) -> Result<i64, SourceError> {
        // It is not followed.
        if followed == i64::MAX {
            return Ok(0);
        }
        match etcd::list(client.kv_client(), &self.keys.of(topic), true).await {
            Err(error) if topic.is_optional() && error.is_denied() => Ok(0),
            listing => last_write(&listing?, followed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;
    use crate::cluster::source::EtcdItem;

    /// Each read announces itself, and ends with what is sent.
    struct Scripted {
        begun: mpsc::UnboundedSender<()>,
        results: mpsc::UnboundedReceiver<Option<i64>>,
    }

    impl NewestWrites for Scripted {
        async fn read(&mut self, _: Revisions) -> Result<Revisions, SourceError> {
            self.begun.send(()).unwrap();
            let result = self.results.recv().await.unwrap();
            result.map(all).ok_or(SourceError::Timeout)
        }
    }

    struct World {
        absence: Arc<Absence>,
        begun: mpsc::UnboundedReceiver<()>,
        results: mpsc::UnboundedSender<Option<i64>>,
    }

    impl World {
        fn new(followed: i64) -> Self {
            let (begun_sender, begun) = mpsc::unbounded_channel();
            let (results, results_receiver) = mpsc::unbounded_channel();
            let absence = Arc::new(Absence::default());
            absence.followed.send_replace(all(followed));
            let serving = absence.clone();
            let source = Scripted {
                begun: begun_sender,
                results: results_receiver,
            };
            tokio::spawn(async move { serving.serve(source).await });
            Self {
                absence,
                begun,
                results,
            }
        }

        /// A request that has come.
        async fn ask(&self) -> tokio::task::JoinHandle<bool> {
            let absence = self.absence.clone();
            let asked = tokio::spawn(async move { absence.is_nobody_missing().await });
            settle().await;
            asked
        }

        fn reads(&mut self) -> usize {
            std::iter::from_fn(|| self.begun.try_recv().ok()).count()
        }
    }

    fn all(revision: i64) -> Revisions {
        [revision; TOPICS.len()]
    }

    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn what_is_read_is_covered_when_each_topic_is_followed_so_far() {
        assert!(covers(&all(7), &all(7)) && covers(&all(8), &all(7)));
        for topic in 0..TOPICS.len() {
            let mut newest = all(7);
            newest[topic] = 8;
            assert!(!covers(&all(7), &newest), "{:?}", TOPICS[topic]);
        }
    }

    #[test]
    fn the_last_write_is_the_newest_key_and_a_restored_etcd_proves_nothing() {
        let item = |mod_revision: i64| EtcdItem {
            key: mod_revision.to_string(),
            value: Vec::new(),
            create_revision: 1,
            mod_revision,
        };
        let listing = |revisions: &[i64]| Listing {
            revision: 9,
            items: revisions.iter().copied().map(item).collect(),
            rest: None,
        };
        assert_eq!(last_write(&listing(&[]), 9).unwrap(), 0);
        assert_eq!(last_write(&listing(&[3, 8, 5]), 4).unwrap(), 8);
        let error = last_write(&listing(&[3]), 10).unwrap_err();
        assert!(matches!(error, SourceError::OtherHistory(_)), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_read_is_under_way_and_one_waits_for_all_requests_together() {
        let mut world = World::new(5);
        settle().await;
        assert_eq!(world.reads(), 0, "nobody asks");
        let first = world.ask().await;
        assert_eq!(world.reads(), 1);
        let mut later = Vec::new();
        for _ in 0..50 {
            later.push(world.ask().await);
        }
        assert_eq!(world.reads(), 0, "one is under way");
        world.results.send(Some(5)).unwrap();
        assert!(first.await.unwrap());
        settle().await;
        assert_eq!(world.reads(), 1);
        assert!(later.iter().all(|asked| !asked.is_finished()));
        world.results.send(Some(5)).unwrap();
        for asked in later {
            assert!(asked.await.unwrap());
        }
        settle().await;
        assert_eq!(world.reads(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_until_a_newer_record_is_followed() {
        let world = World::new(5);
        let asked = world.ask().await;
        world.results.send(Some(8)).unwrap();
        settle().await;
        for (followed, done) in [(7, false), (8, true)] {
            world.absence.followed.send_replace(all(followed));
            settle().await;
            assert_eq!(asked.is_finished(), done, "{followed}");
        }
        assert!(asked.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_proved_within_two_seconds_is_not_proved() {
        let begun = Instant::now();
        let mut world = World::new(5);
        let behind = world.ask().await;
        world.results.send(Some(8)).unwrap();
        assert!(!behind.await.unwrap());
        assert_eq!(begun.elapsed(), PATIENCE);
        assert_eq!(world.reads(), 1);

        // Reads that fail are repeated while somebody waits.
        let unread = world.ask().await;
        for _ in 0..1000 {
            world.results.send(None).unwrap();
        }
        assert!(!unread.await.unwrap());
        tokio::time::sleep(PATIENCE).await;
        let reads = world.reads();
        assert!((2..=21).contains(&reads), "{reads}");
    }
}
