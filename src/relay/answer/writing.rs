//! Writes the proxy's own answers.

use pingora_core::protocols::http::ServerSession;

use super::format::StatusFormat;
use super::refusal::{Refusal, ResponseOptions};
use crate::relay::client::ClientSession;
use crate::request::headers::SERVER_ID;

/// Refuses a request. Its session can take another one.
pub async fn refuse(
    down: &mut ClientSession,
    refusal: Refusal,
    retry_after_seconds: u32,
    options: &ResponseOptions,
) -> pingora_core::Result<()> {
    let form = StatusFormat::accepted(options.accept.as_ref());
    let (mut header, body) =
        refusal.response(retry_after_seconds, options.ready, form, options.peer)?;
    if let Some(id) = &options.server_id {
        header.insert_header(SERVER_ID, id.clone())?;
    }
    let bodiless = options.head && down.is_http2();
    down.write_header(header, bodiless).await?;
    if !options.head {
        down.write_body(body, true).await?;
    }
    Ok(())
}

/// Refuses a request that could not be read. The connection is to be closed afterwards.
pub async fn refuse_unread(down: &mut ServerSession, refusal: Refusal) -> pingora_core::Result<()> {
    let (header, body) = refusal.response(0, None, StatusFormat::Json, false)?;
    down.write_error_response(*header, body).await
}
