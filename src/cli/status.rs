//! `status`: shows the status document of a running proxy as tables or as JSON.
//!
//! `fetch` gets the document from the admin port, `table` and `json` print it, and [`wait`] asks again and again. The
//! command succeeds if the proxy is ready: it shows problems of peers, but only with `--wait` do they make it fail.

mod fetch;
mod json;
mod table;
pub mod wait;

use std::time::Duration;

use time::OffsetDateTime;

use super::{Ending, terminal};
use crate::admin::document::StatusDocument;
use crate::config::duration;

pub use fetch::address;

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

/// Shows the status of the proxy whose admin port is at `admin`, an [`address`].
pub fn run(admin: &str, format: OutputFormat) -> Ending {
    let document = match fetch::fetch(admin) {
        Ok(document) => document,
        Err(error) => {
            terminal::complain(format_args!("{admin}: {error}"));
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
