//! A watch whose server stops goes on at another server, below the header that its client has (KEP-1904). Called by
//! [`crate::relay::service`] with what is left of the watch.
//!
//! The position is what the client has seen of whole frames. A server is asked that has the history from there; if none has
//! it, etcd may show that nothing changed since, and then one is asked that has the history from a later revision. Until then
//! the client's stream is held, quiet. A stream that nobody can certainly go on with ends as if its apiserver had ended it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use prometheus::IntGauge;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::ForwardedRequest;
use crate::metrics::Open;
use crate::net::boxed;
use crate::relay::client::ClientSession;
use crate::relay::exchange::{self, Delivered, Expiry, Leaving, ResumedWatch, Upload, WatchRest};
use crate::relay::outcome::{ExchangeFailure, Outcome};
use crate::relay::plan::{self, RequestContext, Route};
use crate::relay::watch::{Again, AskedServers, ServedBy, Watch};
use crate::retry::jittered;
use crate::routing::hand_over::StoppedWatch;
use crate::routing::table::ServerKind;
use crate::shutdown::ShutdownPhase;
use crate::watches::follower::ResumePoint;
use crate::watches::metrics::{HandOverResult, LeaveReason};

/// Between two looks at who could go on, if nothing tells of a change.
const LOOK: Duration = Duration::from_millis(500);
/// Longest wait for the proof that a server keeps the resource in this etcd.
const PROOF_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait for a permit at a server that can go on with it, in which its stream does not end for want of one.
const PACED_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for a watch that is still served, and is not read meanwhile.
const SERVED_TIMEOUT: Duration = Duration::from_secs(1);
/// A server that has served a watch for a shorter time did not go on with it.
const SETTLED: Duration = Duration::from_secs(10);

/// A watch that is to go on, and who was asked.
struct HandOver<'a> {
    context: &'a RequestContext<'a>,
    watch: Arc<Watch>,
    /// Who served it.
    from: ServedBy,
    /// Its server is shutting down, and still serves it.
    is_served: bool,
    /// Counts it while nobody does.
    held: Option<Open<&'a IntGauge>>,
    begun: Instant,
    deadline: Instant,
    asked: AskedServers,
    /// When a server began to go on with it.
    continued: Option<Instant>,
}

/// What is to be done next.
enum Step {
    Ask(Box<(Route, ResumePoint)>),
    /// Nobody can go on with it now.
    Wait,
    /// Nobody will.
    End,
}

/// Lets another server go on with `rest`. It is given back if it stays where it is.
pub async fn hand_over(
    context: &RequestContext<'_>,
    session: &mut ClientSession,
    mut rest: Box<WatchRest>,
    reason: LeaveReason,
) -> Delivered {
    let (shared, begun) = (context.shared, Instant::now());
    let is_served = reason == LeaveReason::ShutsDown;
    if !is_served {
        rest.watch.asked(shared, begun + PROOF_TIMEOUT).await;
    }
    let mut handed_over = match HandOver::new(context, &mut rest, is_served, begun) {
        Some(handed_over) => handed_over,
        None if is_served => return rest.stays(),
        None => return rest.end(shared, session).await.into(),
    };
    let delivered = loop {
        match handed_over.step() {
            Step::Ask(next) => {
                if let Some(delivered) = handed_over.ask(session, *next).await {
                    break Some(delivered);
                }
            }
            Step::Wait if handed_over.is_to_be_held() => {
                rest.leave();
                handed_over.hold();
            }
            _ if handed_over.is_served => {
                rest.asked = handed_over.asked;
                return rest.stays();
            }
            Step::Wait => {
                if !handed_over.wait(session).await {
                    break Some(Outcome::Broken.into());
                }
            }
            Step::End => break None,
        }
    };
    let (result, delivered) = match delivered {
        Some(Delivered::Continues(mut next)) => {
            next.asked = handed_over.asked;
            (HandOverResult::Continued, Delivered::Continues(next))
        }
        Some(Delivered::Ended(Outcome::Broken)) => {
            (HandOverResult::ClientGone, Outcome::Broken.into())
        }
        Some(ended) => (HandOverResult::Continued, ended),
        None => {
            let ended = rest.end(shared, session).await;
            (HandOverResult::Ended, ended.into())
        }
    };
    let metrics = &shared.metrics.watches;
    let continued = handed_over.continued.unwrap_or_else(Instant::now);
    metrics.handed_over(reason, result, continued - handed_over.begun);
    delivered
}

impl<'a> HandOver<'a> {
    /// `None`: it is not to be handed over.
    fn new(
        context: &'a RequestContext<'a>,
        rest: &mut WatchRest,
        is_served: bool,
        begun: Instant,
    ) -> Option<Self> {
        let settings = &context.settings.watch;
        let watch = &rest.watch;
        // Its certificate may have expired, or no longer count.
        let is_same_caller = context.caller == rest.dependencies.caller;
        let is_wanted = settings.hand_over && is_same_caller && watch.request.is_some();
        let from = is_wanted.then(|| watch.served_by())?;
        // It is not known who understands the request as that one did.
        from.version?;
        watch.resume_point(context.shared)?;
        let mut asked = std::mem::take(&mut rest.asked);
        if !is_served {
            match begun < rest.begun + SETTLED {
                true => asked.failed(from.server, Again::AFewTimes, begun),
                false => asked = AskedServers::default(),
            }
        }
        let held = &context.shared.metrics.watches.held;
        Some(Self {
            context,
            watch: rest.watch.clone(),
            from,
            is_served,
            held: (!is_served).then(|| Open::new(held)),
            begun,
            deadline: begun + settings.hand_over_timeout,
            asked,
            continued: None,
        })
    }

    /// Whether its server need not serve it until somebody can go on with it. Not if one is asked again soon.
    fn is_to_be_held(&self) -> bool {
        let is_pending = self.asked.is_pending(Instant::now());
        self.is_served && !is_pending && self.watch.may_be_held(self.context.shared)
    }

    /// Nobody serves it from now on.
    fn hold(&mut self) {
        let shared = self.context.shared;
        self.held = Some(Open::new(&shared.metrics.watches.held));
        self.is_served = false;
        self.asked = AskedServers::default();
        self.begun = Instant::now();
        self.deadline = self.begun + self.context.settings.watch.hand_over_timeout;
    }

    /// Who is asked next.
    fn step(&mut self) -> Step {
        let shared = self.context.shared;
        if shared.shutdown.is_leaving() || Instant::now() >= self.deadline {
            return Step::End;
        }
        // etcd may have been restored meanwhile.
        let Some(position) = self.watch.resume_point(shared) else {
            return Step::End;
        };
        // More servers have the history from there.
        let proved = self.watch.proved_resume_point(shared);
        let mut histories = Some(0);
        for at in proved.into_iter().chain([position]) {
            match self.route(at) {
                Ok(route) => return Step::Ask(Box::new((route, at))),
                Err(start) => histories = histories.zip(start).map(|(one, other)| one.max(other)),
            }
        }
        let log = self.watch.register(shared);
        if proved.is_none()
            && let Some(at) = self.watch.proved_resume_point(shared)
            && let Ok(route) = self.route(at)
        {
            return Step::Ask(Box::new((route, at)));
        }
        // A watch cache that has answered 410 may begin later, at its first use: at a revision that etcd had by then.
        let later = self.asked.expired().saturating_add(1);
        let is_told = |start: i64| log.is_none_or(|(log, _)| log.is_complete_through(start));
        let is_told = histories.is_some_and(|start| is_told(start.max(later)));
        let is_pending = self.asked.is_pending(Instant::now());
        // No history reaches back far enough, and etcd shows that something has changed: also with what it has told meanwhile.
        match is_told && !is_pending && self.watch.proved_resume_point(shared) == proved {
            true => Step::End,
            false => Step::Wait,
        }
    }

    fn route(&self, at: ResumePoint) -> Result<Route, Option<i64>> {
        let avoided = self.asked.avoided(at.revision, Instant::now());
        let request = self.watch.request.as_ref().ok_or(None)?;
        let stopped = StoppedWatch {
            resource: self.watch.resource.borrow(),
            since: at.revision,
            version: self.from.version,
            has_rare_parameters: request.has_rare_parameters,
        };
        plan::hand_over(self.context, &stopped, self.from.server, &avoided)
    }

    /// Waits until somebody may be able to go on; `false`: the client went away.
    async fn wait(&self, session: &mut ClientSession) -> bool {
        let shared = self.context.shared;
        let mut changes = shared.local.changes();
        let log = self.watch.register(shared);
        let progress = async {
            sleep(LOOK / 2).await;
            match &log {
                Some((log, _)) => log.progress().await,
                None => std::future::pending().await,
            }
        };
        let look = Instant::now() + jittered(LOOK);
        tokio::select! {
            _ = session.read_body_or_idle(true) => return false,
            () = shared.shutdown.reaches(ShutdownPhase::Leaving) => {}
            _ = changes.changed() => {}
            () = progress => {}
            () = sleep_until(look.min(self.deadline)) => {}
        }
        true
    }

    /// Asks a server for the rest. `None`: it does not go on.
    async fn ask(
        &mut self,
        session: &mut ClientSession,
        (route, at): (Route, ResumePoint),
    ) -> Option<Delivered> {
        let shared = self.context.shared;
        let prepared = tokio::select! {
            _ = session.read_body_or_idle(true) => return Some(Outcome::Broken.into()),
            () = shared.shutdown.reaches(ShutdownPhase::Leaving) => return None,
            prepared = self.prepared(route.address) => prepared,
        };
        let Some((server, permit)) = prepared else {
            self.asked
                .failed(route.address, Again::Later, Instant::now());
            return None;
        };
        let request = self.watch.request.as_ref()?;
        let Some(header) = request.after(at.revision, Instant::now().into_std()) else {
            // The time that the client wanted is over.
            self.deadline = Instant::now();
            return None;
        };
        // etcd may have been restored while that was found out.
        self.watch.resume_point(shared)?;
        let before = self.watch.resumes(at);
        let resumed = ResumedWatch::handed_over(&self.watch, permit);
        // Boxed, because thousands wait in what comes before and after it.
        let delivered = boxed(|| self.exchange(session, header, &route, &resumed)).await;
        let delivered = match delivered {
            Ok(Delivered::Continues(mut next)) => match next.begins(shared, session).await {
                Ok(true) => Ok(Delivered::Continues(next)),
                Ok(false) => Ok(Outcome::Broken.into()),
                Err(failure) => Err(failure),
            },
            ended => ended,
        };
        match delivered {
            Ok(delivered) => {
                self.continued = resumed.accepted();
                self.watch.is_served_by(server);
                Some(delivered)
            }
            Err(failure) => {
                self.watch.stays(before);
                if failure.is_refused() && route.server_kind == ServerKind::Local {
                    shared.local.refused();
                }
                let (server, failed) = (route.address, failure.name());
                tracing::debug!(%server, failed, "a watch does not go on there");
                let again = match failure {
                    ExchangeFailure::Expired(_) => Again::After(at.revision),
                    ExchangeFailure::NotContinued => Again::AFewTimes,
                    _ => Again::Later,
                };
                self.asked.failed(route.address, again, Instant::now());
                None
            }
        }
    }

    /// Waits for the proof that a server keeps the resource in this etcd, and for a permit to ask it.
    async fn prepared(&mut self, server: SocketAddr) -> Option<(ServedBy, OwnedSemaphorePermit)> {
        let (shared, now) = (self.context.shared, Instant::now());
        let (proof, permit) = match self.is_served {
            true => (now + SERVED_TIMEOUT, now + SERVED_TIMEOUT),
            false => (self.deadline.min(now + PROOF_TIMEOUT), now + PACED_TIMEOUT),
        };
        let stored = boxed(|| self.watch.is_stored_by(shared, server, proof));
        let served_by = stored.await?;
        let waiting = Instant::now();
        let asking = shared.limits.hand_overs.of(server).acquire_owned();
        let permit = timeout_at(permit, asking).await.ok()?.ok()?;
        // `watch.handOverTimeout` is for the time in which nobody can serve it.
        self.deadline += waiting.elapsed();
        Some((served_by, permit))
    }

    async fn exchange(
        &self,
        session: &mut ClientSession,
        header: Parts,
        route: &Route,
        resumed: &ResumedWatch,
    ) -> Result<Delivered, ExchangeFailure> {
        let mut upload = Upload::new(Box::new(header), false, false);
        let request = ForwardedRequest::new(self.context, &mut upload, false);
        let request = request.map_err(|_| ExchangeFailure::NotContinued)?;
        let exchange = request.exchange(route, &mut upload, request.is_unauthenticated);
        let (mut exchange, header) = exchange.map_err(|_| ExchangeFailure::NotContinued)?;
        exchange.expiry = Some(Expiry::Asked(resumed));
        exchange.leaving = Some(Leaving {
            reads: true,
            has_answer: true,
            tried: &[],
        });
        exchange::run(&exchange, session, header, &mut upload, None).await
    }
}
