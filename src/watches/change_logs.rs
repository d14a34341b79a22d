//! Reads from etcd what changed, for watches that end before their time or go on at another server: one etcd watch for each
//! resource, shared by all client watches of it.
//!
//! The etcd watch opens shortly after the first client watch registers, so that others can register an older revision. It
//! ends some time after the last of them. Values are not kept. Progress notifications count as in
//! [`crate::cluster::etcd`]. Locks are held briefly, and only when an apiserver or the proxy stops.

use std::borrow::Cow;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::WatchResponse;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::change_log::{ChangeLog, Withheld, newest_safe};
use super::follower::WatchPosition;
use crate::cluster::connector::{Connector, SharedClient, failed, within};
use crate::cluster::etcd::{self, orders_requested_progress, told, unless_ended};
use crate::cluster::source::SourceError;
use crate::log_throttle::{LogThrottle, warn_new};
use crate::net::lock;

/// Limit of resources.
const LOGS: usize = 1024;
/// etcd watches that are opened at the same time.
const OPENING: usize = 8;
/// Wait for other watches of the resource to register older revisions.
const REGISTRATION: Duration = Duration::from_millis(400);
/// Between two requests for progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// Until progress is asked for again: etcd may ignore a request while it still sends changes.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// Between two looks whether a log is still used.
const UNUSED: Duration = Duration::from_secs(30);
/// After an etcd watch failed.
const PAUSE: Duration = Duration::from_millis(500);

type Logs = Arc<Mutex<HashMap<String, Arc<SharedChangeLog>>>>;

/// The change logs of all resources, by key prefix.
#[derive(Debug)]
pub struct ChangeLogs {
    logs: Logs,
    opened: mpsc::Sender<Arc<SharedChangeLog>>,
}

impl ChangeLogs {
    /// Also those that are to be filled ([`Self::run`]).
    pub fn new() -> (Self, mpsc::Receiver<Arc<SharedChangeLog>>) {
        let (opened, receiver) = mpsc::channel(LOGS);
        let logs = Logs::default();
        (Self { logs, opened }, receiver)
    }

    /// The log of the keys below `root`, for a watch that needs it from `revision`. `restores`: how often etcd was found to be
    /// restored or replaced before; what was read before that counts for nothing. `None`: there are too many logs.
    pub fn register(
        &self,
        root: &str,
        revision: i64,
        restores: u64,
    ) -> Option<Arc<SharedChangeLog>> {
        let mut logs = lock(&self.logs);
        let log = logs.get(root).filter(|log| log.restores == restores);
        let log = match log.filter(|log| log.may_have(revision)) {
            Some(log) => log.clone(),
            None if logs.len() >= LOGS => return None,
            None => {
                let log = Arc::new(SharedChangeLog::new(root, restores));
                self.opened.try_send(log.clone()).ok()?;
                logs.insert(root.to_owned(), log.clone());
                log
            }
        };
        log.register(revision);
        Some(log)
    }

    /// As [`Self::register`], but with a log of these keys that is there already, even if it begins later: a client that comes
    /// back with ever lower revisions opens no other.
    pub fn any(&self, root: &str, revision: i64, restores: u64) -> Option<Arc<SharedChangeLog>> {
        let any = lock(&self.logs).get(root).cloned();
        let any = any.filter(|log| log.restores == restores);
        any.or_else(|| self.register(root, revision, restores))
    }

    /// Fills the logs that are opened. Runs until dropped.
    pub fn run(
        &self,
        connector: Connector,
        mut opened: mpsc::Receiver<Arc<SharedChangeLog>>,
    ) -> impl Future<Output = ()> + use<> {
        let reader = Arc::new(LogReader {
            logs: self.logs.clone(),
            etcd: SharedClient::new(connector),
            opening: Semaphore::new(OPENING),
            throttle: LogThrottle::default(),
        });
        async move {
            let mut tasks = JoinSet::new();
            while let Some(log) = opened.recv().await {
                while tasks.try_join_next().is_some() {}
                let reader = reader.clone();
                tasks.spawn(async move {
                    tokio::select! {
                        never = reader.follow(&log) => match never {},
                        () = unused(&reader.logs, &log) => {
                            reader.throttle.recovered(&log.root);
                        }
                    }
                });
            }
        }
    }
}

/// The changes of all keys below one prefix.
#[derive(Debug, Default)]
pub struct SharedChangeLog {
    /// The prefix, with a trailing slash.
    root: Box<str>,
    /// etcd's restores when it was opened.
    restores: u64,
    /// A watch waits for etcd's progress.
    progress_wanted: Notify,
    /// Notifies of every append.
    updated: watch::Sender<()>,
    state: Mutex<LogState>,
}

#[derive(Debug, Default)]
struct LogState {
    /// The oldest revision that a registered watch needs.
    needed: Option<i64>,
    /// etcd is asked for the changes from there on.
    is_begun: bool,
    log: Option<ChangeLog>,
    /// etcd's revision when the watch was first opened.
    opened_at: Option<i64>,
    /// etcd has compacted what was before.
    is_compacted: bool,
}

impl SharedChangeLog {
    fn new(root: &str, restores: u64) -> Self {
        Self {
            root: root.into(),
            restores,
            ..Self::default()
        }
    }

    /// Whether another log would not have more from `revision` on: etcd is read from there, or has no more.
    fn may_have(&self, revision: i64) -> bool {
        let state = lock(&self.state);
        state.is_compacted || !state.is_begun || state.needed.is_some_and(|it| it <= revision)
    }

    /// A watch that needs the changes from this revision on will end.
    fn register(&self, revision: i64) {
        let mut state = lock(&self.state);
        state.needed = Some(state.needed.map_or(revision, |needed| needed.min(revision)));
    }

    /// Waits until the log [is](Self::is_complete_through) complete up to `revision`.
    pub async fn complete_through(&self, revision: i64) {
        let mut updates = self.updated.subscribe();
        loop {
            // Later changes are appended too, for watches that end later.
            self.want_progress();
            if self.is_complete_through(revision) {
                return;
            }
            let _ = timeout(ASK_AGAIN, updates.changed()).await;
        }
    }

    /// Asks etcd how far the log is complete.
    pub fn want_progress(&self) {
        self.progress_wanted.notify_one();
    }

    /// Whether the log is complete up to `revision`, and up to etcd's when the watch was first opened.
    pub fn is_complete_through(&self, revision: i64) -> bool {
        let state = lock(&self.state);
        let through = state.log.as_ref().map(ChangeLog::through);
        state
            .opened_at
            .is_some_and(|opened_at| through >= Some(opened_at.max(revision)))
    }

    /// [`newest_safe`] by what is known now.
    pub fn newest_safe(
        &self,
        position: WatchPosition,
        scope: &str,
        stored_here: bool,
    ) -> Result<i64, Withheld> {
        let state = lock(&self.state);
        let log = state.log.as_ref().ok_or(Withheld::NotTold)?;
        newest_safe(position, scope, log, stored_here)
    }

    /// The revision from which etcd has to be watched.
    fn next_revision(&self) -> i64 {
        let mut state = lock(&self.state);
        state.is_begun = true;
        match &state.log {
            Some(log) => log.through() + 1,
            None => state.needed.unwrap_or(1),
        }
    }

    /// etcd has compacted everything before `from`.
    fn restart_from(&self, from: i64) {
        let mut state = lock(&self.state);
        state.log = Some(ChangeLog::new(from));
        state.is_compacted = true;
    }

    /// etcd, whose revision is `newest`, reported these changes. `through`: there are no others up to this revision.
    fn append<'a>(
        &self,
        begin: i64,
        changes: impl Iterator<Item = (i64, Cow<'a, str>)>,
        through: Option<i64>,
        newest: Option<i64>,
    ) {
        let mut state = lock(&self.state);
        state.opened_at = state.opened_at.or(newest);
        let log = state.log.get_or_insert_with(|| ChangeLog::new(begin));
        for (revision, key) in changes {
            log.changed(revision, &key);
        }
        if let Some(through) = through {
            log.complete_through(through);
        }
        drop(state);
        self.updated.send_replace(());
    }
}

/// Resolves when no watch needs the log any more, and removes it.
async fn unused(logs: &Logs, log: &Arc<SharedChangeLog>) {
    loop {
        tokio::time::sleep(UNUSED).await;
        let mut logs = lock(logs);
        let is_listed = logs.get(&*log.root).is_some_and(|it| Arc::ptr_eq(it, log));
        // The list has it, and this task.
        if Arc::strong_count(log) <= 1 + usize::from(is_listed) {
            if is_listed {
                logs.remove(&*log.root);
            }
            return;
        }
    }
}

struct LogReader {
    logs: Logs,
    etcd: SharedClient,
    opening: Semaphore,
    /// By the prefix.
    throttle: LogThrottle<Box<str>>,
}

impl LogReader {
    /// Fills one log, with a new etcd watch after a failure.
    async fn follow(&self, log: &SharedChangeLog) -> Infallible {
        tokio::time::sleep(REGISTRATION).await;
        loop {
            let Err(error) = self.fill(log).await;
            match error {
                // Deletions at that revision may be compacted too.
                SourceError::Compacted(oldest) => log.restart_from(oldest + 1),
                error => {
                    let root = &*log.root;
                    let text = "the etcd watch for last bookmarks failed, retrying";
                    warn_new!(self.throttle, log.root.clone(), &error, root, "{text}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Fills one log until its etcd watch fails.
    async fn fill(&self, log: &SharedChangeLog) -> Result<Infallible, SourceError> {
        let opening = self.opening.acquire().await;
        let (mut client, number) = self.etcd.get().await?;
        let filling = async {
            let ordered = orders_requested_progress(&etcd::version(&mut client).await?);
            let begin = log.next_revision();
            let mut stream = etcd::watch(&client, &log.root, begin).await?;
            drop(opening);
            loop {
                let message = tokio::select! {
                    message = stream.message() => message.map_err(failed)?,
                    () = log.progress_wanted.notified(), if ordered => {
                        within(stream.request_progress()).await?;
                        tokio::time::sleep(PROGRESS_INTERVAL).await;
                        // Whoever answers requests may have a watch that is dead.
                        within(stream.message()).await?
                    }
                };
                let ended = || SourceError::Ended("end of stream".to_owned());
                read(log, begin, &message.ok_or_else(ended)?, ordered)?;
                self.throttle.recovered(&log.root);
            }
        };
        let filled: Result<Infallible, SourceError> = filling.await;
        if !matches!(filled, Err(SourceError::Compacted(_))) {
            self.etcd.failed(number).await;
        }
        filled
    }
}

fn read(
    log: &SharedChangeLog,
    begin: i64,
    message: &WatchResponse,
    ordered: bool,
) -> Result<(), SourceError> {
    unless_ended(message)?;
    let newest = message.header().map(|header| header.revision());
    let changes = message.events().iter().filter_map(|event| event.kv());
    let changes = changes.map(|kv| {
        let key = kv.key().strip_prefix(log.root.as_bytes());
        let key = String::from_utf8_lossy(key.unwrap_or_default());
        (kv.mod_revision(), key)
    });
    log.append(begin, changes, told(message, ordered), newest);
    Ok(())
}

#[cfg(test)]
mod tests;
