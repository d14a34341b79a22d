//! One exchange with one apiserver: the request's body up, the answer's body down, both at once.
//!
//! A response header is passed on as soon as it is there, each piece of a body as it comes. No timeout ends an
//! exchange: when either side goes away the other is closed.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::EXPECT;
use http::{Method, StatusCode};
use pingora_core::ErrorType;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::client::HttpSession;
use pingora_http::{RequestHeader, ResponseHeader};

use super::answer::Refusal;
use super::framing::{is_unprocessed, write_header};
use super::not_found;
use super::shared::Shared;
use super::upload::{Gone, Listening, Upload};
use super::upstream::{Destination, Group, Kind};

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

/// How an exchange ended for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// An answer was delivered to its end.
    Answered {
        /// Its status.
        code: u16,
        /// The client's connection can take another request.
        reusable: bool,
    },
    /// Nothing was sent to the client yet: it is to be told this.
    Refused(Refusal),
    /// The client went away, or was left with half an answer: its stream is to be reset.
    Broken,
}

/// All that one exchange needs to know.
pub struct Exchange<'a> {
    /// Shared state.
    pub shared: &'a Shared,
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
    /// When the request was read.
    pub started: Instant,
}

/// The request broke before a response header came.
struct Failure {
    error: Box<pingora_core::Error>,
    /// Nothing was executed for certain, and another connection may do better.
    again: bool,
    /// Bytes of the request may have been executed.
    sent: bool,
}

impl Exchange<'_> {
    /// Runs the exchange to its end.
    pub async fn run(
        &self,
        down: &mut ServerSession,
        header: Box<RequestHeader>,
        body_expected: bool,
    ) -> Outcome {
        let method = header.method.clone();
        let safe = matches!(method, Method::GET | Method::HEAD | Method::OPTIONS);
        // A pooled connection can be dead without anybody having noticed: what cannot have been executed, or may be
        // executed twice, gets a second connection. A body that was read cannot be read again.
        let spare = (!body_expected).then(|| header.clone());
        let mut failure = match self.attempt(down, header, body_expected, &method).await {
            Ok(outcome) => return outcome,
            Err(failure) => failure,
        };
        if let Some(header) = spare
            && (failure.again || (safe && failure.sent))
        {
            failure = match self.attempt(down, header, false, &method).await {
                Ok(outcome) => return outcome,
                Err(failure) => failure,
            };
        }
        self.report(&failure);
        Outcome::Refused(Refusal::Failed {
            maybe_executed: failure.sent && !failure.again && !safe,
        })
    }

    fn report(&self, failure: &Failure) {
        let refused = *failure.error.etype() == ErrorType::ConnectRefused;
        match self.side {
            Side::Local if refused => self.shared.local.refused(),
            _ => {
                if refused && let Some(address) = self.destination.address() {
                    // Only wanted while it is doubted that somebody lives; there is no harm in dropping it.
                    let _ = self.shared.published.refused.try_send(address);
                }
                tracing::info!(destination = %self.destination, error = %failure.error, "exchange failed")
            }
        }
    }

    async fn attempt(
        &self,
        down: &mut ServerSession,
        mut header: Box<RequestHeader>,
        body_expected: bool,
        method: &Method,
    ) -> Result<Outcome, Failure> {
        let (mut up, _) = self
            .group
            .session(&self.destination, self.kind, self.certificate)
            .await
            .map_err(|error| Failure {
                error,
                again: false,
                sent: false,
            })?;
        up.set_read_timeout(None);
        let failed = |error: Box<pingora_core::Error>, sent: bool| Failure {
            again: !sent || is_unprocessed(&error),
            error,
            sent,
        };

        let expects = header.headers.contains_key(EXPECT);
        if expects {
            // Over HTTP/2 pingora drops the apiserver's own 100, and curl would wait a second for it.
            header.remove_header(&EXPECT);
        }
        let sending = write_header(&mut up, header, body_expected, self.destination.name()).await;
        let before = self.started.elapsed();
        // Over HTTP/1 some of it may have arrived.
        sending.map_err(|error| failed(error, matches!(up, HttpSession::H1(_))))?;
        if expects && body_expected && down.write_continue_response().await.is_err() {
            return Ok(Outcome::Broken);
        }

        let mut upload = if body_expected {
            Upload::to(&mut up)
        } else {
            Upload::none()
        };
        match self.await_response(down, &mut up, &mut upload).await {
            Ok(()) => {}
            Err(Gone::Client) => return Ok(Outcome::Broken),
            Err(Gone::Server(error)) => return Err(failed(error, true)),
        }
        let answered = Instant::now();
        let Some(response) = up.response_header().cloned().map(Box::new) else {
            return Ok(Outcome::Broken);
        };
        if response.status == StatusCode::NOT_FOUND && !self.pass_no_such_resource {
            return Ok(self.examine(down, up, response, method, upload).await);
        }
        let code = response.status.as_u16();
        let end = self.is_complete(&mut up);
        if self
            .start_response(down, response, method, end)
            .await
            .is_err()
        {
            return Ok(Outcome::Broken);
        }
        self.shared
            .metrics
            .own_time
            .observe((before + answered.elapsed()).as_secs_f64());
        if end {
            let outcome = upload.answered(code);
            self.give_back(up, &upload).await;
            return Ok(outcome);
        }
        Ok(self.stream(down, up, upload, code).await)
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
                read,
            } = upload.listening();
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
                piece = down.read_body_or_idle(read), if followed => {
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
        upload: Upload,
    ) -> Outcome {
        let mut body = Vec::new();
        let mut complete = self.is_complete(&mut up);
        let deadline = tokio::time::Instant::now() + EXAMINE_TIMEOUT;
        while !complete && body.len() <= not_found::LIMIT {
            match tokio::time::timeout_at(deadline, up.read_response_body()).await {
                Ok(Ok(Some(data))) => body.extend_from_slice(&data),
                Ok(Ok(None)) => complete = true,
                Ok(Err(_)) | Err(_) => return Outcome::Refused(Refusal::DoubtfulNotFound),
            }
            complete = complete || self.is_complete(&mut up);
        }
        // To HEAD there is no body to judge by: an object that is missing is rare, a false 404 is never told.
        let unknown = *method == Method::HEAD && body.is_empty();
        if complete && (unknown || not_found::is_no_such_resource(&response.headers, &body)) {
            self.give_back(up, &upload).await;
            return Outcome::Refused(Refusal::DoubtfulNotFound);
        }
        let code = response.status.as_u16();
        let end = complete && body.is_empty();
        if self
            .start_response(down, response, method, end)
            .await
            .is_err()
        {
            return Outcome::Broken;
        }
        if !end
            && down
                .write_response_body(Bytes::from(body), complete)
                .await
                .is_err()
        {
            return Outcome::Broken;
        }
        if !complete {
            return self.stream(down, up, upload, code).await;
        }
        let outcome = upload.answered(code);
        self.give_back(up, &upload).await;
        outcome
    }
}

const EXAMINE_TIMEOUT: Duration = Duration::from_secs(5);
