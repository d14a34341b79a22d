//! The answer on its way to the client: its header at once, then both bodies, each piece as it comes.

use http::header::HeaderValue;
use http::{Method, StatusCode};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::client::HttpSession;
use pingora_core::{Error, ErrorType};
use pingora_http::ResponseHeader;

use super::forward::{Exchange, Outcome};
use super::framing::{frame_for_http1, strip_hop_by_hop};
use super::last_word::LastWord;
use super::upgraded::splice;
use super::upload::{Listening, Upload};
use super::upstream::Kind;
use crate::request::headers::{NOT_EXECUTED, READY};

const SWITCHING: u16 = 101;

impl Exchange<'_> {
    /// Writes the response header; `end`: there is no body.
    pub(super) async fn start_response(
        &self,
        down: &mut ServerSession,
        mut response: Box<ResponseHeader>,
        method: &Method,
        end: bool,
    ) -> pingora_core::Result<()> {
        // An upgrade that is agreed on is what its `Connection` is about; the client's protocol writes the rest.
        if response.status != StatusCode::SWITCHING_PROTOCOLS {
            strip_hop_by_hop(&mut response);
        } else if self.kind != Kind::Upgrade {
            return Error::e_explain(ErrorType::InvalidHTTPHeader, "101 to what is no upgrade");
        }
        // Between proxies only: whoever else says it is no proxy.
        if response.status == StatusCode::SERVICE_UNAVAILABLE {
            response.remove_header(&NOT_EXECUTED);
        }
        // Ours to say: what a server further on says of itself is not about the one that was asked.
        if self.shared.config.if_ready.enabled && response.headers.contains_key(READY) {
            response.remove_header(&READY);
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
                if self.kind != Kind::Upgrade && self.shared.is_leaving() {
                    session.set_keepalive(None);
                }
                frame_for_http1(session.req_header().version, &mut response, method)?;
                session.write_response_header(response).await
            }
        }
    }

    /// Whether the answer ended with what has been read.
    pub(super) fn is_complete(&self, up: &mut HttpSession) -> bool {
        match up {
            // `response_finished` is also true of a stream that was reset.
            HttpSession::H2(session) => session.check_response_end_or_error().unwrap_or(false),
            session => session.response_done(),
        }
    }

    /// Both bodies, until the answer's end.
    pub(super) async fn stream(
        &self,
        down: &mut ServerSession,
        mut up: HttpSession,
        upload: &mut Upload,
        code: u16,
        last_word: &LastWord<'_>,
    ) -> Outcome {
        if code == SWITCHING {
            splice(down, up, last_word.turn()).await;
            return Outcome::Upgraded;
        }
        // What is cut off may have been in the middle of a request's body.
        let cut = Outcome::Answered {
            code,
            reusable: false,
        };
        let long = self.kind != Kind::Short;
        let turn = last_word.turn();
        tokio::pin!(turn);
        loop {
            let Listening {
                pending,
                followed,
                read,
            } = upload.listening();
            tokio::select! {
                piece = up.read_response_body() => match piece {
                    Ok(Some(data)) => {
                        let end = self.is_complete(&mut up);
                        if last_word.pass(down, data, end).await.is_err() {
                            return Outcome::Broken;
                        }
                        if end {
                            break;
                        }
                    }
                    Ok(None) => match last_word.before_end(down).await {
                        Ok(()) if self.pass_trailers(down, &mut up).await.is_ok() => break,
                        _ => return Outcome::Broken,
                    },
                    Err(error) => {
                        tracing::info!(destination = %self.destination, %error, "answer broke off");
                        return Outcome::Broken;
                    }
                },
                () = upload.progress(), if pending => {}
                piece = down.read_body_or_idle(read), if followed => {
                    let end = down.is_body_done();
                    if upload.take(piece, end, &mut up).await.is_err() {
                        return Outcome::Broken;
                    }
                }
                () = &mut turn, if long => return match last_word.say(down).await {
                    Ok(()) => cut,
                    Err(_) => Outcome::Broken,
                },
            }
        }
        let outcome = upload.answered(code);
        self.give_back(up, upload).await;
        outcome
    }

    async fn pass_trailers(
        &self,
        down: &mut ServerSession,
        up: &mut HttpSession,
    ) -> pingora_core::Result<()> {
        if let HttpSession::H2(session) = up
            && let Some(trailers) = session.read_trailers().await?
        {
            down.write_response_trailers(trailers).await?;
        }
        Ok(())
    }
}
