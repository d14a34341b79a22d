//! One exchange with one apiserver: the request's body up and the answer's body down at the same time.
//!
//! The response header is passed on at once, and so is each piece of a body. No timeout ends an exchange: when either
//! side closes, the other is closed. An exchange that failed before anything was sent to the client returns an
//! [`ExchangeFailure`], which says whether the request may have been executed.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::request::Parts;
use http::{Method, StatusCode};
use pingora_core::{Error, ErrorType};
use pingora_http::ResponseHeader;
use tokio::sync::SemaphorePermit;

use super::boxed::rare;
use super::client_session::ClientSession;
use super::denials;
use super::destination::Destination;
use super::downstream::{Downstream, VerificationPermit};
use super::expired::Expiry;
use super::framing::is_unprocessed;
use super::frozen::{ReadBudget, Ticker};
use super::not_found;
use super::outcome::{ExchangeFailure, KeptAnswer, Outcome};
use super::overlay::MergeRequest;
use super::plan;
use super::request_metrics::RequestMeter;
use super::shared::Shared;
use super::tokens::{Token, Tokens};
use super::unread::AnswerWriter;
use super::upload::{Disconnected, Upload, UploadInterest};
use super::upstream::{ConnectionChoice, PoolChoice, RequestKind, UpstreamGroup};
use super::upstream_stream::{UpstreamSession, UpstreamStream};
use super::watch_rest::{Delivered, WatchRest};
use crate::relay::final_bookmark::{FinalBookmark, Watch};
use crate::relay::revalidate::Revalidation;
use crate::relay::route::{Patience, RouteRequest, ServerKind};
use crate::request::headers::{NOT_EXECUTED, OF_RESOURCE};
use crate::routing::decide::NoSuchResource;

/// The parameters of one exchange.
pub struct Exchange<'a> {
    pub shared: &'a Shared,
    pub request: &'a RouteRequest<'a>,
    pub downstream: &'a Downstream,
    /// The bearer token, if only an apiserver can verify it.
    pub token: Option<Token>,
    /// Tokens that apiservers have accepted.
    pub tokens: &'a Tokens,
    /// Held for an unverified caller.
    pub permit: Option<&'a VerificationPermit<'a>>,
    pub group: &'a UpstreamGroup,
    pub destination: Destination,
    pub kind: RequestKind,
    pub pool_choice: PoolChoice,
    pub connection_choice: ConnectionChoice,
    /// Whether the apiserver closes connections after anonymous requests.
    pub ends_anonymous: bool,
    pub server_kind: ServerKind,
    /// `X-Kubernetes-Ready` for the client.
    pub ready: Option<bool>,
    /// Whether the answer names this server ([`SERVER_ID`](crate::request::headers::SERVER_ID)).
    pub names_server: bool,
    /// What becomes of "no such resource".
    pub no_such_resource: NoSuchResource,
    /// A peer's proxy gets the answer: a 404 that is passed on is marked as one that is not in doubt.
    pub is_rerouted_here: bool,
    /// How long the answer may take to begin.
    pub patience: Option<Patience>,
    /// Set if the request may be sent to another server if nothing comes from this one.
    pub leaving: Option<Leaving<'a>>,
    /// What becomes of a 410.
    pub expiry: Expiry<'a>,
    /// Set if something is to be added to a discovery document.
    pub merge_request: Option<Box<MergeRequest>>,
    /// Counts the request when its answer begins.
    pub meter: &'a RequestMeter<'a>,
}

/// A request that may be sent to another server while it waits for this one.
pub struct Leaving<'a> {
    /// Also after it was sent here.
    pub reads: bool,
    /// Another server has answered, and this one is only asked whether it says the same: it is left even if no other
    /// can be asked.
    pub has_answer: bool,
    /// The servers that have failed before.
    pub tried: &'a [SocketAddr],
    pub budget: &'a ReadBudget,
    pub ticker: &'a Arc<Ticker>,
}

impl Leaving<'_> {
    fn is_possible(
        &self,
        shared: &Shared,
        request: &RouteRequest<'_>,
        at: SocketAddr,
        sent: bool,
    ) -> bool {
        (self.reads || !sent)
            && (self.has_answer
                || plan::can_leave(shared, request, at, self.tried)
                    && (!sent || self.budget.take()))
    }
}

impl Exchange<'_> {
    /// Runs the exchange to its end. `upload` replays the part of the request's body that earlier exchanges have read.
    /// `permit`: held until the server has answered, and never while the client decides how long something takes.
    pub async fn run(
        &self,
        down: &mut ClientSession,
        header: Box<Parts>,
        upload: &mut Upload,
        permit: Option<Box<SemaphorePermit<'_>>>,
    ) -> Result<Delivered, ExchangeFailure> {
        let method = header.method.clone();
        self.meter.attempt(self.destination.address);
        let mut final_bookmark = match self.kind {
            RequestKind::Long => {
                let server = self.destination.address;
                FinalBookmark::of(
                    self.shared,
                    self.request.settings,
                    self.request.info,
                    &header,
                    server,
                )
            }
            _ => FinalBookmark::none(self.shared),
        };
        let outflow = &self.downstream.outflow;
        let _long = (self.kind != RequestKind::Short).then(|| outflow.long_running());
        let sent = AtomicBool::new(false);
        let asked = tokio::select! {
            biased;
            asked = self.ask(down, header, upload, &sent) => asked?,
            failure = self.answer_timeout(&sent) => return Err(failure),
        };
        drop(permit);
        let Some(Asked {
            mut up,
            response,
            own_time,
        }) = asked
        else {
            return Ok(Outcome::Broken.into());
        };
        let answered = Instant::now();
        self.shared.frozen.heard(self.destination.address);
        if let Some(token) = self.token
            && self
                .tokens
                .answered(token, &method, response.status.as_u16())
        {
            self.downstream.verified();
        }
        if let Some(of_resource) = self.is_not_executed(&response) {
            return Err(ExchangeFailure::NotExecuted { of_resource });
        }
        // What is rare is boxed, so that it takes no place in the future of every request.
        if self.may_be_expired(&response) {
            return rare(|| self.check_expired(down, up, response, &method, upload)).await;
        }
        if !self.expiry.accepts(&response) {
            return Err(ExchangeFailure::NotContinued);
        }
        if self.may_be_turned_away(&response) {
            return rare(|| self.check_turned_away(down, up, response, &method, upload)).await;
        }
        if let Some(merge_request) = &self.merge_request
            && merge_request.concerns(response.status)
        {
            return rare(|| self.send_merged(merge_request, down, up, response, &method, upload))
                .await;
        }
        if response.status == StatusCode::NOT_FOUND
            && self.no_such_resource != NoSuchResource::Pass
            && !denials::is_no_path_of_it(self.shared, self.request.info)
        {
            return rare(|| self.check_not_found(down, up, response, &method, upload)).await;
        }
        let code = response.status.as_u16();
        final_bookmark.answered(&response);
        let end = up.is_complete();
        let answer_start = self.expiry.answer_start(&response);
        if answer_start.is_none() {
            upload.forget();
        }
        if !self.expiry.is_begun() {
            self.expiry.begins(&response);
            let starting = self.start_response(down, response, &method, end).await;
            let Ok(begun) = starting else {
                return Ok(Outcome::Broken.into());
            };
            let own_time = own_time + (begun - answered);
            self.shared.metrics.own_time.observe(own_time.as_secs_f64());
            if end {
                let outcome = upload.answered(code);
                self.release(up, upload).await;
                return Ok(outcome.into());
            }
        }
        self.stream(down, up, upload, code, &final_bookmark, answer_start)
            .await
    }

    /// Resolves when the answer is not waited for any longer.
    async fn answer_timeout(&self, sent: &AtomicBool) -> ExchangeFailure {
        let Some(patience) = self.patience else {
            return tokio::select! {
                biased;
                failure = self.is_to_be_left(sent) => failure,
                () = self.expiry.answer_timeout() => ExchangeFailure::NotContinued,
            };
        };
        tokio::time::sleep(patience.after(self.meter.started.elapsed())).await;
        ExchangeFailure::BrokeOff {
            error: Error::explain(ErrorType::ReadTimedout, "its answer takes too long"),
            reused: false,
        }
    }

    /// Resolves when the server is suspected to be frozen and need not be waited for.
    pub(super) async fn is_to_be_left(&self, sent: &AtomicBool) -> ExchangeFailure {
        let Some(leaving) = &self.leaving else {
            return std::future::pending().await;
        };
        let address = self.destination.address;
        let sent = || sent.load(Ordering::Relaxed);
        let elsewhere = || leaving.is_possible(self.shared, self.request, address, sent());
        if leaving.reads {
            leaving.budget.read();
        }
        let frozen = &self.shared.frozen;
        frozen
            .is_to_be_left(address, leaving.ticker, elsewhere)
            .await;
        ExchangeFailure::Frozen
    }

    /// Sends the request and reads the header of its answer. `None`: the client went away. `sent`: some of it may have
    /// arrived.
    async fn ask(
        &self,
        down: &mut ClientSession,
        header: Box<Parts>,
        upload: &mut Upload,
        sent: &AtomicBool,
    ) -> Result<Option<Asked>, ExchangeFailure> {
        let (mut up, reused) = self
            .group
            .session(
                &self.destination,
                self.kind,
                &self.pool_choice,
                self.connection_choice,
            )
            .await
            .map_err(ExchangeFailure::Unsent)?;
        let broke_off = |error: Box<pingora_core::Error>| match is_unprocessed(&error) {
            true => ExchangeFailure::Unprocessed(error),
            false => ExchangeFailure::BrokeOff { error, reused },
        };

        // A stream that is opened and reset at once counts against the connection. A server closes a connection with
        // too many of them, and other requests share it.
        if is_gone(down).await {
            return Ok(None);
        }
        let name = &*self.destination.name;
        sent.store(true, Ordering::Relaxed);
        let sending = up.write_header(header, upload.is_expected(), name).await;
        let own_time = self.meter.started.elapsed();
        sending.map_err(|error| match up {
            // Some of it may have arrived.
            UpstreamSession::H1(_) => broke_off(error),
            UpstreamSession::H2(_) => ExchangeFailure::Unsent(error),
        })?;
        if upload.is_continue_owed() && down.write_continue().await.is_err() {
            return Ok(None);
        }
        upload.begin(&mut up).await;
        match self.await_response(down, &mut up, upload).await {
            Ok(response) => Ok(Some(Asked {
                up,
                response,
                own_time,
            })),
            Err(Disconnected::Client) => Ok(None),
            Err(Disconnected::Server(error)) => Err(broke_off(error)),
        }
    }

    /// What a long-running request depends on.
    pub(super) fn revalidation(&self) -> Revalidation<'_> {
        Revalidation {
            shared: self.shared,
            connection: &self.downstream.client,
            caller: self.request.caller,
            trust: self.group.trust(),
            presented: matches!(self.pool_choice, PoolChoice::Certificate),
            server_kind: self.server_kind,
        }
    }

    /// What the rest of a watch needs.
    pub(super) fn watch_rest(
        &self,
        up: Box<UpstreamStream>,
        code: u16,
        watch: Arc<Watch>,
    ) -> WatchRest {
        WatchRest {
            up,
            server_kind: self.server_kind,
            code,
            caller: self.request.caller.clone(),
            trust: self.group.trust().clone(),
            presented: matches!(self.pool_choice, PoolChoice::Certificate),
            watch,
            request: None,
        }
    }

    /// Writes the answer within the budget for slow clients. `length`: of the body, if known.
    pub(super) fn answer_writer(&self, length: Option<usize>) -> AnswerWriter<'_> {
        let outflow = &self.downstream.outflow;
        let long = self.kind != RequestKind::Short;
        AnswerWriter::new(&self.shared.unread, outflow, long, length)
    }

    /// Whether a peer's proxy says that the request was not executed. `Some(true)`: because of the resource.
    fn is_not_executed(&self, response: &ResponseHeader) -> Option<bool> {
        let may_be = self.server_kind == ServerKind::Peer
            && response.status == StatusCode::SERVICE_UNAVAILABLE;
        let mark = may_be.then(|| response.headers.get(NOT_EXECUTED))?;
        mark.map(|mark| mark == OF_RESOURCE)
    }

    /// Returns a connection to the pool if the request was sent completely. Otherwise the server would read the next
    /// request as the rest of this body.
    pub(super) async fn release(&self, up: UpstreamSession, upload: &Upload) {
        if upload.is_sent()
            && self.kind != RequestKind::Upgrade
            && self.connection_choice == ConnectionChoice::Any
        {
            self.group
                .release(up, &self.destination, self.kind, &self.pool_choice)
                .await;
        }
    }

    /// Reads the final response header while it sends the request's body.
    async fn await_response(
        &self,
        down: &mut ClientSession,
        up: &mut UpstreamSession,
        upload: &mut Upload,
    ) -> Result<Box<ResponseHeader>, Disconnected> {
        loop {
            let UploadInterest {
                pending,
                followed,
                idle,
            } = upload.interest(down);
            tokio::select! {
                biased;
                response = up.read_response() => return response.map_err(Disconnected::Server),
                () = upload.progress(), if pending => {}
                piece = down.read_body_or_idle(idle), if followed => {
                    let end = down.is_body_done();
                    upload.take(piece, end, up).await?;
                }
            }
        }
    }

    /// Reads the body of a 404, which decides whether the 404 can be trusted.
    async fn check_not_found(
        &self,
        down: &mut ClientSession,
        mut up: UpstreamSession,
        response: Box<ResponseHeader>,
        method: &Method,
        upload: &mut Upload,
    ) -> Result<Delivered, ExchangeFailure> {
        let prefix = self
            .read_prefix(&mut up, not_found::LIMIT, NOT_FOUND_TIMEOUT)
            .await;
        let prefix = prefix.ok_or(ExchangeFailure::DoubtfulNotFound(None))?;
        let BodyPrefix { body, complete } = &prefix;
        let timed_out = !complete && body.len() <= not_found::LIMIT;
        if timed_out {
            return Err(ExchangeFailure::DoubtfulNotFound(None));
        }
        // HEAD has no body to judge by. A missing object is rare, and a false 404 must not pass.
        let unknown = *method == Method::HEAD && body.is_empty();
        let writes = !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        let denies = || not_found::is_no_such_resource(&response.headers, body, writes);
        if *complete && (unknown || denies()) {
            self.release(up, upload).await;
            let body = prefix.body.into();
            let answer = Arc::new(KeptAnswer { response, body });
            return match self.no_such_resource {
                NoSuchResource::IfUnanimous => Err(ExchangeFailure::NoSuchResource(answer)),
                NoSuchResource::IfProved => self.pass_proved(answer, down, method, upload).await,
                _ => Err(ExchangeFailure::DoubtfulNotFound(Some(answer))),
            };
        }
        self.pass(down, up, response, prefix, method, upload).await
    }

    /// Passes on "no such resource" once it is proved that no server lists the resource.
    async fn pass_proved(
        &self,
        answer: Arc<KeptAnswer>,
        down: &mut ClientSession,
        method: &Method,
        upload: &Upload,
    ) -> Result<Delivered, ExchangeFailure> {
        let known = tokio::select! {
            known = self.shared.published.absence.is_nobody_missing() => known,
            () = down.gone() => return Ok(Outcome::Broken.into()),
        };
        match known && plan::is_nobodys(self.shared, self.request) {
            true => Ok(self.pass_kept(&answer, down, method, upload).await.into()),
            false => Err(ExchangeFailure::DoubtfulNotFound(Some(answer))),
        }
    }

    /// Reads the first bytes of a body: until its end, until more than `limit` bytes were read, or until the timeout.
    /// `None`: the connection broke.
    pub(super) async fn read_prefix(
        &self,
        up: &mut UpstreamSession,
        limit: usize,
        timeout: Duration,
    ) -> Option<BodyPrefix> {
        let mut body = Vec::new();
        let mut complete = up.is_complete();
        let deadline = tokio::time::Instant::now() + timeout;
        while !complete && body.len() <= limit {
            match tokio::time::timeout_at(deadline, up.read_body()).await {
                Ok(Ok(Some(data))) => body.extend_from_slice(&data),
                Ok(Ok(None)) => complete = true,
                Ok(Err(_)) => return None,
                Err(_) => break,
            }
            complete = complete || up.is_complete();
        }
        Some(BodyPrefix { body, complete })
    }

    /// Passes on an answer whose first bytes were read.
    pub(super) async fn pass(
        &self,
        down: &mut ClientSession,
        up: UpstreamSession,
        response: Box<ResponseHeader>,
        prefix: BodyPrefix,
        method: &Method,
        upload: &mut Upload,
    ) -> Result<Delivered, ExchangeFailure> {
        upload.forget();
        let code = response.status.as_u16();
        let BodyPrefix { body, complete } = prefix;
        let end = complete && body.is_empty();
        if self
            .start_response(down, response, method, end)
            .await
            .is_err()
        {
            return Ok(Outcome::Broken.into());
        }
        if !end && self.write_piece(down, body.into(), complete).await.is_err() {
            return Ok(Outcome::Broken.into());
        }
        if !complete {
            let none = FinalBookmark::none(self.shared);
            return self.stream(down, up, upload, code, &none, None).await;
        }
        let outcome = upload.answered(code);
        self.release(up, upload).await;
        Ok(outcome.into())
    }

    /// Writes a piece of a body that was kept, within the budget for slow clients. `end`: it is the whole body.
    pub(super) async fn write_piece(
        &self,
        down: &mut ClientSession,
        piece: Bytes,
        end: bool,
    ) -> pingora_core::Result<()> {
        let length = piece.len();
        let mut answer_writer = self.answer_writer(end.then_some(length));
        answer_writer.reserve(length).await?;
        let write = down.write_body(piece, end);
        answer_writer.write(pin!(write)).await
    }
}

/// A request that was answered.
struct Asked {
    up: UpstreamSession,
    response: Box<ResponseHeader>,
    /// Time that the proxy itself took until the request was sent.
    own_time: Duration,
}

/// The first bytes of an answer's body, and whether they are the whole body.
pub(super) struct BodyPrefix {
    pub(super) body: Vec<u8>,
    pub(super) complete: bool,
}

/// Whether the client of an HTTP/2 stream has gone away.
async fn is_gone(down: &mut ClientSession) -> bool {
    poll_fn(|context| Poll::Ready(down.poll_gone(context).is_ready())).await
}

const NOT_FOUND_TIMEOUT: Duration = Duration::from_secs(5);
