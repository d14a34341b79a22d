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
use crate::request::caller::{Caller, ClientConnection};
use crate::retry::jittered;
use crate::routing::hand_over::StoppedWatch;
use crate::shutdown::ShutdownPhase;
use crate::watches::follower::{Follower, ResumePoint};
use crate::watches::metrics::{HandOverResult, LeaveReason};

/// Between two looks at who could go on, if nothing tells of a change.
const LOOK: Duration = Duration::from_millis(500);
/// Longest wait for the proof that a server keeps the resource in this etcd.
const PROOF_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait for a permit at a server that can go on with it, in which its stream does not end for want of one.
const PACED_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for the proof, and then for a permit, while a watch is still served, and is not read meanwhile.
const SERVED_TIMEOUT: Duration = Duration::from_millis(500);
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
    /// Makes the watches of a connection prefer the same peer.
    seed: u64,
    watch: Arc<Watch>,
    /// Nobody else gets the rest.
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

/// A server that is asked to go on.
struct Asked {
    /// From where.
    at: ResumePoint,
    served_by: ServedBy,
    /// The position before, once it is asked.
    before: Option<Follower>,
}

/// The client went away.
struct ClientGone;

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
    (shared, make, client): (&Shared, &impl MakeContext, &ClientConnection),
    session: &mut ClientSession,
    mut rest: Box<WatchRest>,
    reason: LeaveReason,
) -> Delivered {
    let begun = Instant::now();
    let is_served = reason == LeaveReason::ShutsDown;
    let is_wanted = may_go_on(shared, client, &rest);
    // Each wait has a box of its own, those of thousands at most 384 bytes: the allocator uses one's memory for the next. 33,000
    // watches take 1.2 times the memory of before, instead of 1.4.
    if is_wanted && !is_served {
        boxed(|| rest.watch.asked(shared, begun + PROOF_TIMEOUT)).await;
    }
    let new = || HandOver::new((shared, make, client.seed), &mut rest, is_served, begun);
    let mut handed_over = match is_wanted.then(new).flatten() {
        Some(handed_over) => handed_over,
        None if is_served => return rest.stays(),
        None => return boxed(|| rest.end(shared, session)).await.into(),
    };
    let delivered = loop {
        match handed_over.step(client, &rest) {
            Step::Ask(server, at) => {
                let proved = boxed(|| handed_over.proved(session, server, at)).await;
                let asked = handed_over.ask(session, proved).await;
                if let Some(delivered) = asked.unwrap_or(Some(Outcome::Broken.into())) {
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
    let continued = handed_over.continued.unwrap_or_else(Instant::now);
    let gap = continued - handed_over.begun;
    shared.metrics.watches.handed_over(reason, result, gap);
    match delivered {
        Some(Delivered::Continues(mut next)) => {
            next.asked = handed_over.asked;
            Delivered::Continues(next)
        }
        Some(ended) => ended,
        None => boxed(|| rest.end(shared, session)).await.into(),
    }
}

/// Whether the client still waits for more, and would still be let in.
fn may_go_on(shared: &Shared, client: &ClientConnection, rest: &WatchRest) -> bool {
    let now = std::time::Instant::now();
    let request = rest.watch.request.as_ref();
    request.is_some_and(|it| !it.is_over(now)) && rest.dependencies.is_let_in(shared, client)
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
    fn step(&mut self, client: &ClientConnection, rest: &WatchRest) -> Step {
        let shared = self.shared;
        let is_over = shared.shutdown.is_leaving() || Instant::now() >= self.deadline;
        if is_over || !may_go_on(shared, client, rest) {
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
        plan::successor(
            self.shared,
            (&stopped, self.from.server, self.seed),
            &avoided,
        )
    }

    /// Waits until somebody may be able to go on; `false`: the client went away.
    async fn wait(&self, session: &mut ClientSession) -> bool {
        // The state of the local apiserver, certificates, the stop of the proxy.
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

    /// Asks a server for the rest that is proved to keep the resource. `None`: it does not go on.
    async fn ask(
        &mut self,
        session: &mut ClientSession,
        proved: Result<Option<Box<Asked>>, ClientGone>,
    ) -> Result<Option<Delivered>, ClientGone> {
        let Some(mut asked) = proved? else {
            return Ok(None);
        };
        let Some(permit) = boxed(|| self.permit(session, &asked)).await? else {
            return Ok(None);
        };
        // etcd may have been restored meanwhile.
        if self.watch.resume_point(self.shared).is_none() {
            return Ok(None);
        }
        asked.before = Some(self.watch.resumes(asked.at));
        let delivered = match boxed(|| self.exchange(session, &asked, permit)).await {
            Ok(Delivered::Continues(next)) => boxed(|| next.begun(self.shared, session)).await,
            ended => ended,
        };
        Ok(self.judged(*asked, delivered))
    }

    /// Waits for the proof that a server keeps the resource in this etcd.
    async fn proved(
        &mut self,
        session: &mut ClientSession,
        server: SocketAddr,
        at: ResumePoint,
    ) -> Result<Option<Box<Asked>>, ClientGone> {
        let (shared, now) = (self.shared, Instant::now());
        let deadline = match self.is_served {
            true => now + SERVED_TIMEOUT,
            false => self.deadline.min(now + PROOF_TIMEOUT),
        };
        let served_by = tokio::select! {
            _ = session.read_body_or_idle(true) => return Err(ClientGone),
            () = shared.shutdown.reaches(ShutdownPhase::Leaving) => return Ok(None),
            served_by = self.watch.is_stored_by(shared, server, deadline) => served_by,
        };
        if served_by.is_none() {
            self.asked.failed(server, Again::Later, Instant::now());
        }
        Ok(served_by.map(|served_by| {
            Box::new(Asked {
                at,
                served_by,
                before: None,
            })
        }))
    }

    /// Waits for a permit to ask a server. One that stops, or a proxy that does, soon gives them back.
    async fn permit(
        &mut self,
        session: &mut ClientSession,
        asked: &Asked,
    ) -> Result<Option<OwnedSemaphorePermit>, ClientGone> {
        let (server, waiting) = (asked.served_by.server, Instant::now());
        let limit = match self.is_served {
            true => SERVED_TIMEOUT,
            false => PACED_TIMEOUT,
        };
        let permits = self.shared.limits.hand_overs.of(server);
        let permit = tokio::select! {
            _ = session.read_body_or_idle(true) => return Err(ClientGone),
            permit = timeout_at(waiting + limit, permits.acquire_owned()) => permit,
        };
        let Ok(Ok(permit)) = permit else {
            self.asked.failed(server, Again::Later, Instant::now());
            return Ok(None);
        };
        // `watch.handOverTimeout` is for the time in which nobody can serve it.
        self.deadline += waiting.elapsed();
        Ok((!self.shared.shutdown.is_leaving()).then_some(permit))
    }

    /// What a server's answer means. `None`: it does not go on.
    fn judged(
        &mut self,
        asked: Asked,
        delivered: Result<Delivered, ExchangeFailure>,
    ) -> Option<Delivered> {
        let failure = match delivered {
            Ok(delivered) => {
                self.watch.is_served_by(asked.served_by);
                return Some(delivered);
            }
            Err(failure) => failure,
        };
        self.continued = None;
        if let Some(before) = asked.before {
            self.watch.stays(before);
        }
        let (shared, server) = (self.shared, asked.served_by.server);
        if failure.is_refused() && server == shared.config.api_server.address {
            shared.local.refused();
        }
        let failed = failure.name();
        tracing::debug!(%server, failed, "a watch does not go on there");
        let again = match failure {
            ExchangeFailure::Expired(_) => Again::After(asked.at.revision),
            ExchangeFailure::NotContinued => Again::AFewTimes,
            _ => Again::Later,
        };
        self.asked.failed(server, again, Instant::now());
        None
    }

    async fn exchange(
        &mut self,
        session: &mut ClientSession,
        asked: &Asked,
        permit: OwnedSemaphorePermit,
    ) -> Result<Delivered, ExchangeFailure> {
        let (now, server) = (Instant::now(), asked.served_by.server);
        let resumed = ResumedWatch::handed_over(&self.watch, permit);
        let request = self.watch.request.as_ref();
        let header = request.and_then(|it| it.after(asked.at.revision, now.into_std()));
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
        let route = plan::to_successor(&context, self.watch.resource.borrow(), server);
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
        self.continued = resumed.accepted();
        delivered
    }
}
