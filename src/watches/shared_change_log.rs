//! The change log of one resource, shared by all watches of it that end while the proxy stops.
//!
//! [`super::change_logs`] appends what etcd reports. Watches register the revision that they need it from, and objects that
//! were delivered to them. The lock is held briefly, and only while the proxy stops.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::change_log::ChangeLog;
use super::follower::{Anchor, WatchPosition};
use super::proof::{self, Withheld};

/// Anchors kept for one server.
const CANDIDATES: usize = 8;
/// Servers that anchors are kept for.
const SERVERS: usize = 64;
/// Between two requests for etcd's progress.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// The changes of all keys below one prefix.
#[derive(Debug)]
pub struct SharedChangeLog {
    /// The prefix, with a trailing slash.
    pub(super) root: String,
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
    delivered: HashMap<SocketAddr, Delivered>,
}

/// Objects that one server delivered: they show whether it stores the resource in this etcd.
#[derive(Debug, Default)]
struct Delivered {
    /// One of the objects was found in this etcd.
    found: bool,
    candidates: Vec<Anchor>,
}

impl SharedChangeLog {
    pub(super) fn new(root: &str) -> Self {
        Self {
            root: root.to_owned(),
            progress_wanted: Notify::new(),
            updated: watch::Sender::new(()),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A watch will end whose client is at `position`; `anchors`: objects that `server` delivered, to this client or to others.
    pub(super) fn register<'w>(
        &self,
        position: WatchPosition,
        server: SocketAddr,
        anchors: impl IntoIterator<Item = &'w Anchor>,
    ) {
        let mut state = self.state();
        let needed = state
            .needed
            .map_or(position.revision, |needed| needed.min(position.revision));
        state.needed = Some(needed);
        let room = state.delivered.len() < SERVERS || state.delivered.contains_key(&server);
        for anchor in anchors.into_iter().filter(|_| room) {
            state.delivered.entry(server).or_default().add(anchor);
        }
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
    pub fn newest_safe(
        &self,
        position: WatchPosition,
        scope: &str,
        server: SocketAddr,
        anchor: Option<&Anchor>,
    ) -> Result<i64, Withheld> {
        let mut state = self.state();
        let LogState { log, delivered, .. } = &mut *state;
        let log = log.as_ref().ok_or(Withheld::NotTold)?;
        let logged = |anchor: &Anchor| log.has(anchor.revision, &anchor.key);
        let known = delivered
            .get(&server)
            .is_some_and(|delivered| delivered.found || delivered.candidates.iter().any(logged));
        proof::newest_safe(position, scope, log, known || anchor.is_some_and(logged))
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

    /// Anchors to look up in etcd, by server: those of servers of which no anchor was found yet.
    pub(super) fn anchors_to_verify(&self) -> Vec<(SocketAddr, Vec<Anchor>)> {
        let state = self.state();
        let servers = state
            .delivered
            .iter()
            .filter(|(_, delivered)| !delivered.found);
        servers
            .map(|(server, delivered)| (*server, delivered.candidates.clone()))
            .collect()
    }

    /// An anchor of this server is in etcd, with the same revision.
    pub(super) fn found(&self, server: SocketAddr) {
        self.state().delivered.entry(server).or_default().found = true;
    }
}

impl LogState {
    fn is_caught_up(&self) -> bool {
        let through = self.log.as_ref().map(ChangeLog::through);
        self.opened_at.is_some() && through >= self.opened_at
    }
}

impl Delivered {
    /// The newest are kept: they are the least likely to be compacted.
    fn add(&mut self, anchor: &Anchor) {
        if self.candidates.contains(anchor) {
            return;
        }
        self.candidates.push(anchor.clone());
        self.candidates
            .sort_unstable_by_key(|anchor| std::cmp::Reverse(anchor.revision));
        self.candidates.truncate(CANDIDATES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ([u8; 4], u16) = ([127, 0, 0, 1], 6443);

    fn at(revision: i64) -> WatchPosition {
        WatchPosition { revision, seen: 1 }
    }

    fn anchor(revision: i64, key: &str) -> Anchor {
        Anchor {
            key: key.to_owned(),
            revision,
        }
    }

    fn append(
        log: &SharedChangeLog,
        changes: &[(i64, &'static str)],
        through: Option<i64>,
        newest: i64,
    ) {
        let changes = changes.iter().map(|(at, key)| (*at, (*key).into()));
        log.append(log.next_revision(), changes, through, Some(newest));
    }

    async fn is_caught_up(log: &SharedChangeLog) -> bool {
        timeout(Duration::ZERO, log.caught_up()).await.is_ok()
    }

    #[tokio::test]
    async fn what_is_caught_up_with_is_not_how_far_etcd_is() {
        let log = SharedChangeLog::new("/registry/pods/");
        log.register(at(5), SERVER.into(), None);
        assert!(!is_caught_up(&log).await);
        append(&log, &[], None, 9);
        append(&log, &[(5, "a/x")], Some(5), 9);
        assert!(!is_caught_up(&log).await, "etcd was at 9");
        append(&log, &[], Some(10), 10);
        assert!(is_caught_up(&log).await);
        append(&log, &[(12, "a/x")], Some(12), 30);
        assert!(is_caught_up(&log).await, "it was once");
    }

    #[test]
    fn it_begins_where_the_first_needs_it_and_goes_on_where_it_stopped() {
        let log = SharedChangeLog::new("/registry/pods/");
        for revision in [7, 5, 6] {
            log.register(at(revision), SERVER.into(), None);
        }
        assert_eq!(log.next_revision(), 5);
        append(&log, &[(5, "a/x")], Some(8), 8);
        assert_eq!(log.next_revision(), 9);
        log.restart_from(20);
        assert_eq!(log.next_revision(), 20);
        assert_eq!(
            log.newest_safe(at(8), "", SERVER.into(), None),
            Err(Withheld::NotFound)
        );
        log.found(SERVER.into());
        assert_eq!(
            log.newest_safe(at(8), "", SERVER.into(), None),
            Err(Withheld::Forgotten)
        );
    }

    #[test]
    fn one_server_s_objects_say_nothing_of_another_s() {
        let log = SharedChangeLog::new("/registry/pods/");
        let other = ([127, 0, 0, 2], 6443).into();
        log.register(at(5), SERVER.into(), Some(&anchor(5, "a/x")));
        log.register(at(5), other, Some(&anchor(5, "a/y")));
        assert_eq!(log.anchors_to_verify().len(), 2);
        append(&log, &[(5, "a/x")], Some(9), 9);
        assert_eq!(log.newest_safe(at(5), "", SERVER.into(), None), Ok(9));
        assert_eq!(
            log.newest_safe(at(5), "", other, None),
            Err(Withheld::NotFound)
        );
        let own = anchor(5, "a/x");
        assert_eq!(log.newest_safe(at(5), "", other, Some(&own)), Ok(9));
    }

    #[test]
    fn what_a_server_delivered_to_others_counts_for_a_watch_that_saw_nothing() {
        let log = SharedChangeLog::new("/registry/pods/");
        let listed = [anchor(2, "a/x"), anchor(3, "a/y")];
        let quiet = WatchPosition {
            revision: 5,
            seen: 0,
        };
        log.register(quiet, SERVER.into(), &listed);
        assert_eq!(log.anchors_to_verify()[0].1.len(), 2);
        append(&log, &[], Some(9), 9);
        let answer = || log.newest_safe(quiet, "", SERVER.into(), None);
        assert_eq!(answer(), Err(Withheld::NotFound));
        log.found(SERVER.into());
        assert_eq!(answer(), Ok(9));
    }

    #[test]
    fn of_many_objects_the_newest_are_looked_for() {
        let log = SharedChangeLog::new("/registry/pods/");
        for revision in 1..100 {
            log.register(at(revision), SERVER.into(), Some(&anchor(revision, "a/x")));
            log.register(at(revision), SERVER.into(), Some(&anchor(revision, "a/x")));
        }
        let anchors_to_verify = log.anchors_to_verify();
        let revisions: Vec<_> = anchors_to_verify[0]
            .1
            .iter()
            .map(|anchor| anchor.revision)
            .collect();
        assert_eq!(revisions, (92..100).rev().collect::<Vec<_>>());
    }
}
