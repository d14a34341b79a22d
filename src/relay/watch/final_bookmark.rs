//! The final bookmark of a watch when the proxy stops (KEP-1904).
//!
//! A watch that allows bookmarks is followed while it passes. As soon as the proxy is told to stop, the watch registers
//! the revision from which it needs etcd's changes: its apiserver may be told to stop at the same time. When its turn to
//! end comes, or when the apiserver ends it first, it waits for etcd's answer for a limited time, and still passes on
//! events. The bookmark is written between two frames, just before the end. For any other watch only the ends of frames
//! are known, so that it ends after a complete frame.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::{ACCEPT, CONTENT_LENGTH, HeaderValue};
use http::request::Parts;
use pingora_core::{Error, ErrorType};
use pingora_http::ResponseHeader;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use crate::config::settings::Settings;
use crate::kube::gvr::ResourceKind;
use crate::metrics::Open;
use crate::relay::client::ClientSession;
use crate::relay::client::unread::AnswerWriter;
use crate::relay::shared::Shared;
use crate::relay::shutdown::{DRAIN_TURNS, ShutdownPhase};
use crate::request::info::{RequestInfo, Target, Verb, is_set, query_values};
use crate::watches::change_log::Withheld;
use crate::watches::change_logs::SharedChangeLog;
use crate::watches::follower::Follower;
use crate::watches::frames::{FrameFormat, ObjectType, revision};
use crate::watches::sample::WatchedResource;
use crate::watches::storage;
use crate::watches::stored_here::{Question, Stored};

/// Longest wait for etcd: a little longer than kubeadm's etcd takes to report its progress.
const ETCD_TIMEOUT: Duration = Duration::from_secs(6);
/// A shorter wait for etcd does not count as one.
const NO_WAIT: Duration = Duration::from_millis(50);
/// Longest wait for the rest of a frame.
const FRAME_TIMEOUT: Duration = Duration::from_secs(2);
/// The parts of the drain after which the waits for etcd and for the rest of a frame end.
const DEADLINES: [f64; 2] = [0.93, 0.97];
/// Ends of these waits for watches that began during the drain, as parts of its last seconds
/// ([`crate::relay::shutdown::Shutdown::ending`]).
const LATE_DEADLINES: [f64; 2] = [0.5, 0.8];

/// Writes the final bookmark of a watch. Passes anything else as it is.
pub struct FinalBookmark<'a> {
    shared: &'a Shared,
    /// The request began during the drain: it ends last.
    late: bool,
    _open: Option<Open<'a>>,
    watch: Option<Arc<Watch>>,
}

/// What is known of a watch while it passes.
pub struct Watch {
    pub server: SocketAddr,
    /// `None` before the answer begins, and for unknown formats.
    follower: Mutex<Option<Follower>>,
    /// Notified when a piece was passed on.
    passed: Notify,
    /// Set if the watch allows bookmarks.
    bookmark_request: Option<BookmarkRequest>,
}

/// A watch that allows bookmarks.
struct BookmarkRequest {
    resource: WatchedResource,
    /// Empty for all namespaces.
    namespace: Box<str>,
    /// The revision that the client says it has seen; `None` if it asks for the existing objects.
    start: Option<i64>,
    /// The first `Accept` header, the only one that kube-apiserver reads. Until the answer begins.
    accept: Option<HeaderValue>,
    /// Set if the client asked for tables or for metadata alone.
    transformed: Option<Box<ObjectType>>,
    /// Identifies the process of the server.
    process: OnceLock<u64>,
    /// What is read from etcd for it, and where its server stores the resource.
    proof: Mutex<Option<(Arc<SharedChangeLog>, Arc<Stored>)>>,
}

impl<'a> FinalBookmark<'a> {
    /// For a request with this `info` and header to `server`.
    pub fn of(
        shared: &'a Shared,
        settings: &Settings,
        info: &RequestInfo<'_>,
        header: &Parts,
        server: SocketAddr,
    ) -> Self {
        let (Verb::Watch, Target::Resource(resource)) = (info.verb, &info.target) else {
            return Self::none(shared);
        };
        let query = header.uri.query();
        let bookmark_request =
            settings.watch.bookmark_on_shutdown && is_set(query, "allowWatchBookmarks");
        let bookmark_request = bookmark_request.then(|| BookmarkRequest {
            resource: WatchedResource {
                group: resource.group.as_ref().into(),
                version: resource.version.as_ref().into(),
                resource: resource.resource.as_ref().into(),
            },
            namespace: resource.namespace.as_ref().into(),
            start: start(query),
            accept: header.headers.get(ACCEPT).cloned(),
            transformed: None,
            process: OnceLock::new(),
            proof: Mutex::default(),
        });
        let watch = Watch {
            server,
            follower: Mutex::default(),
            passed: Notify::new(),
            bookmark_request,
        };
        Self::of_rest(shared, &Arc::new(watch))
    }

    /// For a request that is not a watch.
    pub fn none(shared: &'a Shared) -> Self {
        Self {
            late: shared.shutdown.is_draining(),
            shared,
            _open: None,
            watch: None,
        }
    }

    /// For the rest of a watch ([`Self::rest`]).
    pub fn of_rest(shared: &'a Shared, watch: &Arc<Watch>) -> Self {
        let followed = watch.bookmark_request.is_some();
        Self {
            _open: Some(shared.metrics.watches.open(followed)),
            watch: Some(watch.clone()),
            ..Self::none(shared)
        }
    }

    /// The watch, if its rest may be passed on elsewhere: until the proxy stops.
    pub fn rest(&self) -> Option<Arc<Watch>> {
        let watch = self.watch.as_ref()?;
        (!self.shared.shutdown.is_leaving()).then(|| watch.clone())
    }

    pub fn is_watch(&self) -> bool {
        self.watch.is_some()
    }

    /// The answer begins.
    pub fn answered(&mut self, response: &ResponseHeader) {
        // An error is no stream of a watch, nor is an answer that says its length: it must not end before that, and nothing
        // can be added to it.
        if self.watch.is_some()
            && (response.status != StatusCode::OK || response.headers.contains_key(CONTENT_LENGTH))
        {
            self.watch = None;
        }
        if let Some(watch) = self.watch.as_mut().and_then(Arc::get_mut) {
            let format = FrameFormat::of_answer(&response.headers);
            let follower = match &mut watch.bookmark_request {
                Some(request) => request.answered(format),
                None => format.map(Follower::of_boundaries),
            };
            watch.follower = Mutex::new(follower);
            if let Some(request) = &watch.bookmark_request {
                request.ask_where_stored(self.shared, watch);
            }
        }
    }

    /// Passes on a piece of the answer. `end`: it is the last.
    pub async fn pass(
        &self,
        down: &mut ClientSession,
        data: Bytes,
        end: bool,
    ) -> pingora_core::Result<()> {
        let last = end && !self.is_stopping();
        let passed = data.clone();
        down.write_body(data, last).await?;
        if let Some(watch) = &self.watch {
            watch.passed(&passed);
        }
        match end && !last {
            true => Box::pin(self.before_end(down)).await,
            false => Ok(()),
        }
    }

    /// Counts what is kept of the event that was passed on in part. Above the budget the watch goes on unread.
    pub fn count(&self, writer: &mut AnswerWriter<'_>) {
        if let Some(watch) = &self.watch
            && let Some(follower) = &mut *lock(&watch.follower)
            && !writer.keeps(follower.frames.kept())
        {
            follower.give_up();
        }
    }

    /// Resolves when the stream is to end and etcd's answer is as complete as it will be.
    pub async fn turn(&self) {
        if !self.shared.shutdown.reaches(ShutdownPhase::Leaving).await {
            return;
        }
        self.register();
        let phase = match self.late {
            false => ShutdownPhase::Draining,
            true => ShutdownPhase::Ending,
        };
        if !self.shared.shutdown.reaches(phase).await {
            return;
        }
        let _left = Open::new(&self.shared.metrics.watches.left);
        let drain = self.shared.config.shutdown.drain;
        let (begin, time, shares) = match self.late {
            false => (self.shared.shutdown.drain_begin(), drain, DEADLINES),
            true => (
                Instant::now(),
                self.shared.shutdown.ending(),
                LATE_DEADLINES,
            ),
        };
        let [etcd_deadline, frame_deadline] = shares.map(|share| begin + time.mul_f64(share));
        self.register();
        if !self.late {
            self.shared.shutdown.random_drain_delay().await;
        }
        if let Some((watch, bookmark_request)) = self.bookmark_request() {
            let end = etcd_deadline.min(Instant::now() + ETCD_TIMEOUT);
            let waited = bookmark_request
                .wait_for_etcd(self.shared, watch, end)
                .await;
            if waited && !self.late {
                // All waiting watches get etcd's answer at the same time. They must not all end then.
                let last = begin + drain.mul_f64(DRAIN_TURNS);
                let left = last.saturating_duration_since(Instant::now());
                tokio::time::sleep(left.mul_f64(rand::random())).await;
            }
        }
        if let Some(watch) = &self.watch {
            watch
                .whole_frame(frame_deadline.min(Instant::now() + FRAME_TIMEOUT))
                .await;
        }
    }

    /// Waits for the end of the current frame, for a limited time. The stream ends for another reason.
    pub async fn whole_frame(&self) {
        if let Some(watch) = &self.watch {
            watch.whole_frame(Instant::now() + FRAME_TIMEOUT).await;
        }
    }

    /// The apiserver ends the stream first: writes the bookmark if the proxy is stopping.
    pub async fn before_end(&self, down: &mut ClientSession) -> pingora_core::Result<()> {
        if let Some((watch, bookmark_request)) =
            self.bookmark_request().filter(|_| self.is_stopping())
        {
            bookmark_request
                .wait_for_etcd(self.shared, watch, Instant::now() + ETCD_TIMEOUT)
                .await;
        }
        self.write(down).await
    }

    /// The connection to the apiserver broke. A watch may end as if the apiserver had ended it, unless a frame is
    /// incomplete.
    pub async fn after_break(&self, down: &mut ClientSession) -> pingora_core::Result<()> {
        let watch = self.watch.as_ref();
        match watch.and_then(|watch| watch.is_at_boundary()) == Some(true) {
            true => self.before_end(down).await,
            false => Error::e_explain(ErrorType::ConnectionClosed, "in the middle of an answer"),
        }
    }

    /// Writes the bookmark, if there is one. To be called once, at the end.
    pub async fn write(&self, down: &mut ClientSession) -> pingora_core::Result<()> {
        let Some((watch, bookmark_request)) =
            self.bookmark_request().filter(|_| self.is_stopping())
        else {
            return Ok(());
        };
        let frame = match bookmark_request.bookmark(self.shared, watch) {
            Ok(frame) => frame,
            Err(withheld) => {
                self.shared.metrics.watches.withheld(withheld);
                tracing::debug!(resource = ?bookmark_request.resource, why = withheld.name(), "no last bookmark");
                return Ok(());
            }
        };
        let written = timeout(FRAME_TIMEOUT, down.write_body(frame, false)).await;
        match written {
            Ok(written) => written.map(|()| self.shared.metrics.watches.given()),
            // Part of the bookmark may be written: the stream cannot end cleanly.
            Err(_) => Error::e_explain(ErrorType::WriteTimedout, "the client takes no bookmark"),
        }
    }

    /// Registers what is to be read from etcd, as far as that is known by now.
    fn register(&self) {
        if let Some((watch, bookmark_request)) = self.bookmark_request() {
            bookmark_request.register(self.shared, watch);
        }
    }

    /// With its watch. `None` also if bookmarks were switched off since the watch began.
    fn bookmark_request(&self) -> Option<(&Watch, &BookmarkRequest)> {
        let watch = self.watch.as_ref()?;
        let request = watch.bookmark_request.as_ref()?;
        let wanted = self.shared.settings.load().watch.bookmark_on_shutdown;
        wanted.then_some((&**watch, request))
    }

    /// Whether a bookmark may follow what the apiserver sent last.
    fn is_stopping(&self) -> bool {
        self.bookmark_request().is_some()
            && *self.shared.shutdown.phase.borrow() != ShutdownPhase::Serving
    }
}

impl Watch {
    fn passed(&self, data: &Bytes) {
        if let Some(follower) = &mut *lock(&self.follower) {
            follower.passed(data);
        }
        self.passed.notify_one();
    }

    /// Whether what was passed on ends with a frame; `None`: that is not known.
    fn is_at_boundary(&self) -> Option<bool> {
        let follower = lock(&self.follower);
        let follower = follower.as_ref();
        follower.map(|follower| follower.frames.at_boundary())
    }

    /// Waits for the end of the current frame.
    async fn whole_frame(&self, end: Instant) {
        let frame_end = async {
            while self.is_at_boundary() == Some(false) {
                self.passed.notified().await;
            }
        };
        // The frame may stay incomplete.
        let _ = timeout_at(end, frame_end).await;
    }
}

impl BookmarkRequest {
    /// The answer begins, in this format.
    fn answered(&mut self, format: Option<FrameFormat>) -> Option<Follower> {
        // Of an unknown format too: its value may hold all that was read with the header, for hours.
        let (accept, format) = (self.accept.take(), format?);
        self.transformed = format.transformed(accept.as_ref()).map(Box::new);
        Some(Follower::new(format, self.start))
    }

    /// Asks whether the watch's server stores the resource in this etcd. Returns the resource's key prefix, too; `None`:
    /// that is not known by now, or the history of the server's process is not that of this etcd.
    fn ask_where_stored(&self, shared: &Shared, watch: &Watch) -> Option<(String, Arc<Stored>)> {
        let request = self.resource.request(&self.namespace);
        let server = watch.server;
        let is_local = server == shared.config.api_server.address;
        let snapshot = shared.published.snapshot.load();
        let kind = snapshot.kind_at(is_local, (&request).into())?;
        let root = storage::root(&shared.config.etcd, kind, &request)?;
        let mut servers = snapshot.servers.iter();
        let peer = servers.find(|known| !is_local && known.endpoint == server);
        let is_void = match is_local {
            true => shared.local.is_history_void(),
            false => peer.is_some_and(|peer| peer.history_void),
        };
        let start = || peer.and_then(|peer| peer.history_start);
        let process = self.process.get_or_init(|| match is_local {
            true => shared.local.epoch(),
            false => start().map_or(0, i64::unsigned_abs),
        });
        let stored = shared.watches.stored_here.ask(Question {
            server,
            process: *process,
            root: (&*root).into(),
            resource: self.resource.clone(),
            custom: kind == ResourceKind::Custom,
        });
        Some(root).filter(|_| !is_void).zip(stored)
    }

    /// Registers what this watch needs to know from etcd; `None` if that cannot be known.
    fn register(
        &self,
        shared: &Shared,
        watch: &Watch,
    ) -> Option<(Arc<SharedChangeLog>, Arc<Stored>)> {
        let mut proof = lock(&self.proof);
        if proof.is_none() {
            let (root, stored) = self.ask_where_stored(shared, watch)?;
            let position = lock(&watch.follower).as_ref()?.position()?;
            let change_logs = &shared.watches.change_logs;
            *proof = Some((change_logs.register(&root, position.revision)?, stored));
        }
        proof.clone()
    }

    /// Waits until etcd has reported all changes up to its revision at the first request. Returns whether that took a
    /// noticeable time.
    async fn wait_for_etcd(&self, shared: &Shared, watch: &Watch, end: Instant) -> bool {
        let begin = Instant::now();
        if let Some((change_log, stored)) = self.register(shared, watch) {
            let delivered = lock(&watch.follower)
                .as_ref()
                .is_some_and(|follower| follower.object_type().is_some());
            let answered = stored.answered(self.transformed.is_none() && !delivered);
            let both = async { tokio::join!(change_log.caught_up(), answered) };
            // After the timeout the bookmark is made from what is known.
            let _ = timeout_at(end, both).await;
        }
        begin.elapsed() > NO_WAIT
    }

    fn bookmark(&self, shared: &Shared, watch: &Watch) -> Result<Bytes, Withheld> {
        let follower = lock(&watch.follower);
        let follower = follower.as_ref().ok_or(Withheld::NotUnderstood)?;
        if follower.is_over_budget() {
            return Err(Withheld::OverBudget);
        }
        if !follower.frames.is_read() {
            return Err(Withheld::NotUnderstood);
        }
        if !follower.frames.at_boundary() {
            return Err(Withheld::HalfFrame);
        }
        let position = follower.position().ok_or(Withheld::NoBeginning)?;
        let known = lock(&self.proof).clone();
        let (change_log, stored) =
            known.ok_or_else(|| match self.ask_where_stored(shared, watch) {
                None => Withheld::ElsewhereStored,
                Some(_) => Withheld::NotTold,
            })?;
        let scope = storage::scope(&self.resource.request(&self.namespace));
        let proof = stored.proof();
        let stored_here = proof.stored_here == Some(true);
        let revision = change_log.newest_safe(position, &scope, stored_here)?;
        let delivered = follower.object_type().or(self.transformed.as_deref());
        let named = || {
            Some(ObjectType {
                api_version: self.resource.api_version(),
                kind: proof.kind?,
            })
        };
        let object_type = delivered
            .cloned()
            .or_else(named)
            .ok_or(Withheld::TypeUnknown)?;
        let frame = follower.frames.format.bookmark(&object_type, revision);
        frame.ok_or(Withheld::TypeUnknown)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The revision that the client says it has seen; `None` if it asks for the existing objects.
fn start(query: Option<&str>) -> Option<i64> {
    if is_set(query, "sendInitialEvents") {
        return None;
    }
    revision(&query_values(query, "resourceVersion").next()?)
}
