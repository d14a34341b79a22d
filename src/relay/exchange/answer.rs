//! How the pieces of an answer reach the client, and how it ends: for all answers whose bodies are streamed ([`super::stream`]),
//! and for what is left of a watch ([`super::watch_rest`]).

use std::net::SocketAddr;
use std::pin::pin;

use bytes::Bytes;
use http::HeaderMap;
use pingora_core::Error;

use super::download::Download;
use crate::log_throttle::LogRateLimit;
use crate::net::RedactedError;
use crate::relay::client::ClientSession;
use crate::relay::client::unread::AnswerWriter;
use crate::relay::outcome::Outcome;
use crate::relay::watch::{FinalBookmark, Revalidation};
use crate::request::caller::Caller;

/// The largest frame that most clients accept.
const PART: usize = 16 << 10;

/// Resolves when a long-running request is to end.
pub(super) async fn ends(final_bookmark: &FinalBookmark<'_>, revalidation: &Revalidation<'_>) {
    revalidation.until_first_change().await;
    let turn = async {
        tokio::select! {
            () = final_bookmark.turn() => {}
            () = revalidation.ended() => final_bookmark.whole_frame().await,
        }
    };
    // Boxed, because thousands of watches wait here.
    Box::pin(turn).await;
}

/// How an answer has ended for the client.
pub(super) enum End {
    Whole,
    /// It was ended before its server has ended it.
    Early,
    /// The client went away, or has half an answer.
    Broken,
}

impl End {
    /// `whole`: what it is if the server has ended it.
    pub(super) fn outcome(self, whole: Outcome) -> Outcome {
        match (self, whole) {
            // A request's body may not have been read to its end.
            (End::Early, Outcome::Answered { code, .. }) => Outcome::Answered {
                code,
                reusable: false,
            },
            (End::Whole | End::Early, whole) => whole,
            (End::Broken, _) => Outcome::Broken,
        }
    }

    /// After a piece that was the last, or not.
    fn after(sent: pingora_core::Result<bool>) -> Option<Self> {
        match sent {
            Ok(last) => last.then_some(End::Whole),
            Err(_) => Some(End::Broken),
        }
    }
}

/// An answer on its way to the client. What its methods return: how it has ended, if it has.
pub(super) struct Answer<'s, 'w> {
    pub(super) final_bookmark: &'s FinalBookmark<'s>,
    pub(super) caller: &'s Caller,
    pub(super) server: SocketAddr,
    pub(super) download: Download,
    pub(super) writer: &'s mut AnswerWriter<'w>,
}

impl Answer<'_, '_> {
    /// Passes a piece on; `last`: nothing comes after it.
    pub(super) async fn pass(
        &mut self,
        down: &mut ClientSession,
        data: Bytes,
        last: bool,
    ) -> Option<End> {
        if data.is_empty() && !last {
            return None;
        }
        let sent = match self.download.follows_client() {
            true => match self.writer.reserve(data.len()).await {
                Ok(()) => self.download.take(data, last).await,
                Err(error) => Err(error),
            },
            false => self.write(down, data, last).await,
        };
        End::after(sent)
    }

    /// Writes a piece in parts: each part that the client reads counts as progress. Returns whether it was the last piece.
    async fn write(
        &mut self,
        down: &mut ClientSession,
        mut data: Bytes,
        last: bool,
    ) -> pingora_core::Result<bool> {
        loop {
            let length = match down.is_http2() {
                true => data.len().min(PART),
                false => data.len(),
            };
            let part = data.split_to(length);
            let whole = data.is_empty();
            self.writer.reserve(length).await?;
            let passing = pin!(self.final_bookmark.pass(down, part, last && whole));
            self.writer.write(passing).await?;
            self.final_bookmark.count(&mut self.writer.kept);
            if whole {
                return Ok(last);
            }
        }
    }

    /// Sends what waits for the client, or waits until the client goes away.
    pub(super) async fn progress(&mut self) -> Option<End> {
        let full = self.download.is_pending();
        let sending = self.download.progress();
        End::after(match full {
            true => self.writer.write(pin!(sending)).await,
            false => sending.await,
        })
    }

    /// The server has ended the answer.
    pub(super) async fn end(
        &mut self,
        down: &mut ClientSession,
        trailers: impl Future<Output = pingora_core::Result<Option<HeaderMap>>>,
    ) -> Option<End> {
        let ending = async {
            self.final_bookmark.before_end(down).await?;
            self.download.end(trailers.await?, down).await
        };
        End::after(ending.await.map(|()| true))
    }

    /// The connection to the server broke. A watch may end as if its apiserver had ended it: a reset would make the client
    /// list again. A peer's proxy ends its own client's watch, or asks others.
    pub(super) async fn break_off(
        &mut self,
        down: &mut ClientSession,
        error: &Error,
    ) -> Option<End> {
        static LOG_RATE: LogRateLimit = LogRateLimit::new();
        if let Some(left_out) = LOG_RATE.admit() {
            let (server, error) = (self.server, RedactedError(error));
            tracing::info!(%server, %error, left_out, "answer broke off");
        }
        if *self.caller == Caller::Peer {
            return Some(End::Broken);
        }
        let ending = async {
            self.final_bookmark.after_break(down).await?;
            self.download.end(None, down).await
        };
        Some(ending.await.map_or(End::Broken, |()| End::Early))
    }

    /// The proxy ends a long-running request.
    pub(super) async fn end_early(&mut self, down: &mut ClientSession) -> Option<End> {
        let ending = async {
            self.final_bookmark.write(down).await?;
            self.download.end(None, down).await
        };
        Some(ending.await.map_or(End::Broken, |()| End::Early))
    }
}
