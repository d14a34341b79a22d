//! The final bookmark of a watch that ends before its time (KEP-1904), or the 410 that it gets in its place.
//!
//! As soon as the proxy is told to stop, a watch that asked for bookmarks registers the revision from which it needs etcd's
//! changes: its apiserver may be told to stop at the same time. When the drain ends it, or when the apiserver ends it first,
//! it waits for etcd's answer for a limited time, and still passes on events. The bookmark is written between two frames,
//! just before the end. So is that of a watch whose server has stopped, and which no other server goes on with.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_LENGTH, HeaderValue};
use pingora_core::{Error, ErrorType, OrErr};
use pingora_http::ResponseHeader;
use prometheus::IntGauge;
use tokio::time::{Instant, timeout, timeout_at};

use super::watched::Watch;
use crate::metrics::Open;
use crate::relay::answer::Refusal;
use crate::relay::client::ClientSession;
use crate::relay::plan::RequestContext;
use crate::relay::shared::Shared;
use crate::relay::upstream::RequestKind;
use crate::request::headers::GOES_ON;
use crate::request::info::{Target, Verb};
use crate::shutdown::ShutdownPhase;
use crate::watches::frames::FrameFormat;

/// Longest wait for etcd: a little longer than kubeadm's etcd takes to report its progress.
const ETCD_TIMEOUT: Duration = Duration::from_secs(6);
/// A shorter wait for etcd does not count as one.
const NO_WAIT: Duration = Duration::from_millis(50);
/// Longest wait for the rest of a frame.
const FRAME_TIMEOUT: Duration = Duration::from_secs(2);
/// The parts of the drain after which the waits for etcd and for the rest of a frame end.
const DEADLINES: [f64; 2] = [0.93, 0.97];
/// Ends of these waits for watches that began during the drain, as parts of its last seconds
/// ([`crate::shutdown::Shutdown::ending`]).
const LATE_DEADLINES: [f64; 2] = [0.5, 0.8];
/// How long events that a client has missed may take, and the time between two looks whether there is a bookmark.
const HEAD_START: Duration = Duration::from_secs(1);

/// Writes the last event of a watch. Other long-running requests have none.
pub struct FinalBookmark<'a> {
    pub shared: &'a Shared,
    /// The request began during the drain: it ends last.
    late: bool,
    /// Only this server may have the history that the watch began with: it ends as soon as its client can go on elsewhere.
    /// Who is cut off without a bookmark before that, by an idle timeout for example, would have to list.
    pressing: bool,
    _open: Option<Open<&'a IntGauge>>,
    watch: Option<Arc<Watch>>,
}

impl<'a> FinalBookmark<'a> {
    /// For a request whose answer from `server` begins. `late`: it began during the drain. `continued`: the watch that goes
    /// on with this answer.
    pub fn of(
        context: &RequestContext<'a>,
        server: SocketAddr,
        response: &ResponseHeader,
        late: bool,
        continued: Option<&Arc<Watch>>,
    ) -> Self {
        let shared = context.shared;
        let format = stream_format(response).filter(|_| context.kind == RequestKind::Long);
        let watch = match (context.info.verb, &context.info.target, format) {
            (Verb::Watch, Target::Resource(resource), Some(format)) => {
                let new = || Arc::new(Watch::new(context, resource, server, format));
                Some(continued.cloned().unwrap_or_else(new))
            }
            _ => None,
        };
        Self {
            late,
            pressing: late && watch.is_some() && is_pressing(context),
            ..Self::of_watch(shared, watch)
        }
    }

    /// For a watch that was passed on until now ([`Self::rest`]).
    pub fn of_watch(shared: &'a Shared, watch: Option<Arc<Watch>>) -> Self {
        let open = |watch: &Arc<Watch>| shared.metrics.watches.open(watch.has_bookmarks);
        Self {
            shared,
            late: false,
            pressing: false,
            _open: watch.as_ref().map(open),
            watch,
        }
    }

    /// The watch, if its rest may be passed on elsewhere: until the proxy stops.
    pub fn rest(&self) -> Option<Arc<Watch>> {
        let watch = self.watch.as_ref()?;
        (!self.shared.shutdown.is_leaving()).then(|| watch.clone())
    }

    /// The watch whose frames are passed on.
    pub fn watch(&self) -> Option<&Watch> {
        self.watch.as_deref()
    }

    /// Resolves when the drain ends the stream and etcd's answer is as complete as it will be.
    pub async fn drained(&self) {
        let shutdown = &self.shared.shutdown;
        shutdown.reaches(ShutdownPhase::Leaving).await;
        self.register();
        let phase = match self.late {
            false => ShutdownPhase::Draining,
            true => ShutdownPhase::Ending,
        };
        match self.pressing {
            false => shutdown.reaches(phase).await,
            true => tokio::select! {
                () = shutdown.reaches(phase) => {}
                () = Box::pin(self.can_be_written()) => {}
            },
        }
        let _left = Open::new(&self.shared.metrics.watches.left);
        let drain = self.shared.config.shutdown.drain;
        let (begin, time, shares) = match self.late {
            false => (shutdown.drain_begin(), drain, DEADLINES),
            true => (Instant::now(), shutdown.ending(), LATE_DEADLINES),
        };
        let [etcd_deadline, frame_deadline] = shares.map(|share| begin + time.mul_f64(share));
        self.register();
        if !self.late {
            shutdown.random_drain_delay().await;
        }
        if let Some(watch) = self.bookmarked() {
            let waits = Instant::now();
            let end = etcd_deadline.min(waits + ETCD_TIMEOUT);
            watch.wait_for_etcd(self.shared, end).await;
            if waits.elapsed() > NO_WAIT && !self.late {
                // All waiting watches get etcd's answer at the same time. They must not all end then.
                shutdown.random_drain_delay().await;
            }
        }
        self.whole_frame(Some(frame_deadline)).await;
    }

    /// Resolves when there is a bookmark. What the client has missed comes first.
    async fn can_be_written(&self) {
        loop {
            tokio::time::sleep(HEAD_START).await;
            if let Some(watch) = self.bookmarked() {
                let end = Instant::now() + ETCD_TIMEOUT;
                watch.wait_for_etcd(self.shared, end).await;
                if watch.bookmark(self.shared).is_ok() {
                    break;
                }
            }
        }
    }

    /// Waits for the end of the current frame, for a limited time and at most until `deadline`, if there is one.
    pub async fn whole_frame(&self, deadline: Option<Instant>) {
        let Some(watch) = &self.watch else { return };
        let frame_end = async {
            while !watch.is_at_boundary() {
                watch.passed.notified().await;
            }
        };
        let end = Instant::now() + FRAME_TIMEOUT;
        let end = deadline.map_or(end, |deadline| deadline.min(end));
        // The frame may stay incomplete.
        let _ = timeout_at(end, frame_end).await;
    }

    /// Its server has stopped, and no other goes on with it. A watch may end as if the apiserver had ended it, unless a frame
    /// is incomplete: writes the bookmark.
    pub async fn after_break(&self, down: &mut ClientSession) -> pingora_core::Result<()> {
        match self.watch.as_ref().is_some_and(|it| it.is_at_boundary()) {
            true => self.end(down).await,
            false => Error::e_explain(ErrorType::ConnectionClosed, "in the middle of an answer"),
        }
    }

    /// Whether a watch that its apiserver ends needs a last event. Who was handed over and has got nothing since would come back
    /// with a revision from before: no apiserver may have that history.
    pub fn is_needed(&self) -> bool {
        let is_ahead = |watch: &Watch| watch.ahead_of_client().is_some();
        let needs_it = |watch: &Watch| is_ahead(watch) || watch.is_of_lost_history(self.shared);
        self.shared.shutdown.is_leaving() || self.watch().is_some_and(needs_it)
    }

    /// The stream ends, and not because the proxy ends it: waits for etcd, and writes the bookmark.
    pub async fn end(&self, down: &mut ClientSession) -> pingora_core::Result<()> {
        if let Some(watch) = self.bookmarked().filter(|_| !self.goes_on(down)) {
            let end = Instant::now() + ETCD_TIMEOUT;
            tokio::select! {
                () = watch.wait_for_etcd(self.shared, end) => {}
                () = self.shared.shutdown.is_late() => {}
            }
        }
        self.write(down).await
    }

    /// Writes the last event, if there is one, and for a peer's proxy the mark. To be called once, at the end.
    pub async fn write(&self, down: &mut ClientSession) -> pingora_core::Result<()> {
        let event = match self.goes_on(down) {
            true => None,
            false => self.last_event()?,
        };
        if let Some((frame, refusal)) = event {
            let written = timeout(FRAME_TIMEOUT, down.write_body(frame, false)).await;
            // Part of it may be written: the stream cannot end cleanly.
            written.or_err(ErrorType::WriteTimedout, "the client takes no last event")??;
            match refusal {
                None => self.shared.metrics.watches.given.inc(),
                Some(refusal) => self.shared.metrics.refused(refusal),
            }
        }
        match self.is_rerouted() && down.is_http2() {
            true => {
                let mark = (GOES_ON, HeaderValue::from_static("true"));
                down.write_trailers([mark].into_iter().collect())
            }
            false => Ok(()),
        }
    }

    /// The bookmark; of a lost history a 410. In the middle of an event that is an error: where HTTP/2 resets a stream, a client
    /// lists anew, too.
    fn last_event(&self) -> pingora_core::Result<Option<(Bytes, Option<Refusal>)>> {
        let lost = self.watch().filter(|it| it.is_of_lost_history(self.shared));
        if let Some(watch) = lost {
            if !watch.is_at_boundary() {
                return Error::e_explain(ErrorType::ConnectionClosed, "in the middle of an event");
            }
            let refusal = Refusal::HistoryLost;
            return Ok(watch.error_event(refusal).map(|it| (it, Some(refusal))));
        }
        let Some(watch) = self.bookmarked() else {
            return Ok(None);
        };
        let bookmark = watch.bookmark(self.shared).map_err(|withheld| {
            self.shared.metrics.watches.withheld(withheld);
            tracing::debug!(why = withheld.name(), "no last bookmark");
        });
        Ok(bookmark.ok().map(|it| (it, None)))
    }

    /// Whether a peer's proxy has another server go on with it: that one knows what its client has seen. When this proxy is
    /// told to stop, so may be the others.
    fn goes_on(&self, down: &ClientSession) -> bool {
        self.is_rerouted() && down.is_http2() && !self.shared.shutdown.is_leaving()
    }

    /// Whether a peer's proxy has sent the watch here.
    fn is_rerouted(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.is_rerouted)
    }

    /// Registers what is to be read from etcd, as far as that is known by now.
    fn register(&self) {
        let watch = self.bookmarked();
        if let Some((log, _)) = watch.and_then(|watch| watch.register(self.shared)) {
            // It may have been opened for a hand-over, long ago.
            log.want_progress();
        }
    }

    /// A watch that may get a bookmark: `None` also if bookmarks were switched off since it began.
    fn bookmarked(&self) -> Option<&Watch> {
        let watch = self.watch().filter(|it| it.has_bookmarks)?;
        let wanted = self.shared.settings.load().watch.bookmark_on_shutdown;
        wanted.then_some(watch)
    }
}

/// The format of an answer that is the stream of a watch. An error is none, nor is an answer that says its length: it must
/// not end before that, and nothing can be added to it.
pub fn stream_format(response: &ResponseHeader) -> Option<FrameFormat> {
    let is_stream =
        response.status == StatusCode::OK && !response.headers.contains_key(CONTENT_LENGTH);
    FrameFormat::of_answer(&response.headers).filter(|_| is_stream)
}

/// Whether soon no server has the history that a watch begins with, and targets have the later one: it was sent here by a
/// peer, or begins before all of their histories.
fn is_pressing(context: &RequestContext<'_>) -> bool {
    let snapshot = context.shared.published.snapshot.load();
    let targets = context.info.gvr().map(|gvr| snapshot.targets_of(gvr));
    let starts = targets.into_iter().flatten();
    let starts = starts.filter_map(|index| snapshot.servers[*index].history_start);
    let oldest = starts.min();
    oldest.is_some_and(|oldest| context.rerouted || context.resume.is_some_and(|it| it < oldest))
}
