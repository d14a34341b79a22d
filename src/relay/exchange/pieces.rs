//! How the pieces of an answer reach the client, and when and how a long-running one ends. For all answers whose bodies
//! are streamed, and for what is left of a watch.

use std::net::SocketAddr;
use std::pin::pin;

use bytes::Bytes;
use pingora_core::{Error, ErrorType};

use crate::log_throttle::LogRateLimit;
use crate::net::RedactedError;
use crate::relay::client::ClientSession;
use crate::relay::client::unread::AnswerWriter;
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

/// The connection to the server broke. A watch may end as if its apiserver had ended it: a reset would make the client
/// list again. A peer's proxy ends its own client's watch, or asks others.
pub(super) async fn break_off(
    final_bookmark: &FinalBookmark<'_>,
    caller: &Caller,
    server: SocketAddr,
    error: &Error,
    down: &mut ClientSession,
) -> pingora_core::Result<()> {
    static LOG_RATE: LogRateLimit = LogRateLimit::new();
    if let Some(left_out) = LOG_RATE.admit() {
        let error = RedactedError(error);
        tracing::info!(%server, %error, left_out, "answer broke off");
    }
    match caller {
        Caller::Peer => Error::e_explain(ErrorType::ConnectionClosed, "a peer ends the watch"),
        _ => final_bookmark.after_break(down).await,
    }
}

/// Passes a piece on in parts: each part that the client reads counts as progress. Returns whether it was the last
/// piece.
pub(super) async fn pass(
    final_bookmark: &FinalBookmark<'_>,
    down: &mut ClientSession,
    mut data: Bytes,
    end: bool,
    answer_writer: &mut AnswerWriter<'_>,
) -> pingora_core::Result<bool> {
    loop {
        let length = match down.is_http2() {
            true => data.len().min(PART),
            false => data.len(),
        };
        let part = data.split_to(length);
        let last = data.is_empty();
        answer_writer.reserve(length).await?;
        let passing = pin!(final_bookmark.pass(down, part, end && last));
        answer_writer.write(passing).await?;
        final_bookmark.count(&mut answer_writer.kept);
        if last {
            return Ok(end);
        }
    }
}
