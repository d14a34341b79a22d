//! The answer on its way to the client: its header at once, then both bodies, each piece as it comes.

use bytes::Bytes;
use http::header::HeaderValue;
use http::{HeaderMap, Method, StatusCode};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::client::HttpSession;
use pingora_core::{Error, ErrorType};
use pingora_http::ResponseHeader;

use super::download::Download;
use super::forward::{Exchange, Outcome};
use super::framing::{Discreet, frame_for_http1, strip_hop_by_hop};
use super::last_word::LastWord;
use super::upgraded::splice;
use super::upload::{Listening, Upload};
use super::upstream::Kind;
use crate::request::headers::{NOT_EXECUTED, READY};
use crate::trouble::Pace;
use crate::watches::samples::look::Look;

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
        mut look: Option<Box<Look>>,
    ) -> Outcome {
        let standing = self.standing();
        let turn = async {
            tokio::select! {
                () = last_word.turn() => {}
                () = standing.lost() => last_word.whole_frame().await,
            }
        };
        if code == SWITCHING {
            splice(down, up, turn).await;
            return Outcome::Upgraded;
        }
        // What is cut off may have been in the middle of a request's body.
        let cut = Outcome::Answered {
            code,
            reusable: false,
        };
        let long = self.kind != Kind::Short;
        tokio::pin!(turn);
        // A watch has no body that would have to be read meanwhile, and its end is its last word's.
        let duplex = upload.is_expected() && !last_word.is_watch();
        let mut download = Download::new(down, duplex);
        loop {
            let Listening {
                pending,
                followed,
                idle,
            } = upload.listening(down);
            let full = download.is_pending();
            let followed = followed && !(idle && download.follows_client());
            tokio::select! {
                piece = up.read_response_body(), if !full => match piece {
                    Ok(Some(data)) => {
                        let end = self.is_complete(&mut up);
                        let seen = look.is_some().then(|| data.clone());
                        let sent = match download.follows_client() {
                            true => download.take(data, end).await,
                            false => last_word.pass(down, data, end).await.map(|()| end),
                        };
                        if let Some(seen) = seen {
                            look = look.and_then(|look| look.passed(&seen, end));
                        }
                        match sent {
                            Ok(false) => {}
                            Ok(true) => break,
                            Err(_) => return Outcome::Broken,
                        }
                    }
                    Ok(None) => {
                        if let Some(look) = look.take() {
                            look.passed(&Bytes::new(), true);
                        }
                        let ending = async {
                            last_word.before_end(down).await?;
                            download.end(read_trailers(&mut up).await?, down).await
                        };
                        match ending.await {
                            Ok(()) => break,
                            Err(_) => return Outcome::Broken,
                        }
                    }
                    Err(error) => {
                        static PACE: Pace = Pace::new();
                        if let Some(left_out) = PACE.admit() {
                            let (destination, error) = (&self.destination, Discreet(&error));
                            tracing::info!(%destination, %error, left_out, "answer broke off");
                        }
                        return Outcome::Broken;
                    }
                },
                sent = download.progress() => match sent {
                    Ok(false) => {}
                    Ok(true) => break,
                    Err(_) => return Outcome::Broken,
                },
                () = upload.progress(), if pending => {}
                piece = down.read_body_or_idle(idle), if followed => {
                    let end = down.is_body_done();
                    if upload.take(piece, end, &mut up).await.is_err() {
                        return Outcome::Broken;
                    }
                }
                () = &mut turn, if long && !full => {
                    let ending = async {
                        last_word.say(down).await?;
                        download.end(None, down).await
                    };
                    return match ending.await {
                        Ok(()) => cut,
                        Err(_) => Outcome::Broken,
                    };
                }
            }
        }
        let outcome = upload.answered(code);
        self.give_back(up, upload).await;
        outcome
    }
}

async fn read_trailers(up: &mut HttpSession) -> pingora_core::Result<Option<HeaderMap>> {
    match up {
        HttpSession::H2(session) => session.read_trailers().await,
        _ => Ok(None),
    }
}
