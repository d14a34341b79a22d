//! `status`: shows the status document of a running proxy as tables or as JSON.
//!
//! `fetch` gets the document from the admin port, `table` and `json` print it, and [`wait`] asks again and again. The
//! command succeeds if the proxy is ready: it shows problems of peers, but only with `--wait` do they make it fail.

mod json;
mod table;
pub mod wait;

use std::time::Duration;

use clap::ValueEnum;
use serde_json::Value;
use time::OffsetDateTime;

use super::{Ending, block_on, terminal};
use crate::admin::document::StatusDocument;
use crate::config::duration;

pub use super::fetch::address;

/// Checks a duration of the command line.
pub fn timeout(text: &str) -> Result<Duration, String> {
    duration::parse(text).ok_or_else(|| "no duration such as 90s or 5m".to_owned())
}

/// Output of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    Table,
    // The document as the proxy wrote it, indented; fields that this version does not know included.
    Json,
}

/// The document as the proxy wrote it, or one line that says why there is none.
fn fetch(admin: &str) -> Result<Value, String> {
    let document = async {
        super::fetch::status(admin)
            .await
            .map_err(|it| it.to_string())
    };
    block_on(document).map_err(|error| format!("{admin}: {error}"))
}

/// Shows the status of the proxy whose admin port is at `admin`, an [`address`].
pub fn run(admin: &str, format: OutputFormat) -> Ending {
    let shown = fetch(admin).and_then(|document| {
        let status = StatusDocument::read(&document);
        let now = OffsetDateTime::now_utc();
        let text = match format {
            OutputFormat::Table => table::page(&status, now, terminal::width()),
            OutputFormat::Json => json::indented(&document),
        };
        terminal::say(&text)?;
        Ok(status.server.ready)
    });
    Ending::of(shown)
}
