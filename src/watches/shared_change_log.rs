//! The change log of one resource, shared by all watches of it that end while the proxy stops.
//!
//! [`super::change_logs`] appends what etcd reports. Watches register the revision that they need it from, the server that
//! serves them, and objects that it delivered; [`super::prover`] finds out whether the server stores the resource in this
//! etcd. The lock is held briefly, and only while the proxy stops.

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
use super::sample::WatchedResource;

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
    /// There may be new [`ProofJob`]s.
    pub(super) registered: Notify,
    /// Notifies of every append, and of every proof.
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
    servers: HashMap<SocketAddr, ServerProof>,
    kind: Kind,
}

/// Whether one server stores the resource in this etcd.
#[derive(Debug)]
struct ServerProof {
    /// As its first watch named it.
    resource: WatchedResource,
    /// Objects that it delivered.
    candidates: Vec<Anchor>,
    /// `None`: not known yet.
    found: Option<bool>,
}

/// The kind of the resource, for watches that delivered no object.
#[derive(Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    NotWanted,
    Wanted,
    Known(String),
    Unknown,
}

/// A watch that is to end, for the change log of its resource.
#[derive(Debug, Clone, Copy)]
pub struct EndingWatch<'a> {
    pub server: SocketAddr,
    pub resource: &'a WatchedResource,
    pub position: WatchPosition,
    /// The last object that was delivered.
    pub anchor: Option<&'a Anchor>,
    /// No event showed the kind of the objects.
    pub kind_wanted: bool,
}

/// What is to be found out of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProofJob {
    pub(super) server: SocketAddr,
    pub(super) resource: WatchedResource,
    /// Objects that it delivered; `None` if it is known whether it stores the resource here.
    pub(super) candidates: Option<Vec<Anchor>>,
}

impl SharedChangeLog {
    pub(super) fn new(root: &str) -> Self {
        Self {
            root: root.to_owned(),
            progress_wanted: Notify::new(),
            registered: Notify::new(),
            updated: watch::Sender::new(()),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A watch will end.
    pub(super) fn register(&self, ending: EndingWatch<'_>) {
        let mut state = self.state();
        let revision = ending.position.revision;
        state.needed = Some(state.needed.map_or(revision, |needed| needed.min(revision)));
        if ending.kind_wanted && state.kind == Kind::NotWanted {
            state.kind = Kind::Wanted;
        }
        let room = state.servers.len() < SERVERS || state.servers.contains_key(&ending.server);
        if room {
            let server = state.servers.entry(ending.server);
            let server = server.or_insert_with(|| ServerProof::of(ending.resource));
            if let Some(anchor) = ending.anchor {
                server.add(anchor);
            }
        }
        drop(state);
        self.registered.notify_one();
    }

    /// Waits until the log is complete up to etcd's revision when the watch was first opened, and until everything is
    /// known that there is to know of `server`, and of the kind if it is wanted.
    pub async fn caught_up(&self, server: SocketAddr, kind_wanted: bool) {
        let mut updates = self.updated.subscribe();
        loop {
            // Later changes are appended too, for watches that end later.
            self.progress_wanted.notify_one();
            if self.state().is_caught_up(server, kind_wanted) {
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
        let state = self.state();
        let LogState { log, servers, .. } = &*state;
        let log = log.as_ref().ok_or(Withheld::NotTold)?;
        let logged = |anchor: &Anchor| log.has(anchor.revision, &anchor.key);
        let known = servers.get(&server).is_some_and(|server| {
            server.found == Some(true) || server.candidates.iter().any(logged)
        });
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

    /// The kind of the resource, if it was found.
    pub fn kind(&self) -> Option<String> {
        match &self.state().kind {
            Kind::Known(kind) => Some(kind.clone()),
            _ => None,
        }
    }

    /// The servers of which something is not known yet.
    pub(super) fn proof_jobs(&self) -> Vec<ProofJob> {
        let state = self.state();
        let kind_wanted = state.kind == Kind::Wanted;
        let jobs = state.servers.iter().map(|(server, proof)| ProofJob {
            server: *server,
            resource: proof.resource.clone(),
            candidates: proof.found.is_none().then(|| proof.candidates.clone()),
        });
        jobs.filter(|job| kind_wanted || job.candidates.is_some())
            .collect()
    }

    /// Whether a watch needs to know the kind, and nobody was asked for it.
    pub(super) fn is_kind_wanted(&self) -> bool {
        self.state().kind == Kind::Wanted
    }

    /// What is not known by now will not be known.
    pub(super) fn give_up(&self) {
        let mut state = self.state();
        for server in state.servers.values_mut() {
            server.found.get_or_insert(false);
        }
        if state.kind == Kind::Wanted {
            state.kind = Kind::Unknown;
        }
        drop(state);
        self.updated.send_replace(());
    }

    /// Whether this server stores the resource in this etcd.
    pub(super) fn proved(&self, server: SocketAddr, found: bool) {
        if let Some(server) = self.state().servers.get_mut(&server) {
            server.found = Some(found);
        }
        self.updated.send_replace(());
    }

    /// The kind that a server's discovery names; `None` if there is none.
    pub(super) fn named(&self, kind: Option<String>) {
        self.state().kind = kind.map_or(Kind::Unknown, Kind::Known);
        self.updated.send_replace(());
    }
}

impl LogState {
    fn is_caught_up(&self, server: SocketAddr, kind_wanted: bool) -> bool {
        let through = self.log.as_ref().map(ChangeLog::through);
        let told = self.opened_at.is_some() && through >= self.opened_at;
        let proof = self.servers.get(&server);
        let named = !kind_wanted || self.kind != Kind::Wanted;
        told && named && proof.is_none_or(|proof| proof.found.is_some())
    }
}

impl ServerProof {
    fn of(resource: &WatchedResource) -> Self {
        Self {
            resource: resource.clone(),
            candidates: Vec::new(),
            found: None,
        }
    }

    /// The newest are kept: they are the least likely to be compacted.
    fn add(&mut self, anchor: &Anchor) {
        if self.candidates.contains(anchor) {
            return;
        }
        if self.found == Some(false) {
            // The server was asked when it could not answer, or had nothing.
            self.found = None;
        }
        self.candidates.push(anchor.clone());
        self.candidates
            .sort_unstable_by_key(|anchor| std::cmp::Reverse(anchor.revision));
        self.candidates.truncate(CANDIDATES);
    }
}

#[cfg(test)]
mod tests;
