//! One exchange with one apiserver: the request's body up, the answer's body down, both at once.
//!
//! A response header is passed on as soon as it is there, each piece of a body as it comes. No timeout ends an
//! exchange: when either side goes away the other is closed.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{EXPECT, HeaderValue};
use http::{Method, StatusCode};
use pingora_core::ErrorType;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::client::HttpSession;
use pingora_http::{RequestHeader, ResponseHeader};

use super::answer::Refusal;
use super::framing::{frame_for_http1, is_unprocessed, strip_hop_by_hop, write_header};
use super::not_found;
use super::shared::Shared;
use super::upload::{Gone, Upload};
use super::upstream::{Destination, Group, Kind};
use crate::request::headers::READY;

/// Which kind of server is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The apiserver beside us.
    Local,
    /// Another proxy.
    Peer,
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
        let (mut up, _reused) = self
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
        let sending = write_header(&mut up, header, body_expected).await;
        let before = self.started.elapsed();
        sending.map_err(|error| failed(error, false))?;
        if expects && body_expected && down.write_continue_response().await.is_err() {
            return Ok(Outcome::Broken);
        }

        let mut upload = if body_expected {
            Upload::Reading
        } else {
            Upload::Done
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
        let outcome = if end {
            upload.answered(code)
        } else {
            self.stream(down, &mut up, upload, code).await
        };
        if matches!(outcome, Outcome::Answered { reusable: true, .. }) && self.kind != Kind::Upgrade
        {
            self.group
                .release(up, &self.destination, self.kind, self.certificate)
                .await;
        }
        Ok(outcome)
    }

    /// Reads the final response header while the request's body goes up.
    async fn await_response(
        &self,
        down: &mut ServerSession,
        up: &mut HttpSession,
        upload: &mut Upload,
    ) -> Result<(), Gone> {
        loop {
            tokio::select! {
                biased;
                read = up.read_response_header() => {
                    read.map_err(Gone::Server)?;
                    let status = up.response_header().map(|header| header.status);
                    let interim = status.is_some_and(|status| {
                        status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS
                    });
                    if !interim {
                        return Ok(());
                    }
                }
                piece = down.read_body_or_idle(upload.is_done()), if upload.is_followed() => {
                    let end = down.is_body_done();
                    upload.step(piece, end, up).await?;
                }
            }
        }
    }

    /// Whether the answer ended with what has been read.
    fn is_complete(&self, up: &mut HttpSession) -> bool {
        match up {
            // `response_finished` is also true of a stream that was reset.
            HttpSession::H2(session) => session.check_response_end_or_error().unwrap_or(false),
            session => session.response_done(),
        }
    }

    async fn start_response(
        &self,
        down: &mut ServerSession,
        mut response: Box<ResponseHeader>,
        method: &Method,
        end: bool,
    ) -> pingora_core::Result<()> {
        if self.kind != Kind::Upgrade {
            strip_hop_by_hop(&mut response);
        }
        if let Some(ready) = self.tell {
            response.insert_header(
                READY,
                HeaderValue::from_static(if ready { "true" } else { "false" }),
            )?;
        }
        match down {
            ServerSession::H2(session) => session.write_response_header(response, end),
            session => {
                frame_for_http1(session.req_header().version, &mut response, method)?;
                session.write_response_header(response).await
            }
        }
    }

    /// Both bodies, until the answer's end.
    async fn stream(
        &self,
        down: &mut ServerSession,
        up: &mut HttpSession,
        mut upload: Upload,
        code: u16,
    ) -> Outcome {
        if code == 101
            && let HttpSession::H1(session) = up
        {
            session.maybe_upgrade_body_writer();
            upload = Upload::Reading;
        }
        let long = self.kind != Kind::Short;
        let turn = self.shared.turn_to_end();
        tokio::pin!(turn);
        loop {
            tokio::select! {
                piece = up.read_response_body() => match piece {
                    Ok(Some(data)) => {
                        let end = self.is_complete(up);
                        if down.write_response_body(data, end).await.is_err() {
                            return Outcome::Broken;
                        }
                        if end {
                            return upload.answered(code);
                        }
                    }
                    Ok(None) => return self.finish(down, up, code, &upload).await,
                    Err(error) => {
                        tracing::info!(destination = %self.destination, %error, "answer broke off");
                        return Outcome::Broken;
                    }
                },
                piece = down.read_body_or_idle(upload.is_done()), if upload.is_followed() => {
                    let end = down.is_body_done();
                    let gone = upload.step(piece, end, up).await.is_err();
                    // An upgraded connection has come to its end when either side ends it.
                    if code == 101 && (gone || upload != Upload::Reading) {
                        return Upload::Stopped.answered(code);
                    }
                    if gone {
                        return Outcome::Broken;
                    }
                }
                () = &mut turn, if long => return Upload::Stopped.answered(code),
            }
        }
    }

    /// The end of a body, trailers included.
    async fn finish(
        &self,
        down: &mut ServerSession,
        up: &mut HttpSession,
        code: u16,
        upload: &Upload,
    ) -> Outcome {
        if let HttpSession::H2(session) = up {
            let trailers = match session.read_trailers().await {
                Ok(trailers) => trailers,
                Err(_) => return Outcome::Broken,
            };
            if let Some(trailers) = trailers
                && down.write_response_trailers(trailers).await.is_err()
            {
                return Outcome::Broken;
            }
        }
        upload.answered(code)
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
        while !complete && body.len() <= not_found::LIMIT {
            match tokio::time::timeout(EXAMINE_TIMEOUT, up.read_response_body()).await {
                Ok(Ok(Some(data))) => body.extend_from_slice(&data),
                Ok(Ok(None)) => complete = true,
                Ok(Err(_)) | Err(_) => return Outcome::Refused(Refusal::DoubtfulNotFound),
            }
            complete = complete || self.is_complete(&mut up);
        }
        // To HEAD there is no body to judge by: an object that is missing is rare, a false 404 is never told.
        let unknown = *method == Method::HEAD && body.is_empty();
        if complete && (unknown || not_found::is_no_such_resource(&response.headers, &body)) {
            self.group
                .release(up, &self.destination, self.kind, self.certificate)
                .await;
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
            return self.stream(down, &mut up, upload, code).await;
        }
        self.group
            .release(up, &self.destination, self.kind, self.certificate)
            .await;
        upload.answered(code)
    }
}

const EXAMINE_TIMEOUT: Duration = Duration::from_secs(5);
