//! Lists one prefix, then watches it from the next revision, for ever.
//!
//! The known revision advances with every batch, progress included, so that a broken watch resumes where it stopped. Only a
//! compacted revision, or an etcd that was restored from a backup, causes a new list. Half a list is never visible: readers
//! stage what comes between [`Event::Init`] and [`Event::InitDone`] until it is complete.
//!
//! A restored etcd that is past the known revision when it is watched again is not noticed here: who publishes this server's keys
//! tells it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use super::keys::Topic;
use super::source::{Event, SourceError, WatchSource};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;

use crate::log_throttle::{LogThrottle, warn_new};
use crate::retry::{Backoff, jittered};

/// An event and its topic.
pub type Message = (Topic, Event);

/// A message on its way from a follower to the catalog, with its room in the queue.
pub type Queued = (Message, OwnedSemaphorePermit);

/// KiB of values that may wait. A larger value waits alone.
const MOST_KIB: u32 = 16 << 10;

/// The followers' end of a queue that is bounded in number and in bytes.
#[derive(Debug, Clone)]
pub struct Sink {
    messages: mpsc::Sender<Queued>,
    room: Arc<Semaphore>,
}

/// `most`: messages that may wait.
pub fn queue(most: usize) -> (Sink, mpsc::Receiver<Queued>) {
    let (messages, queue) = mpsc::channel(most);
    let room = Arc::new(Semaphore::new(MOST_KIB as usize));
    (Sink { messages, room }, queue)
}

impl Sink {
    /// Waits for room. Fails once nobody takes messages any more.
    pub async fn send(&self, message: Message) -> Result<(), SourceError> {
        let kib = match &message.1 {
            // Small ones are bounded by their number.
            Event::InitApply(item) | Event::Apply(item) => item.value.len() >> 10,
            _ => 0,
        };
        let kib = u32::try_from(kib).map_or(MOST_KIB, |kib| kib.min(MOST_KIB));
        let gone = || SourceError::Ended("nobody takes what it says".to_owned());
        let room = self.room.clone().acquire_many_owned(kib).await;
        let sent = self.messages.send((message, room.map_err(|_| gone())?));
        sent.await.map_err(|_| gone())
    }
}

/// Until a prefix that may not be read is tried again.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(60);

const BACKOFF: Backoff = Backoff::between(Duration::from_millis(100), Duration::from_secs(10));

/// Follows a topic until the queue behind `sink` is dropped, and retries after every failure. `replaced`: since when etcd has
/// another history, as somebody else has found; `throttle` is shared by all topics of one etcd.
pub async fn follow(
    source: impl WatchSource,
    topic: Topic,
    sink: Sink,
    replaced: watch::Receiver<Instant>,
    throttle: Arc<LogThrottle<Topic>>,
) {
    let found = *replaced.borrow();
    let mut follower = Follower {
        source,
        topic,
        sink,
        replaced,
        found,
        throttle,
        position: None,
        failures: 0,
    };
    while !follower.sink.messages.is_closed() {
        let Err(error) = follower.list_and_watch().await;
        follower.failed(error).await;
    }
}

struct Follower<S> {
    source: S,
    topic: Topic,
    sink: Sink,
    /// See [`follow`].
    replaced: watch::Receiver<Instant>,
    /// When this follower has found another history last.
    found: Instant,
    throttle: Arc<LogThrottle<Topic>>,
    /// Up to which revision everything was sent; `None`: a new list is needed.
    position: Option<i64>,
    /// In a row.
    failures: u32,
}

impl<S: WatchSource> Follower<S> {
    /// Lists or watches anew after a pause. What cannot be sent is nobody's any more.
    async fn failed(&mut self, error: SourceError) {
        let mut pause = BACKOFF.random_pause(self.failures.saturating_add(1));
        let topic = self.topic.name();
        match &error {
            SourceError::Compacted(oldest) => {
                tracing::info!(
                    topic,
                    oldest,
                    "watched revision is compacted, listing again"
                );
                self.position = None;
                // What is compacted again before anything was read of it would be listed all the time.
                if self.failures == 0 {
                    pause = Duration::ZERO;
                }
            }
            _ if self.sink.messages.is_closed() => return,
            _ => {
                let text = "etcd cannot be followed, retrying";
                warn_new!(self.throttle, self.topic, &error, topic, "{text}");
            }
        }
        if matches!(error, SourceError::OtherHistory(_)) {
            self.position = None;
            self.found = Instant::now();
            let _ = self.send(Event::OtherHistory).await;
        }
        if self.topic.is_optional() && error.is_denied() {
            self.position = None;
            // Nothing of it is known.
            self.found = Instant::now();
            pause = jittered(FORBIDDEN_PAUSE);
            let _ = self.send(Event::Forbidden).await;
        }
        self.failures = self.failures.saturating_add(1);
        tokio::time::sleep(pause).await;
    }

    async fn list_and_watch(&mut self) -> Result<Infallible, SourceError> {
        let mut revision = match self.position {
            Some(revision) => revision,
            None => self.list().await?,
        };
        self.position = Some(revision);
        let mut changes = self.source.watch(revision + 1).await?;
        loop {
            let batch = tokio::select! {
                batch = changes.next() => batch?,
                error = self.is_replaced() => return Err(error),
            };
            self.failures = 0;
            if let Some(after) = self.throttle.recovered(&self.topic) {
                tracing::info!(?after, "etcd is followed again");
            }
            for change in batch.changes {
                self.send(change).await?;
            }
            // Never backwards: a member that was restored or lags behind must not repeat changes.
            revision = revision.max(batch.revision);
            self.position = Some(revision);
            self.send(Event::Progress(revision)).await?;
        }
    }

    /// Waits until somebody else finds another history than that which is followed.
    async fn is_replaced(&mut self) -> SourceError {
        let found = self.found;
        let replaced = self.replaced.wait_for(|since| *since > found);
        if replaced.await.is_err() {
            // Nobody can any more.
            std::future::pending::<()>().await;
        }
        SourceError::OtherHistory("this proxy's key is not there as it was written".to_owned())
    }

    /// Part by part, so that no more than one is in memory.
    async fn list(&mut self) -> Result<i64, SourceError> {
        let mut part = self.source.list(None).await?;
        self.send(Event::Init).await?;
        loop {
            for item in part.items {
                self.send(Event::InitApply(item)).await?;
            }
            let Some(rest) = part.rest else { break };
            part = self.source.list(Some(rest)).await?;
        }
        self.send(Event::InitDone(part.revision)).await?;
        Ok(part.revision)
    }

    async fn send(&self, event: Event) -> Result<(), SourceError> {
        self.sink.send((self.topic, event)).await
    }
}

#[cfg(test)]
mod tests;
