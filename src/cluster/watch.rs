//! Lists one prefix, then watches it from the next revision, for ever.
//!
//! The known revision advances with every batch, progress included, so that a broken watch resumes where it stopped. Only a
//! compacted revision, or an etcd that was restored from a backup, causes a new list. Half a list is never visible: readers
//! stage what comes between [`Event::Init`] and [`Event::InitDone`] until it is complete.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use super::keys::Topic;
use super::queue::Sink;
use super::source::{EtcdItem, KeyChange, SourceError, WatchSource};
use crate::log_throttle::{LogThrottle, chain};
use crate::retry::{Backoff, jittered};

/// The events of one topic, in this order: `Init`, any number of `InitApply`, `InitDone`, then the rest in any order
/// until the next `Init`, before which `OtherHistory` may come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A new list begins.
    Init,
    /// A key of the list.
    InitApply(EtcdItem),
    /// The list is complete as of this revision.
    InitDone(i64),
    /// A key was written.
    Apply(EtcdItem),
    /// A key is gone.
    Delete(String),
    /// All changes up to this revision have been sent.
    Progress(i64),
    /// etcd was restored or replaced: earlier events may be void. A new list follows.
    OtherHistory,
    /// etcd's role does not permit to read it ([`Topic::is_optional`] only). It is tried again.
    Forbidden,
}

/// An event and its topic.
pub type Message = (Topic, Event);

/// Until a prefix that may not be read is tried again.
const FORBIDDEN_PAUSE: Duration = Duration::from_secs(60);

const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(100),
    longest: Duration::from_secs(10),
    jitter: 0.5,
};

/// Follows `prefix` until the queue behind `sink` is dropped, and retries after every failure. `throttle` is shared by all
/// topics of one etcd.
pub async fn follow(
    mut source: impl WatchSource,
    topic: Topic,
    prefix: String,
    sink: Sink,
    throttle: Arc<LogThrottle<Topic>>,
) {
    let mut position = None;
    let mut failures = 0;
    while !sink.is_closed() {
        let mut list_watch = ListWatch {
            source: &mut source,
            topic,
            prefix: &prefix,
            sink: &sink,
            throttle: &throttle,
        };
        let Err(stop) = list_watch.follow(&mut position, &mut failures).await else {
            return;
        };
        match stop {
            FollowEnd::ReceiverGone => return,
            FollowEnd::Source(SourceError::Compacted(oldest)) => {
                tracing::info!(
                    topic = topic.name(),
                    oldest,
                    "watched revision is compacted, listing again"
                );
                position = None;
                // What is compacted again before anything was read of it would be listed all the time.
                if failures > 0 {
                    tokio::time::sleep(BACKOFF.random_pause(failures)).await;
                }
                failures = failures.saturating_add(1);
            }
            FollowEnd::Source(error) => {
                log(topic, &error, &throttle);
                if matches!(error, SourceError::OtherHistory(_)) {
                    position = None;
                    if sink.send((topic, Event::OtherHistory)).await.is_err() {
                        return;
                    }
                }
                failures = failures.saturating_add(1);
                let mut pause = BACKOFF.random_pause(failures);
                if topic.is_optional() && error.is_denied() {
                    position = None;
                    pause = jittered(FORBIDDEN_PAUSE);
                    if sink.send((topic, Event::Forbidden)).await.is_err() {
                        return;
                    }
                }
                tokio::time::sleep(pause).await;
            }
        }
    }
}

fn log(topic: Topic, error: &SourceError, throttle: &LogThrottle<Topic>) {
    let (new, topic) = (throttle.should_log(topic, chain(error)), topic.name());
    let error = error as &dyn Error;
    match new {
        true => tracing::warn!(topic, error, "etcd cannot be followed, trying on"),
        false => tracing::debug!(topic, error, "etcd still cannot be followed"),
    }
}

enum FollowEnd {
    ReceiverGone,
    Source(SourceError),
}

impl From<SourceError> for FollowEnd {
    fn from(error: SourceError) -> Self {
        FollowEnd::Source(error)
    }
}

struct ListWatch<'a, S> {
    source: &'a mut S,
    topic: Topic,
    prefix: &'a str,
    sink: &'a Sink,
    throttle: &'a LogThrottle<Topic>,
}

impl<S: WatchSource> ListWatch<'_, S> {
    async fn follow(
        &mut self,
        position: &mut Option<i64>,
        failures: &mut u32,
    ) -> Result<(), FollowEnd> {
        let mut revision = match *position {
            Some(revision) => revision,
            None => self.list().await?,
        };
        *position = Some(revision);
        let mut changes = self.source.watch(self.prefix, revision + 1).await?;
        loop {
            let batch = changes.next().await?;
            *failures = 0;
            if let Some(after) = self.throttle.recovered(&self.topic) {
                tracing::info!(?after, "etcd is followed again");
            }
            for change in batch.changes {
                self.send(match change {
                    KeyChange::Put(item) => Event::Apply(item),
                    KeyChange::Delete { key } => Event::Delete(key),
                })
                .await?;
            }
            // Never backwards: a member that was restored or lags behind must not repeat changes.
            revision = revision.max(batch.revision);
            *position = Some(revision);
            self.send(Event::Progress(revision)).await?;
        }
    }

    /// Part by part, so that no more than one is in memory.
    async fn list(&mut self) -> Result<i64, FollowEnd> {
        let mut part = self.source.list(self.prefix, None).await?;
        self.send(Event::Init).await?;
        loop {
            for item in part.items {
                self.send(Event::InitApply(item)).await?;
            }
            let Some(rest) = part.rest else { break };
            part = self.source.list(self.prefix, Some(rest)).await?;
        }
        self.send(Event::InitDone(part.revision)).await?;
        Ok(part.revision)
    }

    async fn send(&self, event: Event) -> Result<(), FollowEnd> {
        self.sink
            .send((self.topic, event))
            .await
            .map_err(|_| FollowEnd::ReceiverGone)
    }
}

#[cfg(test)]
mod tests;
