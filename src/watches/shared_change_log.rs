//! The change log of one resource, shared by all watches of it that end while the proxy stops.
//!
//! [`super::change_logs`] appends what etcd reports. Watches register the revision that they need it from. The lock is held
//! briefly, and only while the proxy stops.

use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::change_log::ChangeLog;
use super::follower::WatchPosition;
use super::proof::{self, Withheld};

/// Between two requests for etcd's progress.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// The changes of all keys below one prefix.
#[derive(Debug)]
pub struct SharedChangeLog {
    /// The prefix, with a trailing slash.
    pub root: Box<str>,
    /// A watch waits for etcd's progress.
    pub(super) progress_wanted: Notify,
    /// Notifies of every append.
    updated: watch::Sender<()>,
    state: Mutex<LogState>,
}

#[derive(Debug, Default)]
struct LogState {
    /// The oldest revision that a registered watch needs.
    needed: Option<i64>,
    log: Option<ChangeLog>,
    /// etcd's revision when the watch was first opened.
    opened_at: Option<i64>,
}

impl SharedChangeLog {
    pub(super) fn new(root: &str) -> Self {
        Self {
            root: root.into(),
            progress_wanted: Notify::new(),
            updated: watch::Sender::new(()),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A watch that needs the changes from this revision on will end.
    pub(super) fn register(&self, revision: i64) {
        let mut state = self.state();
        state.needed = Some(state.needed.map_or(revision, |needed| needed.min(revision)));
    }

    /// Waits until the log is complete up to etcd's revision when the watch was first opened.
    pub async fn caught_up(&self) {
        let mut updates = self.updated.subscribe();
        loop {
            // Later changes are appended too, for watches that end later.
            self.progress_wanted.notify_one();
            if self.state().is_caught_up() {
                return;
            }
            // etcd may ignore the request while it still sends changes.
            let _ = timeout(ASK_AGAIN, updates.changed()).await;
        }
    }

    /// The newest revision up to which a client at `position` has seen every change of the keys that begin with `scope`.
    /// `stored_here`: its server is proved to store the resource in this etcd.
    pub fn newest_safe(
        &self,
        position: WatchPosition,
        scope: &str,
        stored_here: bool,
    ) -> Result<i64, Withheld> {
        let state = self.state();
        let log = state.log.as_ref().ok_or(Withheld::NotTold)?;
        proof::newest_safe(position, scope, log, stored_here)
    }

    /// The revision from which etcd has to be watched.
    pub(super) fn next_revision(&self) -> i64 {
        let state = self.state();
        match &state.log {
            Some(log) => log.through() + 1,
            None => state.needed.unwrap_or(1),
        }
    }

    /// etcd has compacted everything before `from`.
    pub(super) fn restart_from(&self, from: i64) {
        self.state().log = Some(ChangeLog::new(from));
    }

    /// etcd, whose revision is `newest`, reported these changes. `through`: there are no others up to this revision.
    pub(super) fn append<'a>(
        &self,
        begin: i64,
        changes: impl Iterator<Item = (i64, Cow<'a, str>)>,
        through: Option<i64>,
        newest: Option<i64>,
    ) {
        let mut state = self.state();
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

impl LogState {
    fn is_caught_up(&self) -> bool {
        let through = self.log.as_ref().map(ChangeLog::through);
        self.opened_at.is_some() && through >= self.opened_at
    }
}

#[cfg(test)]
mod tests;
