//! One exchange with one apiserver: the request's body up, the answer's body down, both at once.
//!
//! A response header is passed on as soon as it is there, each piece of a body as it comes. No timeout ends an
//! exchange: when either side goes away the other is closed. An exchange that came to nothing before anything was sent
//! to the client says so, and whether the request may have been executed ([`Failure`]).

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use pingora_core::ErrorType;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::client::HttpSession;
use pingora_http::{RequestHeader, ResponseHeader};

use super::framing::{is_unprocessed, write_continue, write_header};
use super::last_word::LastWord;
use super::not_found;
use super::overlay::Merging;
use super::shared::Shared;
use super::standing::Standing;
use super::upload::{Gone, Listening, Upload};
use super::upstream::{Destination, Group, Kind};
use crate::request::headers::NOT_EXECUTED;
use crate::request::info::{RequestInfo, Target, Verb};
use crate::request::who::{Caller, Connection};
use crate::watches::samples::look::Look;

/// Which kind of server is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The apiserver beside us.
    Local,
    /// Another proxy.
    Peer,
    /// Another apiserver, without a proxy before it.
    Native,
}

/// How an exchange ended.
#[derive(Debug)]
pub enum Outcome {
    /// An answer was delivered to its end.
    Answered {
        /// Its status.
        code: u16,
        /// The client's connection can take another request.
        reusable: bool,
    },
    /// An upgraded connection came to its end, and with it the client's.
    Upgraded,
    /// Nothing was sent to the client yet.
    Failed(Failure),
    /// The client went away, or was left with half an answer: its stream is to be reset.
    Broken,
}

/// Why an exchange came to nothing.
#[derive(Debug)]
pub enum Failure {
    /// No connection, or nothing could be written to it: nothing was executed.
    Unsent(Box<pingora_core::Error>),
    /// The server says that it did not process the request (REFUSED_STREAM, or a GOAWAY below the stream).
    Unprocessed(Box<pingora_core::Error>),
    /// A peer's proxy says that nothing was executed.
    NotExecuted,
    /// "No such resource", from a server that was said to list it.
    DoubtfulNotFound,
    /// A discovery document that nothing can be added to.
    Unmerged,
    /// The exchange broke off after some of the request was sent: it may have been executed.
    BrokeOff {
        /// How.
        error: Box<pingora_core::Error>,
        /// The connection had been used before. A server may close such a one at any time, and serve on another.
        reused: bool,
    },
}

impl Failure {
    /// Whether the request may have been executed.
    pub fn maybe_executed(&self) -> bool {
        matches!(self, Failure::BrokeOff { .. })
    }

    /// Whether nobody listens there.
    pub fn is_refused(&self) -> bool {
        matches!(self, Failure::Unsent(error) if *error.etype() == ErrorType::ConnectRefused)
    }

    /// Whether another connection to the same server may do better.
    pub fn is_of_the_connection(&self) -> bool {
        matches!(
            self,
            Failure::Unprocessed(_) | Failure::BrokeOff { reused: true, .. }
        )
    }

    /// Name for metrics and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Failure::Unsent(_) => "unsent",
            Failure::Unprocessed(_) => "unprocessed",
            Failure::NotExecuted => "not_executed",
            Failure::DoubtfulNotFound => "doubtful_not_found",
            Failure::Unmerged => "unmerged",
            Failure::BrokeOff { .. } => "broke_off",
        }
    }

    /// What went wrong, where that is an error.
    pub fn error(&self) -> Option<&pingora_core::Error> {
        match self {
            Failure::Unsent(error)
            | Failure::Unprocessed(error)
            | Failure::BrokeOff { error, .. } => Some(error),
            Failure::NotExecuted | Failure::DoubtfulNotFound | Failure::Unmerged => None,
        }
    }
}

/// All that one exchange needs to know.
pub struct Exchange<'a> {
    /// Shared state.
    pub shared: &'a Shared,
    /// What is asked for.
    pub info: &'a RequestInfo<'a>,
    /// Who asks.
    pub caller: &'a Caller,
    /// On which connection.
    pub connection: &'a Connection,
    /// The connections to use.
    pub group: &'a Group,
    /// Where to.
    pub destination: Destination,
    /// Over which kind of connection.
    pub kind: Kind,
    /// Whether our certificate is presented.
    pub certificate: bool,
    /// To whom.
    pub side: Side,
    /// `X-Kubernetes-Ready` for the client.
    pub tell: Option<bool>,
    /// Whether "no such resource" may be passed on.
    pub pass_no_such_resource: bool,
    /// What is to be added to a discovery document.
    pub merging: Option<Merging>,
    /// When the request was read.
    pub started: Instant,
}

impl Exchange<'_> {
    /// Runs the exchange to its end. `upload` has what was read of the request's body by exchanges before.
    pub async fn run(
        &self,
        down: &mut ServerSession,
        header: Box<RequestHeader>,
        upload: &mut Upload,
    ) -> Outcome {
        match self.answer(down, header, upload).await {
            Ok(outcome) => outcome,
            Err(failure) => Outcome::Failed(failure),
        }
    }

    async fn answer(
        &self,
        down: &mut ServerSession,
        header: Box<RequestHeader>,
        upload: &mut Upload,
    ) -> Result<Outcome, Failure> {
        let method = header.method.clone();
        // Before anything is sent: an answer of the process before must not count as one of the next.
        let epoch = self.epoch();
        let mut last_word = match self.kind {
            Kind::Long => {
                let server = self.destination.address();
                LastWord::of(self.shared, self.info, &header, server)
            }
            _ => LastWord::none(self.shared),
        };
        let (mut up, reused) = self
            .group
            .session(&self.destination, self.kind, self.certificate)
            .await
            .map_err(Failure::Unsent)?;
        up.set_read_timeout(None);
        let broke_off = |error: Box<pingora_core::Error>| match is_unprocessed(&error) {
            true => Failure::Unprocessed(error),
            false => Failure::BrokeOff { error, reused },
        };

        // Opened and reset in one go: too many of those, and a server closes the connection that others use too.
        if is_gone(down).await {
            return Ok(Outcome::Broken);
        }
        let name = self.destination.name();
        let sending = write_header(&mut up, header, upload.is_expected(), name).await;
        let before = self.started.elapsed();
        sending.map_err(|error| match up {
            // Some of it may have arrived.
            HttpSession::H1(_) => broke_off(error),
            _ => Failure::Unsent(error),
        })?;
        if upload.is_continue_owed() && write_continue(down).await.is_err() {
            return Ok(Outcome::Broken);
        }
        upload.begin(&mut up).await;
        match self.await_response(down, &mut up, upload).await {
            Ok(()) => {}
            Err(Gone::Client) => return Ok(Outcome::Broken),
            Err(Gone::Server(error)) => return Err(broke_off(error)),
        }
        let answered = Instant::now();
        let Some(response) = up.response_header().cloned().map(Box::new) else {
            return Ok(Outcome::Broken);
        };
        if self.is_not_executed(&response) {
            return Err(Failure::NotExecuted);
        }
        if let Some(merging) = &self.merging
            && merging.concerns(response.status)
        {
            return self
                .overlay(merging, down, up, response, &method, upload)
                .await;
        }
        if response.status == StatusCode::NOT_FOUND && !self.pass_no_such_resource {
            return self.examine(down, up, response, &method, upload).await;
        }
        upload.forget();
        let code = response.status.as_u16();
        // A process that nobody has missed yet may have been followed by another before it was asked.
        let same = epoch.filter(|epoch| self.epoch() == Some(*epoch));
        last_word.answered(self.info, &response, same);
        let look = same.and_then(|epoch| self.look(epoch, &response));
        let end = self.is_complete(&mut up);
        let starting = self.start_response(down, response, &method, end).await;
        if starting.is_err() {
            return Ok(Outcome::Broken);
        }
        self.shared
            .metrics
            .own_time
            .observe((before + answered.elapsed()).as_secs_f64());
        if end {
            let outcome = upload.answered(code);
            self.give_back(up, upload).await;
            return Ok(outcome);
        }
        Ok(self.stream(down, up, upload, code, &last_word, look).await)
    }

    /// The epoch of the apiserver beside us, if it is asked, is initialized, and what it answers may be of use at the end.
    fn epoch(&self) -> Option<u64> {
        let wanted = self.side == Side::Local && self.shared.config.watch.bookmark_on_shutdown;
        wanted.then(|| self.shared.local.initialized_epoch())?
    }

    /// Looks at lists, now and then.
    fn look(&self, epoch: u64, response: &ResponseHeader) -> Option<Box<Look>> {
        let (Verb::List, Target::Resource(resource)) = (self.info.verb, &self.info.target) else {
            return None;
        };
        let answer = (response.status, &response.headers);
        let samples = &self.shared.samples;
        Look::at(samples, resource.into(), epoch, self.started, answer)
    }

    /// What it stands on while it goes on.
    pub(super) fn standing(&self) -> Standing<'_> {
        Standing {
            shared: self.shared,
            connection: self.connection,
            caller: self.caller,
            trust: self.group.trust(),
            presented: self.certificate,
            side: self.side,
        }
    }

    /// Whether a peer's proxy says that nobody executed the request.
    fn is_not_executed(&self, response: &ResponseHeader) -> bool {
        self.side == Side::Peer
            && response.status == StatusCode::SERVICE_UNAVAILABLE
            && response.headers.contains_key(NOT_EXECUTED)
    }

    /// Puts a connection back for the next request, if nothing of this one is left on it: a server that still waits for
    /// a body would take the next user's request for it.
    pub(super) async fn give_back(&self, up: HttpSession, upload: &Upload) {
        if upload.is_sent() && self.kind != Kind::Upgrade {
            self.group
                .release(up, &self.destination, self.kind, self.certificate)
                .await;
        }
    }

    /// Reads the final response header while the request's body goes up.
    async fn await_response(
        &self,
        down: &mut ServerSession,
        up: &mut HttpSession,
        upload: &mut Upload,
    ) -> Result<(), Gone> {
        loop {
            let Listening {
                pending,
                followed,
                idle,
            } = upload.listening(down);
            tokio::select! {
                biased;
                header = up.read_response_header() => {
                    header.map_err(Gone::Server)?;
                    let status = up.response_header().map(|header| header.status);
                    let interim = status.is_some_and(|status| {
                        status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS
                    });
                    if !interim {
                        return Ok(());
                    }
                }
                () = upload.progress(), if pending => {}
                piece = down.read_body_or_idle(idle), if followed => {
                    let end = down.is_body_done();
                    upload.take(piece, end, up).await?;
                }
            }
        }
    }

    /// A 404 that might be a false one: its body decides.
    async fn examine(
        &self,
        down: &mut ServerSession,
        mut up: HttpSession,
        response: Box<ResponseHeader>,
        method: &Method,
        upload: &mut Upload,
    ) -> Result<Outcome, Failure> {
        let mut body = Vec::new();
        let mut complete = self.is_complete(&mut up);
        let deadline = tokio::time::Instant::now() + EXAMINE_TIMEOUT;
        while !complete && body.len() <= not_found::LIMIT {
            match tokio::time::timeout_at(deadline, up.read_response_body()).await {
                Ok(Ok(Some(data))) => body.extend_from_slice(&data),
                Ok(Ok(None)) => complete = true,
                Ok(Err(_)) | Err(_) => return Err(Failure::DoubtfulNotFound),
            }
            complete = complete || self.is_complete(&mut up);
        }
        // To HEAD there is no body to judge by: an object that is missing is rare, a false 404 is never told.
        let unknown = *method == Method::HEAD && body.is_empty();
        if complete && (unknown || not_found::is_no_such_resource(&response.headers, &body)) {
            self.give_back(up, upload).await;
            return Err(Failure::DoubtfulNotFound);
        }
        upload.forget();
        let code = response.status.as_u16();
        let end = complete && body.is_empty();
        if self
            .start_response(down, response, method, end)
            .await
            .is_err()
        {
            return Ok(Outcome::Broken);
        }
        if !end
            && down
                .write_response_body(Bytes::from(body), complete)
                .await
                .is_err()
        {
            return Ok(Outcome::Broken);
        }
        if !complete {
            let none = LastWord::none(self.shared);
            return Ok(self.stream(down, up, upload, code, &none, None).await);
        }
        let outcome = upload.answered(code);
        self.give_back(up, upload).await;
        Ok(outcome)
    }
}

/// Whether the client of an HTTP/2 stream is known to have gone away.
async fn is_gone(down: &mut ServerSession) -> bool {
    let ServerSession::H2(session) = down else {
        return false;
    };
    let mut idle = pin!(session.idle());
    poll_fn(|context| Poll::Ready(idle.as_mut().poll(context).is_ready())).await
}

const EXAMINE_TIMEOUT: Duration = Duration::from_secs(5);
