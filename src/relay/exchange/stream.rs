//! Passes the body of an answer to the client, and the rest of the request's body to the server: each piece as it arrives.

use bytes::Bytes;

use super::answer::{Answer, End, ends};
use super::download::Download;
use super::first_event::{AnswerStart, PieceError, next_piece};
use super::parameters::Exchange;
use super::upload::{Upload, UploadInterest};
use super::watch_rest::{Delivered, WatchRest};
use crate::net::{Rare, rare};
use crate::relay::client::ClientSession;
use crate::relay::outcome::ExchangeFailure;
use crate::relay::upstream::{RequestKind, UpstreamSession};
use crate::relay::watch::FinalBookmark;

/// Passes both bodies until the answer's end. `start`: what is looked at before it is passed.
pub(super) async fn stream(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    mut up: UpstreamSession,
    upload: &mut Upload,
    (code, mut start): (u16, AnswerStart),
    final_bookmark: &FinalBookmark<'_>,
) -> Result<Delivered, ExchangeFailure> {
    let revalidation = exchange.revalidation();
    let long = exchange.context.kind != RequestKind::Short;
    // Only a long-running request waits for it, and a short one has no place for it.
    let mut turn = long.then(|| rare(|| ends(final_bookmark, &revalidation)));
    let mut writer = exchange.stream_writer(&up);
    let mut answer = Answer {
        final_bookmark,
        caller: exchange.context.request.caller,
        server: exchange.destination.address,
        // A watch has no request body, and [`FinalBookmark`] ends it.
        download: Download::new(down, upload.is_expected() && !final_bookmark.is_watch()),
        writer: &mut writer,
    };
    let metrics = &exchange.context.shared.metrics.watches;
    let end = loop {
        let full = answer.download.is_pending();
        if start.is_none() && !full && !upload.is_expected() {
            up = match rest(exchange, final_bookmark, down, (up, code)) {
                Ok(rest) => return Ok(Delivered::Continues(Box::new(rest))),
                Err(up) => up,
            };
        }
        let UploadInterest {
            pending,
            followed,
            idle,
        } = upload.interest(down);
        let followed = followed && !(idle && answer.download.follows_client());
        let end = tokio::select! {
            piece = next_piece(exchange.expiry, metrics, &mut up, &mut start), if !full => {
                if start.is_none() && piece.is_ok() {
                    upload.forget();
                }
                pass(&mut answer, down, &mut up, piece).await?
            }
            end = answer.progress() => end,
            () = upload.progress(), if pending => None,
            piece = down.read_body_or_idle(idle), if followed => {
                let taken = upload.take(piece, down.is_body_done(), &mut up).await;
                taken.is_err().then_some(End::Broken)
            }
            () = ended(&mut turn), if long && !full => rare(|| answer.end_early(down)).await,
        };
        if let Some(end) = end {
            break end;
        }
    };
    if let End::Whole = end {
        exchange.release(up, upload).await;
    }
    Ok(end.outcome(upload.answered(code)).into())
}

/// Passes a piece on, or ends the answer.
async fn pass(
    answer: &mut Answer<'_, '_>,
    down: &mut ClientSession,
    up: &mut UpstreamSession,
    piece: Result<Option<Bytes>, PieceError>,
) -> Result<Option<End>, ExchangeFailure> {
    Ok(match piece {
        Ok(Some(data)) => answer.pass(down, data, up.is_complete()).await,
        Ok(None) => rare(|| answer.end(down, up.read_trailers())).await,
        Err(PieceError::Failed(failure)) => return Err(failure),
        Err(PieceError::BrokeOff(error)) => rare(|| answer.break_off(down, &error)).await,
    })
}

/// Resolves when a future that is there has resolved.
async fn ended(turn: &mut Option<Rare<'_, ()>>) {
    match turn {
        Some(turn) => turn.await,
        None => std::future::pending().await,
    }
}

/// What is left of a watch that needs nothing of its request any more; else the session again.
fn rest(
    exchange: &Exchange<'_>,
    final_bookmark: &FinalBookmark<'_>,
    down: &ClientSession,
    (up, code): (UpstreamSession, u16),
) -> Result<WatchRest, UpstreamSession> {
    let watch = match exchange.context.meter.is_traced() || !down.is_http2() {
        true => None,
        false => final_bookmark.rest(),
    };
    match (up, watch) {
        (UpstreamSession::H2(stream), Some(watch)) => {
            Ok(WatchRest::new(exchange, stream, code, watch))
        }
        (up, _) => Err(up),
    }
}
