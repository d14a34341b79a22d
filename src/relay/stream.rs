//! Passes an answer to the client: its header at once, then both bodies, each piece as it arrives.

use std::pin::pin;
use std::time::Instant;

use http::header::HeaderValue;
use http::{Method, StatusCode};
use pingora_core::{Error, ErrorType};
use pingora_http::ResponseHeader;

use super::boxed::{Rare, rare};
use super::client_session::ClientSession;
use super::download::Download;
use super::framing::{frame_for_http1, says_close, strip_hop_by_hop};
use super::pieces::{break_off, ends, pass};
use super::unread::AnswerWriter;
use super::upgraded::splice;
use super::upload::{Upload, UploadInterest};
use super::upstream::RequestKind;
use super::upstream_stream::UpstreamSession;
use super::watch_rest::Delivered;
use crate::relay::exchange::Exchange;
use crate::relay::expired::{AnswerStart, PieceError};
use crate::relay::final_bookmark::FinalBookmark;
use crate::relay::outcome::{ExchangeFailure, Outcome};
use crate::request::caller::Caller;
use crate::request::headers::{NOT_EXECUTED, OF_RESOURCE, READY, SERVER_ID};

const SWITCHING: u16 = 101;

impl Exchange<'_> {
    /// Writes the response header; `end`: there is no body. Returns when it began to.
    pub(super) async fn start_response(
        &self,
        down: &mut ClientSession,
        mut response: Box<ResponseHeader>,
        method: &Method,
        end: bool,
    ) -> pingora_core::Result<Instant> {
        // On an upgrade `Connection` is about the upgrade, and the client's protocol writes the rest.
        if response.status != StatusCode::SWITCHING_PROTOCOLS {
            if self.shared.is_draining() || self.ends_connection(&response) {
                down.end_connection(self.downstream);
            }
            // Waiting requests may go on: it is known whether the connection ends.
            if let Some(permit) = self.permit {
                permit.end();
            }
            strip_hop_by_hop(&mut response);
        } else if self.kind != RequestKind::Upgrade {
            return Error::e_explain(ErrorType::InvalidHTTPHeader, "101 to what is no upgrade");
        }
        // Only for peers' proxies: an apiserver must not forge it.
        if matches!(
            response.status,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::NOT_FOUND
        ) {
            response.remove_header(&NOT_EXECUTED);
        }
        if self.is_rerouted_here && response.status == StatusCode::NOT_FOUND {
            response.insert_header(NOT_EXECUTED, OF_RESOURCE)?;
        }
        // Only for peers' proxies, too.
        if response.headers.contains_key(SERVER_ID) {
            response.remove_header(&SERVER_ID);
        }
        if self.names_server {
            response.insert_header(SERVER_ID, self.shared.server_id_header())?;
        }
        // Only this proxy sets it: the value of another proxy is about another apiserver.
        if self.request.settings.if_ready.enabled && response.headers.contains_key(READY) {
            response.remove_header(&READY);
        }
        if let Some(ready) = self.ready {
            self.shared.metrics.ready_answered(ready);
            response.insert_header(
                READY,
                HeaderValue::from_static(if ready { "true" } else { "false" }),
            )?;
        }
        let now = Instant::now();
        self.meter.answer_begins(response.status.as_u16(), now);
        match down {
            ClientSession::H2(_) => {}
            ClientSession::H1(session) => {
                if self.kind != RequestKind::Upgrade && self.shared.is_leaving() {
                    session.set_keepalive(None);
                }
                frame_for_http1(session.req_header().version, &mut response, method)?;
            }
        }
        down.write_header(response, end).await?;
        Ok(now)
    }

    /// Whether the client is to send no more requests on its connection: the apiserver did not authenticate it, or,
    /// over an HTTP/1.1 connection for this client alone, the apiserver closes it. An answer from a pod behind `proxy`
    /// does not count.
    fn ends_connection(&self, response: &ResponseHeader) -> bool {
        let refused =
            response.status == StatusCode::UNAUTHORIZED && !self.request.info.is_proxied();
        match self.request.caller {
            Caller::Peer => false,
            Caller::Anonymous if self.ends_anonymous => true,
            _ => refused || says_close(&response.headers),
        }
    }

    /// Passes both bodies until the answer's end. `start`: what is looked at before it is passed.
    pub(super) async fn stream(
        &self,
        down: &mut ClientSession,
        mut up: UpstreamSession,
        upload: &mut Upload,
        code: u16,
        final_bookmark: &FinalBookmark<'_>,
        mut start: AnswerStart,
    ) -> Result<Delivered, ExchangeFailure> {
        let revalidation = self.revalidation();
        let turn = ends(final_bookmark, &revalidation);
        if code == SWITCHING {
            rare(|| splice(down, up, turn)).await;
            return Ok(Outcome::Upgraded.into());
        }
        // A request's body may not have been read to its end.
        let cut = Outcome::Answered {
            code,
            reusable: false,
        };
        let long = self.kind != RequestKind::Short;
        // Only a long-running request waits for it, and a short one has no place for it.
        let mut turn = long.then(|| rare(|| turn));
        // A watch has no request body, and [`FinalBookmark`] ends it.
        let duplex = upload.is_expected() && !final_bookmark.is_watch();
        let mut answer_writer = self.answer_writer(up.content_length());
        let mut download = Download::new(down, duplex);
        loop {
            if start.is_none()
                && !download.is_pending()
                && !upload.is_expected()
                && !self.meter.is_traced()
                && down.is_http2()
                && let Some(watch) = final_bookmark.rest()
            {
                up = match up {
                    UpstreamSession::H1(session) => UpstreamSession::H1(session),
                    UpstreamSession::H2(stream) => {
                        let rest = self.watch_rest(stream, code, watch);
                        return Ok(Delivered::Continues(Box::new(rest)));
                    }
                };
            }
            let UploadInterest {
                pending,
                followed,
                idle,
            } = upload.interest(down);
            let full = download.is_pending();
            let followed = followed && !(idle && download.follows_client());
            tokio::select! {
                piece = self.next_piece(&mut up, &mut start), if !full => match piece {
                    Ok(Some(data)) => {
                        let end = up.is_complete();
                        if start.is_none() {
                            upload.forget();
                        }
                        if data.is_empty() && !end {
                            continue;
                        }
                        let sent = match download.follows_client() {
                            true => match answer_writer.reserve(data.len()).await {
                                Ok(()) => download.take(data, end).await,
                                Err(error) => Err(error),
                            },
                            false => pass(final_bookmark, down, data, end, &mut answer_writer).await,
                        };
                        match sent {
                            Ok(false) => {}
                            Ok(true) => break,
                            Err(_) => return Ok(Outcome::Broken.into()),
                        }
                    }
                    Ok(None) => {
                        let (up, download) = (&mut up, &mut download);
                        let ending = rare(|| async {
                            final_bookmark.before_end(down).await?;
                            download.end(up.read_trailers().await?, down).await
                        });
                        match ending.await {
                            Ok(()) => break,
                            Err(_) => return Ok(Outcome::Broken.into()),
                        }
                    }
                    Err(PieceError::Failed(failure)) => return Err(failure),
                    Err(PieceError::BrokeOff(error)) => {
                        let server = self.destination.address;
                        let ending = rare(|| async {
                            break_off(final_bookmark, self.request.caller, server, &error, down)
                                .await?;
                            download.end(None, down).await
                        });
                        return Ok(ending.await.map_or(Outcome::Broken, |()| cut).into());
                    }
                },
                sent = progress(&mut download, full.then_some(&mut answer_writer)) => match sent {
                    Ok(false) => {}
                    Ok(true) => break,
                    Err(_) => return Ok(Outcome::Broken.into()),
                },
                () = upload.progress(), if pending => {}
                piece = down.read_body_or_idle(idle), if followed => {
                    let end = down.is_body_done();
                    if upload.take(piece, end, &mut up).await.is_err() {
                        return Ok(Outcome::Broken.into());
                    }
                }
                () = ended(&mut turn), if long && !full => {
                    let ending = rare(|| async {
                        final_bookmark.write(down).await?;
                        download.end(None, down).await
                    });
                    return match ending.await {
                        Ok(()) => Ok(cut.into()),
                        Err(_) => Ok(Outcome::Broken.into()),
                    };
                }
            }
        }
        let outcome = upload.answered(code);
        self.release(up, upload).await;
        Ok(outcome.into())
    }
}

/// Resolves when a future that is there has resolved.
async fn ended(turn: &mut Option<Rare<'_, ()>>) {
    match turn {
        Some(turn) => turn.await,
        None => std::future::pending().await,
    }
}

/// `answer_writer`: set if a piece waits for the client.
async fn progress(
    download: &mut Download,
    answer_writer: Option<&mut AnswerWriter<'_>>,
) -> pingora_core::Result<bool> {
    match answer_writer {
        Some(answer_writer) => answer_writer.write(pin!(download.progress())).await,
        None => download.progress().await,
    }
}
