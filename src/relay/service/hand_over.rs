//! A watch whose server stops goes on at another server, below the header that its client has (KEP-1904).
//!
//! The position is what the client has seen of whole frames. A server is asked that has the history from there; if none has
//! it, etcd may show that nothing changed since, and then one is asked that has the history from a later revision. Until then
//! the client's stream is held, quiet. A stream that nobody can certainly go on with ends as if its apiserver had ended it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use prometheus::IntGauge;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::RelayService;
use crate::kube::version::KubernetesVersion;
use crate::metrics::Open;
use crate::net::boxed;
use crate::relay::client::{ClientSession, Downstream};
use crate::relay::exchange::{
    self, ANSWER_TIMEOUT, Delivered, Leaving, ResumedWatch, Upload, WatchRest,
};
use crate::relay::forward::{ForwardedRequest, report};
use crate::relay::outcome::ExchangeFailure::{self, BrokeOff, Unsent};
use crate::relay::outcome::Outcome;
use crate::relay::plan;
use crate::relay::shared::Shared;
use crate::relay::watch::{Again, AskedServers, ServedBy};
use crate::retry::jittered;
use crate::routing::hand_over::StoppedWatch;
use crate::shutdown::ShutdownPhase;
use crate::watches::follower::{Follower, ResumePoint};
use crate::watches::metrics::{HandOverResult, LeaveReason};

/// Between two looks at who could go on, if nothing tells of a change.
const LOOK: Duration = Duration::from_millis(500);
/// Longest wait for the proof that a server keeps the resource in this etcd.
const PROOF_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait for permits at servers that can go on with it, in which its stream does not end for want of one.
const PACED_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for the proof, and then for a permit, while a watch is still served, and is not read meanwhile.
const SERVED_TIMEOUT: Duration = Duration::from_millis(500);
/// A server that has served a watch for a shorter time did not go on with it.
const SETTLED: Duration = Duration::from_secs(10);

/// A watch that is to go on, and who was asked.
struct HandOver<'a> {
    shared: &'a Shared,
    service: &'a RelayService,
    downstream: &'a Arc<Downstream>,
    rest: Box<WatchRest>,
    /// Who served it, and the version of that.
    from: (SocketAddr, KubernetesVersion),
    /// Counts it while nobody serves it; `None`: its server is shutting down, and still does.
    held: Option<Open<&'a IntGauge>>,
    begun: Instant,
    /// The wait for permits does not count.
    deadline: Instant,
    /// When a server began to go on with it.
    continued: Option<Instant>,
    /// Who is asked now.
    asked: Option<Asked>,
}

/// A server that is asked to go on.
struct Asked {
    /// From where.
    at: ResumePoint,
    served_by: ServedBy,
    /// The position before, once it is asked.
    before: Option<Follower>,
}

/// What is to be done next.
enum Step {
    Ask(SocketAddr, ResumePoint),
    /// Nobody can go on with it now.
    Wait,
    /// Nobody will.
    End,
}

impl RelayService {
    /// Lets another server go on with a watch whose own stops. It is given back if it stays where it is.
    pub(super) async fn hand_over(
        &self,
        session: &mut ClientSession,
        rest: Box<WatchRest>,
        downstream: &Arc<Downstream>,
        reason: LeaveReason,
    ) -> Delivered {
        let shared = &*self.shared;
        if rest.watch.request.is_none() {
            return boxed(|| rest.end(shared, session)).await.into();
        }
        let begun = Instant::now();
        let is_served = reason == LeaveReason::ShutsDown;
        // Each wait has a box of its own, those of thousands at most 384 bytes, and this has one of at most 768, as `WatchRest::run`
        // had: the allocator uses one's memory for the next. 33,000 watches take 1.2 times the memory of before, instead of 1.4.
        if !is_over(&rest) && !is_served {
            boxed(|| asked(shared, &rest, begun + PROOF_TIMEOUT)).await;
        }
        let Some(from) = who_served(shared, &rest) else {
            return match is_served && !rest.watch.is_lost_at_closed_port(shared) {
                true => rest.stays(),
                false => boxed(|| rest.end(shared, session)).await.into(),
            };
        };
        let mut handed_over = HandOver::new((self, downstream), rest, from, (is_served, begun));
        let delivered = loop {
            match handed_over.step() {
                Step::Ask(server, at) => {
                    let proved = boxed(|| handed_over.prove(session, server, at)).await;
                    if let Some(delivered) = handed_over.ask(session, proved).await {
                        break Some(delivered);
                    }
                }
                Step::Wait if handed_over.is_to_be_held() => {
                    handed_over.rest.asked = AskedServers::default();
                    handed_over.hold(Instant::now());
                }
                _ if handed_over.is_served() => return handed_over.rest.stays(),
                Step::Wait => {
                    if !boxed(|| handed_over.wait(session)).await {
                        break Some(Outcome::Broken.into());
                    }
                }
                Step::End => break None,
            }
        };
        let result = match &delivered {
            Some(Delivered::Ended(Outcome::Broken)) => HandOverResult::ClientGone,
            Some(_) => HandOverResult::Continued,
            None => HandOverResult::Ended,
        };
        let gap = handed_over.continued.unwrap_or_else(Instant::now) - handed_over.begun;
        shared.metrics.watches.handed_over(reason, result, gap);
        match delivered {
            Some(delivered) => delivered,
            None => boxed(|| handed_over.rest.end(shared, session)).await.into(),
        }
    }
}

/// Whether the time is over for which the client wanted to wait.
fn is_over(rest: &WatchRest) -> bool {
    let now = std::time::Instant::now();
    let request = rest.watch.request.as_ref();
    request.is_none_or(|it| it.is_over(now))
}

/// Waits until it is known whether the server keeps the resource in this etcd, or until the proxy stops.
async fn asked(shared: &Shared, rest: &WatchRest, end: Instant) {
    tokio::select! {
        () = rest.watch.asked(shared, end) => {}
        () = shared.shutdown.reaches(ShutdownPhase::Leaving) => {}
    }
}

/// The server, and its version, of a watch that may go on at another one.
fn who_served(shared: &Shared, rest: &WatchRest) -> Option<(SocketAddr, KubernetesVersion)> {
    let is_wanted = shared.settings.load().watch.hand_over && !is_over(rest);
    let served_by = is_wanted.then(|| rest.watch.served_by())?;
    rest.watch.resume_point(shared)?;
    // Without one it is not known who understands the request as that one did.
    Some((served_by.server, served_by.version?))
}

impl<'a> HandOver<'a> {
    fn new(
        (service, downstream): (&'a RelayService, &'a Arc<Downstream>),
        rest: Box<WatchRest>,
        from: (SocketAddr, KubernetesVersion),
        (is_served, begun): (bool, Instant),
    ) -> Self {
        let shared = &*service.shared;
        let mut new = Self {
            shared,
            service,
            downstream,
            rest,
            from,
            held: None,
            begun,
            deadline: begun + shared.settings.load().watch.hand_over_timeout,
            continued: None,
            asked: None,
        };
        if !is_served {
            match begun < new.rest.begun + SETTLED {
                true => new.rest.asked.failed(from.0, Again::AFewTimes, begun),
                false => new.rest.asked = AskedServers::default(),
            }
            new.hold(begun);
        }
        new
    }

    fn is_served(&self) -> bool {
        self.held.is_none()
    }

    /// Whether its server need not serve it until somebody can go on with it. Not if one is asked again soon.
    fn is_to_be_held(&self) -> bool {
        let is_pending = self.rest.asked.is_pending(Instant::now());
        self.is_served() && !is_pending && self.rest.watch.may_be_held(self.shared)
    }

    /// Nobody serves it from now on.
    fn hold(&mut self, now: Instant) {
        self.rest.leave();
        self.rest.watch.is_left();
        self.held = Some(Open::new(&self.shared.metrics.watches.held));
        self.begun = now;
        self.deadline = now + self.shared.settings.load().watch.hand_over_timeout;
    }

    /// Who is asked next.
    fn step(&mut self) -> Step {
        let (shared, rest) = (self.shared, &self.rest);
        let is_late = Instant::now() >= self.deadline;
        if is_late || shared.shutdown.is_leaving() || is_over(rest) {
            return Step::End;
        }
        if !rest.dependencies.is_let_in(shared, &self.downstream.client) {
            // The files that say so may be half written.
            return Step::Wait;
        }
        // etcd may have been restored meanwhile.
        let Some(position) = self.rest.watch.resume_point(shared) else {
            return Step::End;
        };
        // More servers have the history from there.
        let proved = self.rest.watch.proved_resume_point(shared);
        let mut histories = Some(0);
        for at in proved.into_iter().chain([position]) {
            match self.next(at, None) {
                Ok(server) => return Step::Ask(server, at),
                Err(start) => histories = histories.zip(start).map(|(one, other)| one.max(other)),
            }
        }
        let log = self.rest.watch.register(shared);
        if proved.is_none()
            && let Some(at) = self.rest.watch.proved_resume_point(shared)
            && let Ok(server) = self.next(at, None)
        {
            return Step::Ask(server, at);
        }
        // A watch cache that has answered 410 may begin later, at its first use: at a revision that etcd had by then.
        let later = self.rest.asked.expired().saturating_add(1);
        let is_told = |start: i64| log.is_none_or(|(log, _)| log.is_complete_through(start));
        let is_told = histories.is_some_and(|start| is_told(start.max(later)));
        let is_pending = self.rest.asked.is_pending(Instant::now());
        // No history reaches back far enough, and etcd shows that something has changed: also with what it has told meanwhile.
        match is_told && !is_pending && self.rest.watch.proved_resume_point(shared) == proved {
            true => Step::End,
            false => Step::Wait,
        }
    }

    fn next(&self, at: ResumePoint, kept: Option<SocketAddr>) -> Result<SocketAddr, Option<i64>> {
        let now = Instant::now();
        let request = self.rest.watch.request.as_ref().ok_or(None)?;
        let stopped = StoppedWatch {
            resource: self.rest.watch.resource.borrow(),
            since: at.revision,
            version: Some(self.from.1),
            has_rare_parameters: request.has_rare_parameters,
        };
        // The watches of a connection prefer the same peer.
        let watch = (&stopped, self.from.0, self.downstream.client.seed);
        let but = |tried: &[SocketAddr]| plan::successor(self.shared, watch, kept, tried);
        let avoided = self.rest.asked.avoided(at.revision, now);
        match &*self.shared.limits.hand_overs.slow(now) {
            [] => but(&avoided),
            slow => but(&[&*avoided, slow].concat()).or_else(|_| but(&avoided)),
        }
    }

    /// Waits until somebody may be able to go on; `false`: the client went away.
    async fn wait(&self, session: &mut ClientSession) -> bool {
        // The state of the local apiserver, certificates, the stop of the proxy.
        let mut changes = self.shared.callers.revalidations.subscribe();
        if let Some((log, _)) = self.rest.watch.register(self.shared) {
            log.want_progress();
        }
        let look = Instant::now() + jittered(LOOK);
        tokio::select! {
            _ = session.read_body_or_idle(true) => false,
            _ = changes.changed() => true,
            () = sleep_until(look.min(self.deadline)) => true,
        }
    }

    /// Asks the server that was proved to keep the resource, if one was. `None`: it does not go on.
    async fn ask(
        &mut self,
        session: &mut ClientSession,
        proved: Result<(), Outcome>,
    ) -> Option<Delivered> {
        if let Err(gone) = proved {
            return Some(gone.into());
        }
        let server = self.asked.as_ref()?.served_by.server;
        let permit = match boxed(|| self.permit(session, server)).await {
            Ok(permit) => permit.filter(|_| self.still_suits())?,
            Err(gone) => return Some(gone.into()),
        };
        let asked = self.asked.as_mut()?;
        asked.before = Some(self.rest.watch.resumes(asked.at));
        let from = (asked.served_by.server, asked.at.revision);
        let delivered = match boxed(|| self.exchange(session, permit, from)).await {
            Ok(Delivered::Continues(next)) => boxed(|| next.begun(self.shared, session)).await,
            ended => ended,
        };
        self.judged(delivered)
    }

    /// Waits for the proof that a server keeps the resource in this etcd.
    async fn prove(
        &mut self,
        session: &mut ClientSession,
        server: SocketAddr,
        at: ResumePoint,
    ) -> Result<(), Outcome> {
        let (shared, now) = (self.shared, Instant::now());
        let deadline = match self.is_served() {
            true => now + SERVED_TIMEOUT,
            false => self.deadline.min(now + PROOF_TIMEOUT),
        };
        self.asked = None;
        let served_by = tokio::select! {
            _ = session.read_body_or_idle(true) => return Err(Outcome::Broken),
            () = shared.shutdown.reaches(ShutdownPhase::Leaving) => return Ok(()),
            served_by = self.rest.watch.is_stored_by(shared, server, deadline) => served_by,
        };
        if served_by.is_none() {
            self.rest.asked.failed(server, Again::Later, Instant::now());
        }
        self.asked = served_by.map(|served_by| Asked {
            at,
            served_by,
            before: None,
        });
        Ok(())
    }

    /// Waits for a permit to ask the server. Who has one gives it back soon, also if the server does not answer.
    async fn permit(
        &mut self,
        session: &mut ClientSession,
        server: SocketAddr,
    ) -> Result<Option<OwnedSemaphorePermit>, Outcome> {
        let waiting = Instant::now();
        let permits = self.shared.limits.hand_overs.of(server);
        let timeout = self.shared.settings.load().watch.hand_over_timeout;
        let latest = self.begun + timeout + PACED_TIMEOUT;
        let limit = match self.is_served() {
            true => waiting + SERVED_TIMEOUT,
            false => latest,
        };
        let permit = tokio::select! {
            _ = session.read_body_or_idle(true) => return Err(Outcome::Broken),
            permit = timeout_at(limit, permits.acquire_owned()) => permit,
        };
        // `watch.handOverTimeout` is for the time in which nobody can serve it.
        self.deadline = latest.min(self.deadline + waiting.elapsed());
        if permit.is_err() {
            self.rest.asked.failed(server, Again::Later, Instant::now());
        }
        // They are closed when the proxy is told to stop.
        Ok(permit.ok().and_then(Result::ok))
    }

    /// Whether the server still suits after the wait for a permit: it may have stopped or frozen, etcd may have been restored, the
    /// client's certificate no longer count. That another one would be preferred now is no reason to queue once more.
    fn still_suits(&self) -> bool {
        let (shared, client) = (self.shared, &self.downstream.client);
        let is_chosen = |asked: &Asked| {
            let (server, process) = (asked.served_by.server, asked.served_by.process);
            self.next(asked.at, Some(server)) == Ok(server)
                && ServedBy::new(shared, server, None).process == process
        };
        !shared.shutdown.is_leaving()
            && self.rest.dependencies.is_let_in(shared, client)
            && self.rest.watch.resume_point(shared).is_some()
            && self.asked.as_ref().is_some_and(is_chosen)
    }

    /// What a server's answer means. `None`: it does not go on.
    fn judged(&mut self, delivered: Result<Delivered, ExchangeFailure>) -> Option<Delivered> {
        let asked = self.asked.take()?;
        let failure = match delivered {
            Ok(mut delivered) => {
                self.rest.watch.is_served_by(asked.served_by);
                if let Delivered::Continues(next) = &mut delivered {
                    next.asked = std::mem::take(&mut self.rest.asked);
                }
                return Some(delivered);
            }
            Err(failure) => failure,
        };
        self.continued = None;
        if let Some(before) = asked.before {
            self.rest.watch.stays(before);
        }
        let (server, failed) = (asked.served_by.server, failure.name());
        tracing::debug!(%server, failed, "a watch does not go on there");
        let again = match failure {
            ExchangeFailure::Expired(_) => Again::After(asked.at.revision),
            ExchangeFailure::NotContinued => Again::AFewTimes,
            _ => Again::Later,
        };
        self.rest.asked.failed(server, again, Instant::now());
        None
    }

    async fn exchange(
        &mut self,
        session: &mut ClientSession,
        permit: OwnedSemaphorePermit,
        (server, revision): (SocketAddr, i64),
    ) -> Result<Delivered, ExchangeFailure> {
        let now = Instant::now();
        let resumed = ResumedWatch::handed_over(&self.rest.watch, permit);
        let request = self.rest.watch.request.as_ref();
        let header = request.and_then(|it| it.after(revision, now.into_std()));
        let Some(mut header) = header else {
            // The time that the client wanted is over.
            self.deadline = now;
            return Err(ExchangeFailure::NotContinued);
        };
        let target = header.uri.path_and_query().map(PathAndQuery::as_str);
        let target: Box<str> = target.unwrap_or_default().into();
        let (service, downstream) = (self.service, self.downstream.clone());
        let context = service.context(session, &mut header, &target, downstream, now.into_std());
        if context.caller != self.rest.dependencies.caller {
            // Its certificate has just expired, or counts since a moment ago.
            self.deadline = now;
            return Err(ExchangeFailure::NotContinued);
        }
        let route = plan::to_successor(&context, self.rest.watch.resource.borrow(), server);
        // It is no target any more.
        let of_resource = false;
        let route = route.ok_or(ExchangeFailure::NotExecuted { of_resource })?;
        let mut upload = Upload::new(Box::new(header), false, false);
        let request = ForwardedRequest::new(&context, &mut upload, false);
        let request = request.map_err(|_| ExchangeFailure::NotContinued)?;
        let exchange = request.exchange(&route, &mut upload, request.is_unauthenticated);
        let (mut exchange, header) = exchange.map_err(|_| ExchangeFailure::NotContinued)?;
        exchange.avoids_410 = true;
        exchange.resumed = Some(&resumed);
        exchange.leaving = Some(Leaving {
            reads: true,
            has_answer: true,
            tried: &[],
        });
        let delivered = exchange::run(&exchange, session, header, &mut upload, None).await;
        if let Err(failure @ (Unsent(_) | BrokeOff { reused: false, .. })) = &delivered {
            report(&context, &route, failure);
        }
        if delivered.is_err() && now.elapsed() >= ANSWER_TIMEOUT {
            // Before the next one gets the permit.
            self.shared.limits.hand_overs.is_slow(server);
        }
        self.continued = resumed.accepted();
        delivered
    }
}
