//! The final bookmark of a watch when the proxy stops (KEP-1904).
//!
//! A watch that allows bookmarks is followed while it passes. When the drain begins, the watch registers the revision
//! from which it needs etcd's changes. When its turn to end comes, or when the apiserver ends it first, it waits for
//! etcd's answer for a limited time, and still passes on events. The bookmark is written between two frames, just
//! before the end. For any other watch only the ends of frames are known, so that it ends after a complete frame.
//!
//! Objects count that the watch itself delivered, and objects that the same process of the local apiserver delivered in
//! lists.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::ACCEPT;
use pingora_core::protocols::http::ServerSession;
use pingora_core::{Error, ErrorType};
use pingora_http::{RequestHeader, ResponseHeader};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use super::shared::{DRAIN_TURNS, Shared, ShutdownPhase};
use crate::request::info::{RequestInfo, Target, Verb, is_set, query_values};
use crate::watches::bookmark;
use crate::watches::follower::{Follower, ObjectType};
use crate::watches::frames::{FrameBoundary, FrameFormat};
use crate::watches::metrics::OpenWatch;
use crate::watches::proof::Withheld;
use crate::watches::resume::revision;
use crate::watches::samples::{Sample, SampleSlot};
use crate::watches::shared_change_log::SharedChangeLog;
use crate::watches::storage::{StorageLocation, storage_location};

/// Longest wait for etcd: a little longer than kubeadm's etcd takes to report its progress.
const ETCD_TIMEOUT: Duration = Duration::from_secs(6);
/// A shorter wait for etcd does not count as one.
const NO_WAIT: Duration = Duration::from_millis(50);
/// Longest wait for the rest of a frame.
const FRAME_TIMEOUT: Duration = Duration::from_secs(2);
/// The parts of the drain after which the waits for etcd and for the rest of a frame end.
const DEADLINES: [f64; 2] = [0.93, 0.97];
/// The same for watches that began during the drain, as parts of its last seconds ([`Shared::ending`]).
const LATE_DEADLINES: [f64; 2] = [0.5, 0.8];

/// Writes the final bookmark of a watch. Passes anything else as it is.
pub struct FinalBookmark<'a> {
    shared: &'a Shared,
    /// The request began during the drain: it ends last.
    late: bool,
    _open: Option<OpenWatch<'a>>,
    watch: Option<Box<Watch>>,
}

struct Watch {
    /// `None` before the answer begins, and for unknown formats.
    border: Option<Mutex<FrameBoundary>>,
    /// Notified when a piece was passed on.
    passed: Notify,
    /// Set if the watch allows bookmarks.
    bookmark_request: Option<BookmarkRequest>,
}

/// A watch that allows bookmarks.
struct BookmarkRequest {
    server: SocketAddr,
    place: Option<StorageLocation>,
    start: Option<i64>,
    /// Objects have another format than in lists.
    transformed: bool,
    /// The sample of the resource, and the epoch of the apiserver process; `None` for peers.
    listed: Option<(Arc<SampleSlot>, u64)>,
    /// `None` before the answer begins, and for unknown formats.
    follower: Option<Mutex<Follower>>,
    change_log: Mutex<Option<Arc<SharedChangeLog>>>,
}

impl<'a> FinalBookmark<'a> {
    /// For a request with this `info` and header to `server`.
    pub fn of(
        shared: &'a Shared,
        info: &RequestInfo<'_>,
        header: &RequestHeader,
        server: SocketAddr,
    ) -> Self {
        let (Verb::Watch, Target::Resource(resource)) = (info.verb, &info.target) else {
            return Self::none(shared);
        };
        let query = header.uri.query();
        let bookmark_request =
            shared.config.watch.bookmark_on_shutdown && is_set(query, "allowWatchBookmarks");
        let bookmark_request = bookmark_request.then(|| {
            let snapshot = shared.published.snapshot.load();
            BookmarkRequest {
                server,
                place: storage_location(&shared.config.etcd, &snapshot.custom, resource),
                start: start(query),
                transformed: is_transformed(header),
                listed: None,
                follower: None,
                change_log: Mutex::default(),
            }
        });
        Self {
            late: shared.is_draining(),
            shared,
            _open: Some(shared.metrics.watches.open(bookmark_request.is_some())),
            watch: Some(Box::new(Watch {
                border: None,
                passed: Notify::new(),
                bookmark_request,
            })),
        }
    }

    /// For a request that is not a watch.
    pub fn none(shared: &'a Shared) -> Self {
        Self {
            late: shared.is_draining(),
            shared,
            _open: None,
            watch: None,
        }
    }

    pub fn is_watch(&self) -> bool {
        self.watch.is_some()
    }

    /// The answer begins. `epoch`: of the local apiserver's process that sent it.
    pub fn answered(
        &mut self,
        info: &RequestInfo<'_>,
        response: &ResponseHeader,
        epoch: Option<u64>,
    ) {
        if response.status != StatusCode::OK {
            // An error is not a watch stream.
            self.watch = None;
        }
        if let Some(watch) = &mut self.watch {
            let format = FrameFormat::of_answer(&response.headers);
            watch.border = format.map(|format| Mutex::new(FrameBoundary::new(format)));
            if let Some(bookmark_request) = &mut watch.bookmark_request {
                let follower = |format| Mutex::new(Follower::new(format, bookmark_request.start));
                bookmark_request.follower = format.map(follower);
                let epoch = epoch.filter(|_| !bookmark_request.transformed);
                if let (Some(epoch), Target::Resource(resource)) = (epoch, &info.target) {
                    let slot = self.shared.samples.slot(resource.into());
                    bookmark_request.listed = slot.map(|slot| (slot, epoch));
                }
            }
        }
    }

    /// Passes on a piece of the answer. `end`: it is the last.
    pub async fn pass(
        &self,
        down: &mut ServerSession,
        data: Bytes,
        end: bool,
    ) -> pingora_core::Result<()> {
        let last = end && !self.is_stopping();
        let passed = data.clone();
        down.write_response_body(data, last).await?;
        if let Some(watch) = &self.watch {
            watch.passed(&passed);
        }
        match end && !last {
            true => self.before_end(down).await,
            false => Ok(()),
        }
    }

    /// Resolves when the stream is to end and etcd's answer is as complete as it will be.
    pub async fn turn(&self) {
        let phase = match self.late {
            false => ShutdownPhase::Draining,
            true => ShutdownPhase::Ending,
        };
        if !self.shared.reaches(phase).await {
            return;
        }
        let _left = OpenWatch::new(&self.shared.metrics.watches.left);
        let drain = self.shared.config.shutdown.drain;
        let (begin, time, shares) = match self.late {
            false => (self.shared.drain_begin(), drain, DEADLINES),
            true => (Instant::now(), self.shared.ending(), LATE_DEADLINES),
        };
        let [etcd_deadline, frame_deadline] = shares.map(|share| begin + time.mul_f64(share));
        if let Some(bookmark_request) = self.bookmark_request() {
            bookmark_request.register_change_log(self.shared);
        }
        if !self.late {
            self.shared.random_drain_delay().await;
        }
        if let Some(bookmark_request) = self.bookmark_request() {
            let end = etcd_deadline.min(Instant::now() + ETCD_TIMEOUT);
            let waited = bookmark_request.wait_for_etcd(self.shared, end).await;
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
    pub async fn before_end(&self, down: &mut ServerSession) -> pingora_core::Result<()> {
        if let Some(bookmark_request) = self.bookmark_request().filter(|_| self.is_stopping()) {
            bookmark_request
                .wait_for_etcd(self.shared, Instant::now() + ETCD_TIMEOUT)
                .await;
        }
        self.write(down).await
    }

    /// Writes the bookmark, if there is one. To be called once, at the end.
    pub async fn write(&self, down: &mut ServerSession) -> pingora_core::Result<()> {
        let Some(bookmark_request) = self.bookmark_request().filter(|_| self.is_stopping()) else {
            return Ok(());
        };
        let frame = match bookmark_request.bookmark() {
            Ok(frame) => frame,
            Err(withheld) => {
                self.shared.metrics.watches.withheld(withheld);
                tracing::debug!(place = ?bookmark_request.place, why = withheld.name(), "no last bookmark");
                return Ok(());
            }
        };
        let written = timeout(FRAME_TIMEOUT, down.write_response_body(frame, false)).await;
        match written {
            Ok(written) => written.map(|()| self.shared.metrics.watches.given()),
            // Part of the bookmark may be written: the stream cannot end cleanly.
            Err(_) => Error::e_explain(ErrorType::WriteTimedout, "the client takes no bookmark"),
        }
    }

    fn bookmark_request(&self) -> Option<&BookmarkRequest> {
        self.watch.as_ref()?.bookmark_request.as_ref()
    }

    /// Whether a bookmark may follow what the apiserver sent last.
    fn is_stopping(&self) -> bool {
        self.bookmark_request().is_some() && *self.shared.phase.borrow() != ShutdownPhase::Serving
    }
}

impl Watch {
    fn passed(&self, data: &Bytes) {
        if let Some(border) = &self.border {
            lock(border).passed(data);
        }
        if let Some(mut follower) = self
            .bookmark_request
            .as_ref()
            .and_then(BookmarkRequest::follower)
        {
            follower.passed(data);
        }
        self.passed.notify_one();
    }

    /// Waits for the end of the current frame.
    async fn whole_frame(&self, end: Instant) {
        let frame_deadline = async {
            while self
                .border
                .as_ref()
                .is_some_and(|border| !lock(border).is_at_boundary())
            {
                self.passed.notified().await;
            }
        };
        // The frame may stay incomplete.
        let _ = timeout_at(end, frame_deadline).await;
    }
}

impl BookmarkRequest {
    fn follower(&self) -> Option<MutexGuard<'_, Follower>> {
        self.follower.as_ref().map(lock)
    }

    /// The sample from lists of the same process.
    fn sample(&self) -> Option<Sample> {
        let (slot, epoch) = self.listed.as_ref()?;
        slot.sample(*epoch)
    }

    /// Registers what this watch needs to know from etcd; `None` if that cannot be known.
    fn register_change_log(&self, shared: &Shared) -> Option<Arc<SharedChangeLog>> {
        let mut change_log = lock(&self.change_log);
        if change_log.is_none() {
            let (place, follower) = (self.place.as_ref()?, self.follower()?);
            let (position, sample) = (follower.position()?, self.sample());
            let sampled = sample.iter().flat_map(|sample| &sample.anchors);
            let anchors = follower.anchor().into_iter().chain(sampled);
            *change_log = shared
                .change_logs
                .register(&place.root, position, self.server, anchors);
        }
        change_log.clone()
    }

    /// Waits until etcd has reported all changes up to its revision at the first request. Returns whether that took a
    /// noticeable time.
    async fn wait_for_etcd(&self, shared: &Shared, end: Instant) -> bool {
        let begin = Instant::now();
        if let Some(change_log) = self.register_change_log(shared) {
            // After the timeout the bookmark is made from what is known.
            let _ = timeout_at(end, change_log.caught_up()).await;
        }
        begin.elapsed() > NO_WAIT
    }

    fn bookmark(&self) -> Result<Bytes, Withheld> {
        let follower = self.follower().ok_or(Withheld::NotUnderstood)?;
        if !follower.is_understood() {
            return Err(Withheld::NotUnderstood);
        }
        if !follower.at_boundary() {
            return Err(Withheld::HalfFrame);
        }
        let place = self.place.as_ref().ok_or(Withheld::ElsewhereStored)?;
        let position = follower.position().ok_or(Withheld::NoBeginning)?;
        let of_lists = || self.sample().map(|sample| sample.type_meta);
        let type_meta = follower.type_meta().cloned().or_else(of_lists);
        let ObjectType { api_version, kind } = type_meta.ok_or(Withheld::TypeUnknown)?;
        let change_log = lock(&self.change_log).clone().ok_or(Withheld::NotTold)?;
        let anchor = follower.anchor();
        let revision = change_log.newest_safe(position, &place.scope, self.server, anchor)?;
        let format = follower.format();
        Ok(bookmark::frame(format, &api_version, &kind, revision))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the client asks for another format of objects, such as `as=PartialObjectMetadata`.
fn is_transformed(header: &RequestHeader) -> bool {
    let accepts = header.headers.get_all(ACCEPT).iter();
    let mut parameters =
        accepts.flat_map(|accept| accept.as_bytes().split(|byte| b",;".contains(byte)));
    parameters.any(|parameter| {
        let name = parameter.split(|byte| *byte == b'=').next();
        name.is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(b"as"))
    })
}

/// The revision that the client says it has seen; `None` if it asks for the existing objects.
fn start(query: Option<&str>) -> Option<i64> {
    if is_set(query, "sendInitialEvents") {
        return None;
    }
    revision(&query_values(query, "resourceVersion").next()?)
}
