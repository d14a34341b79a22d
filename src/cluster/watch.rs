//! One list, then a watch from the next revision, for ever.
//!
//! The known revision moves on with every batch, progress included, so a broken watch goes on where it stopped. Only a
//! compacted revision causes a new list, or an etcd that was restored from a backup. Half a list is never visible: what comes between [`Event::Init`] and
//! [`Event::InitDone`] is put aside by the reader until it is complete.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use tokio::sync::mpsc;

use super::keys::Topic;
use super::source::{Change, Item, Source, SourceError};
use crate::trouble::{Trouble, chain};

/// What a follower is told, in this order: `Init`, any number of `InitApply`, `InitDone`, then the rest in any order
/// until the next `Init`, before which `OtherHistory` may come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A new list begins.
    Init,
    /// A key of the list.
    InitApply(Item),
    /// The list is complete as of this revision.
    InitDone(i64),
    /// A key was written.
    Apply(Item),
    /// A key is gone.
    Delete(String),
    /// Everything up to this revision has been told.
    Progress(i64),
    /// etcd was restored or replaced: what was told may never have been. A new list follows.
    OtherHistory,
}

/// An event and what it is about.
pub type Message = (Topic, Event);

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Follows `prefix` until nobody listens any more. The ways it can fail are all outside, so it goes on for ever. `trouble`
/// is that of all followers of one etcd.
pub async fn follow(
    mut source: impl Source,
    topic: Topic,
    prefix: String,
    keys_only: bool,
    sink: mpsc::Sender<Message>,
    trouble: Arc<Trouble<Topic>>,
) {
    let mut position = None;
    let mut pause = FIRST_PAUSE;
    while !sink.is_closed() {
        let mut follower = Follower {
            source: &mut source,
            topic,
            prefix: &prefix,
            keys_only,
            sink: &sink,
            trouble: &trouble,
        };
        let Err(stop) = follower.go_on(&mut position, &mut pause).await else {
            return;
        };
        match stop {
            Stop::NobodyListens => return,
            Stop::Source(SourceError::Compacted(oldest)) => {
                tracing::info!(
                    topic = topic.name(),
                    oldest,
                    "watched revision is compacted, listing again"
                );
                position = None;
            }
            Stop::Source(error) => {
                tell(topic, &error, &trouble);
                if matches!(error, SourceError::OtherHistory(_)) {
                    position = None;
                    if sink.send((topic, Event::OtherHistory)).await.is_err() {
                        return;
                    }
                }
                tokio::time::sleep(jittered(pause)).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

fn tell(topic: Topic, error: &SourceError, trouble: &Trouble<Topic>) {
    let (news, topic) = (trouble.is_news(topic, chain(error)), topic.name());
    let error = error as &dyn Error;
    match news {
        true => tracing::warn!(topic, error, "etcd cannot be followed, trying on"),
        false => tracing::debug!(topic, error, "etcd still cannot be followed"),
    }
}

enum Stop {
    NobodyListens,
    Source(SourceError),
}

impl From<SourceError> for Stop {
    fn from(error: SourceError) -> Self {
        Stop::Source(error)
    }
}

struct Follower<'a, S> {
    source: &'a mut S,
    topic: Topic,
    prefix: &'a str,
    keys_only: bool,
    sink: &'a mpsc::Sender<Message>,
    trouble: &'a Trouble<Topic>,
}

impl<S: Source> Follower<'_, S> {
    async fn go_on(
        &mut self,
        position: &mut Option<i64>,
        pause: &mut Duration,
    ) -> Result<(), Stop> {
        let mut revision = match *position {
            Some(revision) => revision,
            None => self.list().await?,
        };
        *position = Some(revision);
        let mut changes = self.source.watch(self.prefix, revision + 1).await?;
        loop {
            let batch = changes.next().await?;
            *pause = FIRST_PAUSE;
            if let Some(after) = self.trouble.is_over(&self.topic) {
                tracing::info!(?after, "etcd is followed again");
            }
            for change in batch.changes {
                self.tell(match change {
                    Change::Put(item) => Event::Apply(item),
                    Change::Delete { key } => Event::Delete(key),
                })
                .await?;
            }
            // Never backwards: a restored or lagging member must not make us see changes twice.
            revision = revision.max(batch.revision);
            *position = Some(revision);
            self.tell(Event::Progress(revision)).await?;
        }
    }

    async fn list(&mut self) -> Result<i64, Stop> {
        let listing = self.source.list(self.prefix, self.keys_only).await?;
        self.tell(Event::Init).await?;
        for item in listing.items {
            self.tell(Event::InitApply(item)).await?;
        }
        self.tell(Event::InitDone(listing.revision)).await?;
        Ok(listing.revision)
    }

    async fn tell(&self, event: Event) -> Result<(), Stop> {
        self.sink
            .send((self.topic, event))
            .await
            .map_err(|_| Stop::NobodyListens)
    }
}

/// Half to all of `pause`, so that many proxies do not come back at once.
pub fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::thread_rng().gen_range(0.5..1.0))
}

#[cfg(test)]
mod tests;
