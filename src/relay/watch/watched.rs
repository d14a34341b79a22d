//! What is known of a watch while it passes: what its client has seen, and by whom it is served. From that follow its final
//! bookmark, and where another server can go on with it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::kube::gvr::{Gvr, GvrRef, ResourceKind, api_version};
use crate::kube::version::KubernetesVersion;
use crate::net::lock;
use crate::relay::answer::Refusal;
use crate::relay::client::AnswerWriter;
use crate::relay::plan::RequestContext;
use crate::relay::shared::Shared;
use crate::request::again::WatchRequest;
use crate::request::info::{ResourceRequest, Target, is_set, query_values};
use crate::routing::hand_over::StoppedWatch;
use crate::watches::change_log::Withheld;
use crate::watches::change_logs::SharedChangeLog;
use crate::watches::follower::{Follower, NotContinued, ResumePoint, WatchPosition};
use crate::watches::frames::{FrameFormat, ObjectType, revision};
use crate::watches::storage;
use crate::watches::stored_here::{Question, Stored};

/// Revisions before that of a watch that comes back, from which on etcd is read for it and others.
const EARLIER: i64 = 1000;
/// A watch whose apiserver has closed its port looks so often, once in one or two seconds, whether others have answered.
const MOST_LOOKS: u8 = 5;

/// A watch while it passes.
pub struct Watch {
    follower: Mutex<Follower>,
    /// Notified when a piece was passed on.
    pub(super) passed: Notify,
    pub resource: Arc<Gvr>,
    /// Empty for all namespaces.
    namespace: Box<str>,
    /// A peer's proxy has sent it here, which asks other servers itself.
    pub is_rerouted: bool,
    /// It asked for bookmarks, and may get a final one.
    pub has_bookmarks: bool,
    /// Set if the client asked for tables or for metadata alone.
    transformed: Option<Box<ObjectType>>,
    /// What another server is asked for; `None`: it cannot go on.
    pub request: Option<Arc<WatchRequest>>,
    served_by: Mutex<ServedBy>,
    /// How often other servers had not answered yet.
    looks: AtomicU8,
}

/// The process of a server that serves a watch.
#[derive(Clone)]
pub struct ServedBy {
    pub server: SocketAddr,
    /// The version that its apiserver emulates, where known.
    pub version: Option<KubernetesVersion>,
    /// Identifies its process: how often etcd was found to be restored or replaced before, and a number of its own.
    pub process: (u64, u64),
    /// Where it stores the resource; `None`: it was not asked.
    stored: Option<Arc<Stored>>,
    /// What is read from etcd for the watch.
    change_log: Option<Arc<SharedChangeLog>>,
}

impl Watch {
    /// For an answer from `server` that begins. If it can get no final bookmark, nor go on at another server, only the ends
    /// of frames are looked for.
    pub fn new(
        context: &RequestContext<'_>,
        resource: &ResourceRequest<'_>,
        server: SocketAddr,
        format: FrameFormat,
    ) -> Self {
        let has_bookmarks = context.settings.watch.bookmark_on_shutdown
            && is_set(context.query, "allowWatchBookmarks");
        let request = context.again.clone();
        let is_followed = has_bookmarks || request.is_some();
        let namespace = resource.namespace.as_ref().into();
        let resource = GvrRef::from(resource);
        // Shared with all watches of what servers list as their own.
        let snapshot = context.shared.published.snapshot.load();
        let listed = snapshot.holders(resource).map(|(name, _)| name.clone());
        let resource = listed.unwrap_or_else(|| Arc::new(resource.owned()));
        let asked_for = is_followed.then_some(&*resource);
        Self {
            follower: Mutex::new(match is_followed {
                true => Follower::new(format, start(context.query)),
                false => Follower::of_boundaries(format),
            }),
            passed: Notify::new(),
            namespace,
            is_rerouted: context.rerouted,
            has_bookmarks,
            transformed: format.transformed(context.accept.as_ref()).map(Box::new),
            request,
            served_by: Mutex::new(ServedBy::new(context.shared, server, asked_for)),
            looks: AtomicU8::new(0),
            resource,
        }
    }

    /// Whether another server may go on with it, or a peer's proxy have it do so.
    pub fn can_be_left(&self) -> bool {
        self.is_rerouted || self.request.is_some()
    }

    /// Whether it is to leave an apiserver that is shutting down. One that a peer has sent here is left if the peer may find
    /// another server.
    pub fn may_leave(&self, shared: &Shared) -> bool {
        let is_served_elsewhere = || {
            let stopped = StoppedWatch {
                resource: self.resource.borrow(),
                since: i64::MAX,
                version: lock(&self.served_by).version,
                has_rare_parameters: false,
            };
            let snapshot = shared.published.snapshot.load();
            stopped.suitable(&snapshot).next().is_some()
        };
        let is_left = || is_served_elsewhere() || self.may_be_held(shared);
        self.is_at_boundary() && (!self.is_rerouted || is_left())
    }

    /// Whether its apiserver need not serve it any more, although no other can go on with it: its process would wait for it, and
    /// kubelet for the process. Before, other servers are asked, for a limited time.
    pub fn may_be_held(&self, shared: &Shared) -> bool {
        let is_over = || self.looks.fetch_add(1, Ordering::Relaxed) >= MOST_LOOKS;
        self.is_at_closed_port(shared) && (self.is_kept_elsewhere(shared) || is_over())
    }

    /// Whether the local apiserver, which serves it, is shutting down: it says so, or it has closed its port, and lives for as
    /// long as its watches do, a minute at most.
    pub fn is_at_stopping_local(&self, shared: &Shared) -> bool {
        shared.local.is_shutting_down() || self.is_at_closed_port(shared)
    }

    /// Whether the local apiserver, which serves it, has closed its port.
    fn is_at_closed_port(&self, shared: &Shared) -> bool {
        lock(&self.served_by).process.1 != shared.local.epoch()
    }

    /// Whether other servers keep its history from now on, as far as they can be asked: their watch caches of a custom resource
    /// begin with the first request for it.
    fn is_kept_elsewhere(&self, shared: &Shared) -> bool {
        let settings = &shared.settings.load().watch;
        if !settings.hand_over && !settings.bookmark_on_shutdown {
            return true;
        }
        let snapshot = shared.published.snapshot.load();
        let mut targets = snapshot.targets_of(self.resource.borrow()).iter();
        targets.all(|index| {
            let server = snapshot.servers[*index].endpoint;
            let asked = ServedBy::new(shared, server, Some(&self.resource)).stored;
            asked.is_none_or(|stored| stored.proof().stored_here.is_some())
        })
    }

    /// See [`Follower::next`].
    pub fn next(&self, data: &mut Bytes) -> Result<Option<Bytes>, NotContinued> {
        lock(&self.follower).next(data)
    }

    /// Whether this is how another server's answer may begin: it goes on where the client is.
    pub fn fits(&self, data: &Bytes) -> Result<(), NotContinued> {
        let (mut follower, mut data) = (lock(&self.follower).clone(), data.clone());
        while follower.next(&mut data)?.is_some() {}
        Ok(())
    }

    /// How its events are framed.
    pub fn format(&self) -> FrameFormat {
        lock(&self.follower).frames.format
    }

    /// Whether what was passed on ends with a frame.
    pub fn is_at_boundary(&self) -> bool {
        lock(&self.follower).frames.at_boundary()
    }

    /// A piece was written. Counts what is kept of an event. Above the budget the watch goes on unread.
    pub fn wrote(&self, writer: &mut AnswerWriter<'_>) {
        self.passed.notify_one();
        let mut follower = lock(&self.follower);
        if !writer.keeps(follower.frames.kept()) {
            follower.give_up();
        }
    }

    /// Who serves it.
    pub fn served_by(&self) -> ServedBy {
        lock(&self.served_by).clone()
    }

    /// Waits until it is known whether its server keeps the resource in this etcd.
    pub async fn asked(&self, shared: &Shared, end: Instant) {
        if self.request.is_some() {
            self.ask_again(shared);
        }
        if let Some(stored) = self.served_by().stored {
            // After the timeout counts what is known.
            let _ = timeout_at(end, stored.answered(false)).await;
        }
    }

    /// Where another server can go on; `None`: what the client has seen is not known, or nothing proves that the server has
    /// kept the resource in this etcd, and in the one that is there now.
    pub fn resume_point(&self, shared: &Shared) -> Option<ResumePoint> {
        let served_by = self.served_by();
        let is_same_etcd = served_by.is_of_this_etcd(shared);
        let is_proved = served_by.stored?.proof().stored_here == Some(true);
        let at = lock(&self.follower).resume_point();
        at.filter(|_| is_proved && is_same_etcd)
    }

    /// As [`Self::resume_point`], at the newest revision up to which etcd shows that the client has seen everything.
    pub fn proved_resume_point(&self, shared: &Shared) -> Option<ResumePoint> {
        let proved = self.newest_safe(shared).ok()?;
        lock(&self.follower).resume_point_at(proved)
    }

    /// Another server is asked to go on from there. To be called before its answer is read. Returns what is to be given back
    /// ([`Self::stays`]) if it does not go on.
    pub fn resumes(&self, at: ResumePoint) -> Follower {
        lock(&self.follower).resumes(at)
    }

    /// Nothing has passed of the answer of the server that was asked: its own server may still go on with it.
    pub fn stays(&self, before: Follower) {
        *lock(&self.follower) = before;
    }

    /// It goes on there.
    pub fn is_served_by(&self, server: ServedBy) {
        self.looks.store(0, Ordering::Relaxed);
        *lock(&self.served_by) = server;
    }

    /// No server serves it: what the last one has sent of an event is not passed on.
    pub fn is_left(&self) {
        lock(&self.follower).frames.begin_again();
    }

    /// Whether `server` is proved to keep the resource in this etcd. Asks it, and waits until `deadline`.
    pub async fn is_stored_by(
        &self,
        shared: &Shared,
        server: SocketAddr,
        deadline: Instant,
    ) -> Option<ServedBy> {
        let served_by = ServedBy::new(shared, server, Some(&self.resource));
        let stored = served_by.stored.as_ref()?;
        // After the timeout counts what is known.
        let _ = timeout_at(deadline, stored.answered(false)).await;
        let is_stored = stored.proof().stored_here == Some(true);
        is_stored.then_some(served_by)
    }

    /// Registers what is to be read from etcd, as far as that is known by now.
    pub fn register(&self, shared: &Shared) -> Option<(Arc<SharedChangeLog>, Arc<Stored>)> {
        self.ask_again(shared);
        let mut served_by = lock(&self.served_by);
        if !served_by.is_of_this_etcd(shared) {
            return None;
        }
        let stored = served_by.stored.clone()?;
        if served_by.change_log.is_none() {
            let position = lock(&self.follower).position()?;
            let change_logs = &shared.watches.change_logs;
            let (revision, restores) = (position.revision, served_by.restores());
            served_by.change_log = change_logs.register(stored.root(), revision, restores);
        }
        served_by.change_log.clone().map(|log| (log, stored))
    }

    /// Asks what could not be found out when the watch began, if its server is still the same process.
    fn ask_again(&self, shared: &Shared) {
        let mut served_by = lock(&self.served_by);
        let stored = served_by.stored.as_ref();
        let is_known = stored.is_some_and(|stored| !stored.is_unanswered());
        if is_known && served_by.version.is_some() {
            return;
        }
        let now = ServedBy::new(shared, served_by.server, Some(&self.resource));
        if now.process == served_by.process {
            let change_log = served_by.change_log.take();
            *served_by = ServedBy { change_log, ..now };
        }
    }

    /// Waits until etcd has reported all changes up to its revision at the first request.
    pub async fn wait_for_etcd(&self, shared: &Shared, end: Instant) {
        if let Some((change_log, stored)) = self.register(shared) {
            let is_type_known =
                self.transformed.is_some() || lock(&self.follower).object_type().is_some();
            let answered = stored.answered(!is_type_known);
            let both = async { tokio::join!(change_log.complete_through(0), answered) };
            // After the timeout the bookmark is made from what is known.
            let _ = timeout_at(end, both).await;
        }
    }

    /// The newest revision up to which its client has seen everything, as etcd shows.
    fn newest_safe(&self, shared: &Shared) -> Result<i64, Withheld> {
        let position = {
            let follower = lock(&self.follower);
            if follower.over_budget {
                return Err(Withheld::OverBudget);
            }
            if !follower.frames.is_read() {
                return Err(Withheld::NotUnderstood);
            }
            if !follower.frames.at_boundary() {
                return Err(Withheld::HalfFrame);
            }
            follower.position().ok_or(Withheld::NoBeginning)?
        };
        let served_by = lock(&self.served_by);
        // What was read may go on with the history of an etcd that was restored since.
        let is_same_etcd = served_by.is_of_this_etcd(shared);
        let stored = served_by.stored.as_ref().filter(|_| is_same_etcd);
        let stored = stored.ok_or(Withheld::ElsewhereStored)?;
        let change_log = served_by.change_log.as_ref().ok_or(Withheld::NotTold)?;
        let scope = storage::scope(self.resource.borrow(), &self.namespace);
        let stored_here = stored.proof().stored_here == Some(true);
        change_log.newest_safe(position, &scope, stored_here)
    }

    /// Whether its client may know what etcd has lost, and have a revision from which any server would go on: it was served from
    /// the history of an etcd that was restored or replaced. Nothing is said of what is kept elsewhere.
    pub fn is_of_lost_history(&self, shared: &Shared) -> bool {
        if !lock(&self.served_by).is_of_lost_history(shared) {
            return false;
        }
        let resource = self.resource.borrow();
        let snapshot = shared.published.snapshot.load();
        !storage::is_elsewhere(&shared.config.etcd, resource)
            && !snapshot
                .custom
                .is_aggregated(resource.group, resource.version)
    }

    /// Whether it ends, because its apiserver has closed its port, and nobody can go on with a lost history.
    pub fn is_lost_at_closed_port(&self, shared: &Shared) -> bool {
        self.is_at_closed_port(shared) && self.is_of_lost_history(shared)
    }

    /// The event that has its client list anew; `None` after another ERROR.
    pub fn error_event(&self, refusal: Refusal) -> Option<Bytes> {
        if lock(&self.follower).has_error_passed {
            return None;
        }
        let format = self.format();
        format.error_event(&refusal.body(None, format))
    }

    /// See [`Follower::ahead_of_client`].
    pub fn ahead_of_client(&self) -> Option<i64> {
        lock(&self.follower).ahead_of_client()
    }

    /// Its final bookmark.
    pub fn bookmark(&self, shared: &Shared) -> Result<Bytes, Withheld> {
        let revision = match (self.newest_safe(shared), self.ahead_of_client()) {
            (Err(Withheld::NothingNewer), Some(at)) => at,
            (newest, _) => newest?,
        };
        let follower = lock(&self.follower);
        let delivered = follower.object_type().or(self.transformed.as_deref());
        let kind = || lock(&self.served_by).stored.as_ref()?.proof().kind;
        let object_type = match delivered {
            Some(delivered) => delivered.clone(),
            None => ObjectType {
                api_version: api_version(&self.resource.group, &self.resource.version),
                kind: kind().ok_or(Withheld::TypeUnknown)?,
            },
        };
        let frame = follower.frames.format.bookmark(&object_type, revision);
        frame.ok_or(Withheld::TypeUnknown)
    }
}

impl ServedBy {
    /// How often etcd was found to be restored or replaced before.
    fn restores(&self) -> u64 {
        self.process.0
    }

    /// Whether etcd was not restored or replaced since, as far as those know who follow it, and those who write to it.
    fn is_of_this_etcd(&self, shared: &Shared) -> bool {
        let is_local = self.server == shared.config.api_server.address;
        let is_void = is_local && shared.local.was_void(self.process.1);
        shared.published.etcd.load().restores == self.restores() && !is_void
    }

    /// Whether it began before etcd was restored or replaced, or at an apiserver that did. Not where it is proved that another
    /// etcd keeps the resource.
    fn is_of_lost_history(&self, shared: &Shared) -> bool {
        let stored = self.stored.as_ref();
        if stored.is_some_and(|stored| stored.proof().stored_here == Some(false)) {
            return false;
        }
        let is_local = self.server == shared.config.api_server.address;
        let is_lost = is_local && shared.local.was_lost(self.process.1);
        shared.published.etcd.load().restores != self.restores() || is_lost
    }

    /// Asks where `server` stores `resource`, if it is given and nobody has asked its process.
    pub fn new(shared: &Shared, server: SocketAddr, resource: Option<&Gvr>) -> Self {
        let snapshot = shared.published.snapshot.load();
        let is_local = server == shared.config.api_server.address;
        let mut peers = snapshot.servers.iter();
        let peer = peers.find(|known| !is_local && known.endpoint == server);
        let start = peer.and_then(|peer| peer.history_start);
        let local = &shared.local;
        let (version, process, is_void) = match is_local {
            true => (
                snapshot.local_version,
                local.epoch(),
                local.is_history_void(),
            ),
            false => (
                peer.and_then(|peer| peer.version),
                start.map_or(0, i64::unsigned_abs),
                peer.is_none_or(|peer| peer.history_void),
            ),
        };
        let restores = shared.published.etcd.load().restores;
        let process = (restores, process);
        let ask = || {
            let resource = resource.filter(|_| !is_void)?;
            let kind = snapshot.kind_at(is_local, resource.borrow())?;
            let root = storage::root(&shared.config.etcd, kind, resource.borrow())?;
            shared.watches.stored_here.ask(Question {
                server,
                process,
                root: (&*root).into(),
                resource: resource.clone(),
                custom: kind == ResourceKind::Custom,
            })
        };
        Self {
            server,
            version,
            process,
            stored: ask(),
            change_log: None,
        }
    }
}

/// A revision after `asked`, up to which etcd shows that nothing changed, since `since`, of what a watch asks for, if `server`
/// is proved to keep it in this etcd. What was not found out by `end` counts for nothing.
pub async fn unchanged_through(
    context: &RequestContext<'_>,
    server: SocketAddr,
    [since, asked]: [i64; 2],
    end: Instant,
) -> Option<i64> {
    let Target::Resource(resource) = &context.info.target else {
        return None;
    };
    let (shared, namespace) = (context.shared, &resource.namespace);
    let resource = GvrRef::from(resource).owned();
    let served_by = ServedBy::new(shared, server, Some(&resource));
    let (change_logs, restores) = (&shared.watches.change_logs, served_by.restores());
    let stored = served_by.stored?;
    // For those that come back next from somewhat earlier, too.
    let from = since.saturating_sub(EARLIER).max(1);
    let change_log = change_logs.any(stored.root(), from, restores)?;
    let answered = stored.answered(false);
    let both = async { tokio::join!(change_log.complete_through(asked + 1), answered) };
    let _ = timeout_at(end, both).await;
    let position = WatchPosition::all_of(since);
    let scope = storage::scope(resource.borrow(), namespace);
    let stored_here = stored.proof().stored_here == Some(true);
    let through = change_log.newest_safe(position, &scope, stored_here);
    let is_same_etcd = shared.published.etcd.load().restores == restores;
    through.ok().filter(|it| *it > asked && is_same_etcd)
}

/// The revision that the client says it has seen; `None` if it asks for the existing objects.
fn start(query: Option<&str>) -> Option<i64> {
    if is_set(query, "sendInitialEvents") {
        return None;
    }
    revision(&query_values(query, "resourceVersion").next()?)
}
