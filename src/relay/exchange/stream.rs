//! Passes the body of an answer to the client, and the rest of the request's body to the server: each piece as it arrives.

use std::pin::pin;

use bytes::Bytes;
use pingora_core::Error;

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
    (code, mut start): (u16, AnswerStart),
    final_bookmark: &FinalBookmark<'_>,
) -> Result<Delivered, ExchangeFailure> {
    let revalidation = exchange.revalidation();
    let turn = ends(final_bookmark, &revalidation);
    if code == SWITCHING {
        rare(|| splice(down, up, turn)).await;
        return Ok(Outcome::Upgraded.into());
    }
    let long = exchange.context.kind != RequestKind::Short;
    // Only a long-running request waits for it, and a short one has no place for it.
    let mut turn = long.then(|| rare(|| turn));
    let mut answer = Answer::new(exchange, final_bookmark, down, &up, upload);
    let metrics = &exchange.context.shared.metrics.watches;
    let end = loop {
        let full = answer.download.is_pending();
        if start.is_none() && !full && !upload.is_expected() {
            up = match answer.rest(down, up, code) {
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
            piece = next_piece(exchange.expiry, metrics, &mut up, &mut start), if !full => match piece {
                Ok(Some(data)) => {
                    if start.is_none() {
                        upload.forget();
                    }
                    answer.pass(down, data, up.is_complete()).await
                }
                Ok(None) => rare(|| answer.end(down, &mut up)).await,
                Err(PieceError::Failed(failure)) => return Err(failure),
                Err(PieceError::BrokeOff(error)) => rare(|| answer.break_off(down, &error)).await,
            },
            end = answer.progress() => end,
            () = upload.progress(), if pending => None,
            piece = down.read_body_or_idle(idle), if followed => {
                let end = down.is_body_done();
                let taken = upload.take(piece, end, &mut up).await;
                taken.is_err().then_some(End::Broken)
            }
            () = ended(&mut turn), if long && !full => rare(|| answer.end_early(down)).await,
        };
        if let Some(end) = end {
            break end;
        }
    };
    let outcome = match end {
        End::Whole => {
            exchange.release(up, upload).await;
            upload.answered(code)
        }
        // A request's body may not have been read to its end.
        End::Early => Outcome::Answered {
            code,
            reusable: false,
        },
        End::Broken => Outcome::Broken,
    };
    Ok(outcome.into())
}

/// How an answer has ended for the client.
enum End {
    Whole,
    /// It was ended before its server has ended it.
    Early,
    /// The client went away, or has half an answer.
    Broken,
}

impl End {
    /// After a piece that was the `last`, or not.
    fn after(sent: pingora_core::Result<bool>) -> Option<Self> {
        match sent {
            Ok(last) => last.then_some(End::Whole),
            Err(_) => Some(End::Broken),
        }
    }
}

/// An answer on its way to the client.
struct Answer<'s> {
    exchange: &'s Exchange<'s>,
    final_bookmark: &'s FinalBookmark<'s>,
    download: Download,
    writer: AnswerWriter<'s>,
}

impl<'s> Answer<'s> {
    fn new(
        exchange: &'s Exchange<'s>,
        final_bookmark: &'s FinalBookmark<'s>,
        down: &mut ClientSession,
        up: &UpstreamSession,
        upload: &Upload,
    ) -> Self {
        // A watch has no request body, and [`FinalBookmark`] ends it.
        let duplex = upload.is_expected() && !final_bookmark.is_watch();
        let writer = exchange.answer_writer(up.content_length());
        Self {
            exchange,
            final_bookmark,
            download: Download::new(down, duplex),
            writer: match up {
                UpstreamSession::H1(_) => writer.of_http1(),
                UpstreamSession::H2(_) => writer,
            },
        }
    }

    /// What is left of a watch that needs nothing of its request any more; else the session again.
    fn rest(
        &self,
        down: &ClientSession,
        up: UpstreamSession,
        code: u16,
    ) -> Result<WatchRest, UpstreamSession> {
        let exchange = self.exchange;
        let watch = match exchange.context.meter.is_traced() || !down.is_http2() {
            true => None,
            false => self.final_bookmark.rest(),
        };
        match (up, watch) {
            (UpstreamSession::H2(stream), Some(watch)) => {
                Ok(WatchRest::new(exchange, stream, code, watch))
            }
            (up, _) => Err(up),
        }
    }

    /// Passes a piece on; `last`: nothing comes after it.
    async fn pass(&mut self, down: &mut ClientSession, data: Bytes, last: bool) -> Option<End> {
        if data.is_empty() && !last {
            return None;
        }
        let sent = match self.download.follows_client() {
            true => match self.writer.reserve(data.len()).await {
                Ok(()) => self.download.take(data, last).await,
                Err(error) => Err(error),
            },
            false => pass(self.final_bookmark, down, data, last, &mut self.writer).await,
        };
        End::after(sent)
    }

    /// Sends what waits for the client, or waits until the client goes away.
    async fn progress(&mut self) -> Option<End> {
        let full = self.download.is_pending();
        let sending = self.download.progress();
        End::after(match full {
            true => self.writer.write(pin!(sending)).await,
            false => sending.await,
        })
    }

    /// The server has ended the answer.
    async fn end(&mut self, down: &mut ClientSession, up: &mut UpstreamSession) -> Option<End> {
        let ending = async {
            self.final_bookmark.before_end(down).await?;
            self.download.end(up.read_trailers().await?, down).await
        };
        End::after(ending.await.map(|()| true))
    }

    /// The connection to the server broke.
    async fn break_off(&mut self, down: &mut ClientSession, error: &Error) -> Option<End> {
        let server = self.exchange.destination.address;
        let caller = self.exchange.context.request.caller;
        let ending = async {
            break_off(self.final_bookmark, caller, server, error, down).await?;
            self.download.end(None, down).await
        };
        Some(ending.await.map_or(End::Broken, |()| End::Early))
    }

    /// The proxy ends a long-running request.
    async fn end_early(&mut self, down: &mut ClientSession) -> Option<End> {
        let ending = async {
            self.final_bookmark.write(down).await?;
            self.download.end(None, down).await
        };
        Some(ending.await.map_or(End::Broken, |()| End::Early))
    }
}

/// Resolves when a future that is there has resolved.
async fn ended(turn: &mut Option<Rare<'_, ()>>) {
    match turn {
        Some(turn) => turn.await,
        None => std::future::pending().await,
    }
}
