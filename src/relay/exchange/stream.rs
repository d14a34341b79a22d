//! Passes the body of an answer to the client, and the rest of the request's body to the server: each piece as it arrives.

use std::pin::pin;

use super::download::Download;
use super::first_event::{AnswerStart, PieceError, next_piece};
use super::parameters::Exchange;
use super::pieces::{break_off, ends, pass};
use super::upgraded::splice;
use super::upload::{Upload, UploadInterest};
use super::watch_rest::{Delivered, WatchRest};
use crate::net::{Rare, rare};
use crate::relay::client::ClientSession;
use crate::relay::client::unread::AnswerWriter;
use crate::relay::outcome::{ExchangeFailure, Outcome};
use crate::relay::upstream::{RequestKind, UpstreamSession};
use crate::relay::watch::FinalBookmark;

const SWITCHING: u16 = 101;

/// Passes both bodies until the answer's end. `start`: what is looked at before it is passed.
pub(super) async fn stream(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    mut up: UpstreamSession,
    upload: &mut Upload,
    code: u16,
    final_bookmark: &FinalBookmark<'_>,
    mut start: AnswerStart,
) -> Result<Delivered, ExchangeFailure> {
    let context = exchange.context;
    let revalidation = exchange.revalidation();
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
    let long = context.kind != RequestKind::Short;
    // Only a long-running request waits for it, and a short one has no place for it.
    let mut turn = long.then(|| rare(|| turn));
    // A watch has no request body, and [`FinalBookmark`] ends it.
    let duplex = upload.is_expected() && !final_bookmark.is_watch();
    let mut answer_writer = exchange.answer_writer(up.content_length());
    if matches!(up, UpstreamSession::H1(_)) {
        answer_writer = answer_writer.of_http1();
    }
    let mut download = Download::new(down, duplex);
    let metrics = &context.shared.metrics.watches;
    loop {
        if start.is_none()
            && !download.is_pending()
            && !upload.is_expected()
            && !context.meter.is_traced()
            && down.is_http2()
            && let Some(watch) = final_bookmark.rest()
        {
            up = match up {
                UpstreamSession::H1(session) => UpstreamSession::H1(session),
                UpstreamSession::H2(stream) => {
                    let rest = WatchRest::new(exchange, stream, code, watch);
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
            piece = next_piece(exchange.expiry, metrics, &mut up, &mut start), if !full => match piece {
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
                    let server = exchange.destination.address;
                    let ending = rare(|| async {
                        break_off(final_bookmark, context.request.caller, server, &error, down)
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
    exchange.release(up, upload).await;
    Ok(outcome.into())
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
