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
use http::uri::PathAndQuery;
use prometheus::IntGauge;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::ForwardedRequest;
use crate::metrics::Open;
use crate::net::boxed;
use crate::relay::client::ClientSession;
use crate::relay::exchange::{self, Delivered, Leaving, ResumedWatch, Upload, WatchRest};
use crate::relay::outcome::{ExchangeFailure, Outcome};
use crate::relay::plan::{self, RequestContext};
use crate::relay::shared::Shared;
use crate::relay::watch::{Again, AskedServers, ServedBy, Watch};
use crate::request::caller::Caller;
use crate::retry::jittered;
use crate::routing::hand_over::StoppedWatch;
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

/// Makes the context of a request for the rest of a watch. Nothing of it is kept while the watch waits.
pub trait MakeContext: Sync {
    fn context<'c>(
        &'c self,
        session: &ClientSession,
        header: &mut Parts,
        target: &'c str,
    ) -> RequestContext<'c>;
}

/// A watch that is to go on, and who was asked.
struct HandOver<'a, M> {
    shared: &'a Shared,
    make: &'a M,
    /// Identifies the client's connection.
    seed: u64,
    watch: Arc<Watch>,
    caller: Caller,
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
    Ask(SocketAddr, ResumePoint),
    /// Nobody can go on with it now.
    Wait,
    /// Nobody will.
    End,
}

/// Lets another server go on with `rest`. It is given back if it stays where it is.
pub async fn hand_over(
    (shared, make, seed): (&Shared, &impl MakeContext, u64),
    session: &mut ClientSession,
    mut rest: Box<WatchRest>,
    reason: LeaveReason,
) -> Delivered {
    let begun = Instant::now();
    let is_served = reason == LeaveReason::ShutsDown;
    if !is_served {
        rest.watch.asked(shared, begun + PROOF_TIMEOUT).await;
    }
    let mut handed_over = match HandOver::new((shared, make, seed), &mut rest, is_served, begun) {
        Some(handed_over) => handed_over,
        None if is_served => return rest.stays(),
        None => return rest.end(shared, session).await.into(),
    };
    let delivered = loop {
        match handed_over.step() {
            Step::Ask(server, at) => {
                if let Some(delivered) = handed_over.ask(session, server, at).await {
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

impl<'a, M: MakeContext> HandOver<'a, M> {
    /// `None`: it is not to be handed over.
    fn new(
        (shared, make, seed): (&'a Shared, &'a M, u64),
        rest: &mut WatchRest,
        is_served: bool,
        begun: Instant,
    ) -> Option<Self> {
        let settings = shared.settings.load();
        let (settings, watch) = (&settings.watch, &rest.watch);
        let is_wanted = settings.hand_over && watch.request.is_some();
        let from = is_wanted.then(|| watch.served_by())?;
        // It is not known who understands the request as that one did.
        from.version?;
        watch.resume_point(shared)?;
        let mut asked = std::mem::take(&mut rest.asked);
        if !is_served {
            match begun < rest.begun + SETTLED {
                true => asked.failed(from.server, Again::AFewTimes, begun),
                false => asked = AskedServers::default(),
            }
        }
        let held = &shared.metrics.watches.held;
        Some(Self {
            shared,
            make,
            seed,
            watch: rest.watch.clone(),
            caller: rest.dependencies.caller.clone(),
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
        self.is_served && !is_pending && self.watch.may_be_held(self.shared)
    }

    /// Nobody serves it from now on.
    fn hold(&mut self) {
        self.held = Some(Open::new(&self.shared.metrics.watches.held));
        self.is_served = false;
        self.asked = AskedServers::default();
        self.begun = Instant::now();
        self.deadline = self.begun + self.shared.settings.load().watch.hand_over_timeout;
    }

    /// Who is asked next.
    fn step(&mut self) -> Step {
        let shared = self.shared;
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
            match self.next(at) {
                Ok(server) => return Step::Ask(server, at),
                Err(start) => histories = histories.zip(start).map(|(one, other)| one.max(other)),
            }
        }
        let log = self.watch.register(shared);
        if proved.is_none()
            && let Some(at) = self.watch.proved_resume_point(shared)
            && let Ok(server) = self.next(at)
        {
            return Step::Ask(server, at);
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

    fn next(&self, at: ResumePoint) -> Result<SocketAddr, Option<i64>> {
        let avoided = self.asked.avoided(at.revision, Instant::now());
        let request = self.watch.request.as_ref().ok_or(None)?;
        let stopped = StoppedWatch {
            resource: self.watch.resource.borrow(),
            since: at.revision,
            version: self.from.version,
            has_rare_parameters: request.has_rare_parameters,
        };
        plan::hand_over(
            self.shared,
            (&stopped, self.from.server, self.seed),
            &avoided,
        )
    }

    /// Waits until somebody may be able to go on; `false`: the client went away.
    async fn wait(&self, session: &mut ClientSession) -> bool {
        // Also when the proxy stops.
        let mut changes = self.shared.callers.revalidations.subscribe();
        if let Some((log, _)) = self.watch.register(self.shared) {
            log.want_progress();
        }
        let look = Instant::now() + jittered(LOOK);
        tokio::select! {
            _ = session.read_body_or_idle(true) => false,
            _ = changes.changed() => true,
            () = sleep_until(look.min(self.deadline)) => true,
        }
    }

    /// Asks a server for the rest. `None`: it does not go on.
    async fn ask(
        &mut self,
        session: &mut ClientSession,
        server: SocketAddr,
        at: ResumePoint,
    ) -> Option<Delivered> {
        let shared = self.shared;
        let prepared = tokio::select! {
            _ = session.read_body_or_idle(true) => return Some(Outcome::Broken.into()),
            () = shared.shutdown.reaches(ShutdownPhase::Leaving) => return None,
            prepared = self.prepared(server) => prepared,
        };
        let Some((served_by, permit)) = prepared else {
            self.asked.failed(server, Again::Later, Instant::now());
            return None;
        };
        // etcd may have been restored while that was found out.
        self.watch.resume_point(shared)?;
        let before = self.watch.resumes(at);
        let resumed = ResumedWatch::handed_over(&self.watch, permit);
        // Boxed, because thousands wait in what comes before and after it.
        let delivered = boxed(|| self.exchange(session, (server, at), &resumed)).await;
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
                self.watch.is_served_by(served_by);
                Some(delivered)
            }
            Err(failure) => {
                self.watch.stays(before);
                if failure.is_refused() && server == shared.config.api_server.address {
                    shared.local.refused();
                }
                let failed = failure.name();
                tracing::debug!(%server, failed, "a watch does not go on there");
                let again = match failure {
                    ExchangeFailure::Expired(_) => Again::After(at.revision),
                    ExchangeFailure::NotContinued => Again::AFewTimes,
                    _ => Again::Later,
                };
                self.asked.failed(server, again, Instant::now());
                None
            }
        }
    }

    /// Waits for the proof that a server keeps the resource in this etcd, and for a permit to ask it.
    async fn prepared(&mut self, server: SocketAddr) -> Option<(ServedBy, OwnedSemaphorePermit)> {
        let (shared, now) = (self.shared, Instant::now());
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
        &mut self,
        session: &mut ClientSession,
        (server, at): (SocketAddr, ResumePoint),
        resumed: &ResumedWatch,
    ) -> Result<Delivered, ExchangeFailure> {
        let now = Instant::now();
        let request = self.watch.request.as_ref();
        let header = request.and_then(|it| it.after(at.revision, now.into_std()));
        let Some(mut header) = header else {
            // The time that the client wanted is over.
            self.deadline = now;
            return Err(ExchangeFailure::NotContinued);
        };
        let target = header.uri.path_and_query().map(PathAndQuery::as_str);
        let target: Box<str> = target.unwrap_or_default().into();
        let context = self.make.context(session, &mut header, &target);
        if context.caller != self.caller {
            // Its certificate may have expired, or no longer count.
            self.deadline = now;
            return Err(ExchangeFailure::NotContinued);
        }
        let route = plan::handed_over(&context, self.watch.resource.borrow(), server);
        let route = route.ok_or(ExchangeFailure::NotContinued)?;
        let mut upload = Upload::new(Box::new(header), false, false);
        let request = ForwardedRequest::new(&context, &mut upload, false);
        let request = request.map_err(|_| ExchangeFailure::NotContinued)?;
        let exchange = request.exchange(&route, &mut upload, request.is_unauthenticated);
        let (mut exchange, header) = exchange.map_err(|_| ExchangeFailure::NotContinued)?;
        exchange.avoids_410 = true;
        exchange.resumed = Some(resumed);
        exchange.leaving = Some(Leaving {
            reads: true,
            has_answer: true,
            tried: &[],
        });
        exchange::run(&exchange, session, header, &mut upload, None).await
    }
}
