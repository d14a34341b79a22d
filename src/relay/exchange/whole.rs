//! Whole answers: passes on what was read or kept.

use std::pin::pin;

use bytes::Bytes;
use http::StatusCode;

use super::answer_header::pass_header;
use super::parameters::Exchange;
use super::upload::Upload;
use crate::relay::client::ClientSession;
use crate::relay::outcome::{KeptAnswer, Outcome};

/// Passes on an answer that was kept.
pub async fn pass_kept(
    exchange: &Exchange<'_>,
    answer: &KeptAnswer,
    down: &mut ClientSession,
    upload: &Upload,
) -> Outcome {
    let KeptAnswer { response, body } = answer.clone();
    let code = response.status.as_u16();
    let end = body.is_empty();
    let passing = async {
        pass_header(exchange, down, response, end).await?;
        if !end {
            write_piece(exchange, down, body, true).await?;
        }
        Ok::<(), Box<pingora_core::Error>>(())
    };
    match passing.await {
        Ok(()) => upload.answered(code),
        Err(_) => Outcome::Broken,
    }
}

/// Passes a 410 as the only event below a header that was sent.
pub async fn pass_event(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    event: Bytes,
    upload: &Upload,
) -> Outcome {
    match write_piece(exchange, down, event, true).await {
        Ok(()) => upload.answered(StatusCode::OK.as_u16()),
        Err(_) => Outcome::Broken,
    }
}

/// Writes a piece of a body that was kept, within the budget for slow clients. `end`: it is the whole body.
pub(super) async fn write_piece(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    piece: Bytes,
    end: bool,
) -> pingora_core::Result<()> {
    let length = piece.len();
    let mut answer_writer = exchange.answer_writer(end.then_some(length));
    answer_writer.reserve(length).await?;
    let write = down.write_body(piece, end);
    answer_writer.write(pin!(write)).await
}
