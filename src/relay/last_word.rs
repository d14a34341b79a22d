//! The last word of a watch when the proxy stops: a bookmark (KEP-1904).
//!
//! A watch that asked for bookmarks is followed while it passes. When the drain begins it says from where on it needs to
//! know what changed; at its turn, or when the apiserver ends it first, etcd's answer is waited for, for a while. What
//! comes meanwhile is still passed on. The bookmark goes between two frames, just before the end. Of any other watch only
//! its frames' ends are known, so that it ends with one.
//!
//! Beside what the watch delivered itself counts what the same process of the apiserver beside us delivered in lists.

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

use super::shared::{Phase, Shared, TURNS};
use crate::admin::watches::Open;
use crate::request::info::{RequestInfo, Target, Verb, is_set, query_values};
use crate::watches::book::Book;
use crate::watches::bookmark;
use crate::watches::follower::{Follower, TypeMeta};
use crate::watches::frames::{Border, Format};
use crate::watches::proof::Withheld;
use crate::watches::resume::revision;
use crate::watches::samples::{Sample, Slot};
use crate::watches::storage::{Place, place};

/// How long etcd is waited for: a little longer than kubeadm's etcd takes to tell how far it is.
const PATIENCE: Duration = Duration::from_secs(6);
/// What did not take longer was no waiting.
const AT_ONCE: Duration = Duration::from_millis(50);
/// How long the rest of a frame is waited for.
const REST: Duration = Duration::from_secs(2);
/// What part of the drain may be used to wait for etcd, and for the rest of a frame.
const SHARES: [f64; 2] = [0.93, 0.97];

/// What a request has to do with it.
pub struct LastWord<'a> {
    shared: &'a Shared,
    _open: Option<Open<'a>>,
    watch: Option<Box<Watch>>,
}

/// Any watch.
struct Watch {
    /// None until the answer is known, and of answers in another format.
    border: Option<Mutex<Border>>,
    /// Something was passed on.
    passed: Notify,
    /// It asked for bookmarks.
    asked: Option<Asked>,
}

/// A watch that asked for bookmarks.
struct Asked {
    server: SocketAddr,
    place: Option<Place>,
    start: Option<i64>,
    /// Objects come in another form than in lists.
    transformed: bool,
    /// Where the resource's sample is, and the epoch of the process that was asked; none of peers.
    listed: Option<(Arc<Slot>, u64)>,
    /// None until the answer is known, and of answers in another format.
    follower: Option<Mutex<Follower>>,
    book: Mutex<Option<Arc<Book>>>,
}

impl<'a> LastWord<'a> {
    /// Of a request for `info`, with this header, that goes to `server`.
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
        let asked =
            shared.config.watch.bookmark_on_shutdown && is_set(query, "allowWatchBookmarks");
        let asked = asked.then(|| {
            let snapshot = shared.published.snapshot.load();
            Asked {
                server,
                place: place(&shared.config.etcd, &snapshot.custom, resource),
                start: start(query),
                transformed: is_transformed(header),
                listed: None,
                follower: None,
                book: Mutex::default(),
            }
        });
        Self {
            shared,
            _open: Some(shared.metrics.watches.open(asked.is_some())),
            watch: Some(Box::new(Watch {
                border: None,
                passed: Notify::new(),
                asked,
            })),
        }
    }

    /// Of a request that is no watch.
    pub fn none(shared: &'a Shared) -> Self {
        Self {
            shared,
            _open: None,
            watch: None,
        }
    }

    /// Whether it is of a watch.
    pub fn is_watch(&self) -> bool {
        self.watch.is_some()
    }

    /// The answer to the request for `info` begins; it is that of the apiserver beside us in `epoch`.
    pub fn answered(
        &mut self,
        info: &RequestInfo<'_>,
        response: &ResponseHeader,
        epoch: Option<u64>,
    ) {
        if response.status != StatusCode::OK {
            // An error is no watch.
            self.watch = None;
        }
        if let Some(watch) = &mut self.watch {
            let format = Format::of_answer(&response.headers);
            watch.border = format.map(|format| Mutex::new(Border::new(format)));
            if let Some(asked) = &mut watch.asked {
                let follower = |format| Mutex::new(Follower::new(format, asked.start));
                asked.follower = format.map(follower);
                let epoch = epoch.filter(|_| !asked.transformed);
                if let (Some(epoch), Target::Resource(resource)) = (epoch, &info.target) {
                    let slot = self.shared.samples.slot(resource.into());
                    asked.listed = slot.map(|slot| (slot, epoch));
                }
            }
        }
    }

    /// Passes a piece of the answer on. `end`: the apiserver sends no more.
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

    /// Resolves when the stream is to end, and what can be said is known as well as it will be.
    pub async fn turn(&self) {
        let mut phase = self.shared.phase.clone();
        let draining = phase.wait_for(|phase| *phase == Phase::Draining);
        if draining.await.is_err() {
            // Nobody is left to tell: the process is ending.
            return;
        }
        let _left = Open::new(&self.shared.metrics.watches.left);
        let begin = Instant::now();
        let drain = self.shared.config.shutdown.drain;
        let [told, whole] = SHARES.map(|share| begin + drain.mul_f64(share));
        if let Some(asked) = self.asked() {
            asked.enlist(self.shared);
        }
        self.shared.turn_to_end().await;
        if let Some(asked) = self.asked() {
            let end = told.min(Instant::now() + PATIENCE);
            if asked.settle(self.shared, end).await {
                // All that waited are told at one moment, and must not all end then.
                let last = begin + drain.mul_f64(TURNS);
                let left = last.saturating_duration_since(Instant::now());
                tokio::time::sleep(left.mul_f64(rand::random())).await;
            }
        }
        if let Some(watch) = &self.watch {
            watch.whole_frame(whole.min(Instant::now() + REST)).await;
        }
    }

    /// Waits, for a while, for the end of the frame that is being passed on: the stream is to end for another reason.
    pub async fn whole_frame(&self) {
        if let Some(watch) = &self.watch {
            watch.whole_frame(Instant::now() + REST).await;
        }
    }

    /// The apiserver ends the stream first: says what can be said, if the proxy is stopping.
    pub async fn before_end(&self, down: &mut ServerSession) -> pingora_core::Result<()> {
        if let Some(asked) = self.asked().filter(|_| self.is_stopping()) {
            asked.settle(self.shared, Instant::now() + PATIENCE).await;
        }
        self.say(down).await
    }

    /// Writes the bookmark, if there is one to be given. To be called once, at the end.
    pub async fn say(&self, down: &mut ServerSession) -> pingora_core::Result<()> {
        let Some(asked) = self.asked().filter(|_| self.is_stopping()) else {
            return Ok(());
        };
        let frame = match asked.bookmark() {
            Ok(frame) => frame,
            Err(withheld) => {
                self.shared.metrics.watches.withheld(withheld);
                tracing::debug!(place = ?asked.place, why = withheld.name(), "no last bookmark");
                return Ok(());
            }
        };
        let written = timeout(REST, down.write_response_body(frame, false)).await;
        match written {
            Ok(written) => written.map(|()| self.shared.metrics.watches.given()),
            // Part of it may be on its way: the stream cannot end cleanly any more.
            Err(_) => Error::e_explain(ErrorType::WriteTimedout, "the client takes no bookmark"),
        }
    }

    fn asked(&self) -> Option<&Asked> {
        self.watch.as_ref()?.asked.as_ref()
    }

    /// Whether a bookmark may follow what the apiserver sent last.
    fn is_stopping(&self) -> bool {
        self.asked().is_some() && *self.shared.phase.borrow() != Phase::Serving
    }
}

impl Watch {
    fn passed(&self, data: &Bytes) {
        if let Some(border) = &self.border {
            lock(border).passed(data);
        }
        if let Some(mut follower) = self.asked.as_ref().and_then(Asked::follower) {
            follower.passed(data);
        }
        self.passed.notify_one();
    }

    /// Waits for the end of the frame that is being passed on.
    async fn whole_frame(&self, end: Instant) {
        let whole = async {
            while self
                .border
                .as_ref()
                .is_some_and(|border| !lock(border).is_here())
            {
                self.passed.notified().await;
            }
        };
        // In vain: the frame's end is not ours to make.
        let _ = timeout_at(end, whole).await;
    }
}

impl Asked {
    fn follower(&self) -> Option<MutexGuard<'_, Follower>> {
        self.follower.as_ref().map(lock)
    }

    /// What lists of the same process showed.
    fn sample(&self) -> Option<Sample> {
        let (slot, epoch) = self.listed.as_ref()?;
        slot.sample(*epoch)
    }

    /// Says what this watch will need to know; nothing if there is nothing to be known.
    fn enlist(&self, shared: &Shared) -> Option<Arc<Book>> {
        let mut book = lock(&self.book);
        if book.is_none() {
            let (place, follower) = (self.place.as_ref()?, self.follower()?);
            let (position, sample) = (follower.position()?, self.sample());
            let sampled = sample.iter().flat_map(|sample| &sample.witnesses);
            let witnesses = follower.witness().into_iter().chain(sampled);
            *book = shared
                .archive
                .enlist(&place.root, position, self.server, witnesses);
        }
        book.clone()
    }

    /// Waits until etcd has told of all that it had when it was first asked; whether that was not at once.
    async fn settle(&self, shared: &Shared, end: Instant) -> bool {
        let begin = Instant::now();
        if let Some(book) = self.enlist(shared) {
            // In vain: what is known is what counts.
            let _ = timeout_at(end, book.caught_up()).await;
        }
        begin.elapsed() > AT_ONCE
    }

    fn bookmark(&self) -> Result<Bytes, Withheld> {
        let follower = self.follower().ok_or(Withheld::NotUnderstood)?;
        if !follower.is_understood() {
            return Err(Withheld::NotUnderstood);
        }
        if !follower.at_border() {
            return Err(Withheld::HalfFrame);
        }
        let place = self.place.as_ref().ok_or(Withheld::ElsewhereStored)?;
        let position = follower.position().ok_or(Withheld::NoBeginning)?;
        let of_lists = || self.sample().map(|sample| sample.type_meta);
        let type_meta = follower.type_meta().cloned().or_else(of_lists);
        let TypeMeta { api_version, kind } = type_meta.ok_or(Withheld::TypeUnknown)?;
        let book = lock(&self.book).clone().ok_or(Withheld::NotTold)?;
        let witness = follower.witness();
        let revision = book.answer(position, &place.scope, self.server, witness)?;
        let format = follower.format();
        Ok(bookmark::frame(format, &api_version, &kind, revision))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether objects are asked for in another form: `as=PartialObjectMetadata`, for example.
fn is_transformed(header: &RequestHeader) -> bool {
    let accepts = header.headers.get_all(ACCEPT).iter();
    let mut parameters =
        accepts.flat_map(|accept| accept.as_bytes().split(|byte| b",;".contains(byte)));
    parameters.any(|parameter| {
        let name = parameter.split(|byte| *byte == b'=').next();
        name.is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(b"as"))
    })
}

/// The revision that a client has seen everything of, by its own account; none if it asks for what there is.
fn start(query: Option<&str>) -> Option<i64> {
    if is_set(query, "sendInitialEvents") {
        return None;
    }
    revision(&query_values(query, "resourceVersion").next()?)
}
