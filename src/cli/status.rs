//! `status`: shows the status document of a running proxy as tables or as JSON.
//!
//! [`super::fetch`] gets the document from the admin port, `table` and `json` print it, and [`wait`] asks again and again. The
//! command succeeds if the proxy is ready: it shows problems of peers, but only with `--wait` do they make it fail.

mod json;
mod table;
pub mod wait;

use std::time::Duration;

use serde_json::Value;
use time::OffsetDateTime;

use super::{Ending, terminal};
use crate::admin::document::StatusDocument;
use crate::config::duration;

pub use super::fetch::address;

/// Checks a duration of the command line.
pub fn timeout(text: &str) -> Result<Duration, String> {
    duration::parse(text).map_err(|error| format!("no duration such as 90s or 5m: {error}"))
}

/// Output of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputFormat {
    Table,
    /// The document as the proxy wrote it, indented; fields that this version does not know included.
    Json,
}

/// The document as the proxy wrote it, or one line that says why there is none.
fn fetch(admin: &str) -> Result<Value, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    let document = runtime.block_on(super::fetch::status(admin));
    // Does not wait for a DNS lookup that still runs.
    runtime.shutdown_background();
    document.map_err(|error| format!("{admin}: {error}"))
}

/// Shows the status of the proxy whose admin port is at `admin`, an [`address`].
pub fn run(admin: &str, format: OutputFormat) -> Ending {
    let document = match fetch(admin) {
        Ok(document) => document,
        Err(error) => {
            terminal::complain(error);
            return Ending::Bad;
        }
    };
    let status = StatusDocument::read(&document);
    let text = match format {
        OutputFormat::Table => table::page(&status, OffsetDateTime::now_utc(), terminal::width()),
        OutputFormat::Json => json::indented(&document),
    };
    match terminal::say(&text) {
        Ok(()) if status.server.ready => Ending::Good,
        Ok(()) => Ending::Bad,
        Err(error) => {
            terminal::complain(format_args!("cannot write: {error}"));
            Ending::Bad
        }
    }
}
