//! `status`: shows the status document of a running proxy as tables or as JSON.
//!
//! `fetch` gets the document from the admin port, `table` prints it, and [`wait`] asks again and again. The command
//! succeeds if the proxy is ready: it shows problems of peers, but only with `--wait` do they make it fail.

mod table;
pub mod wait;

use std::time::Duration;

use clap::ValueEnum;
use serde_json::Value;
use time::OffsetDateTime;

use super::{block_on, terminal};
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

/// The document as the proxy wrote it and as it is read, or one line that says why there is none.
async fn fetch(admin: &str) -> Result<(Value, StatusDocument), String> {
    let fetched = super::fetch::status(admin).await;
    fetched.map_err(|error| format!("{admin}: {error}"))
}

/// Shows the status of the proxy whose admin port is at `admin`, an [`address`]. Returns whether it is ready.
pub fn run(admin: &str, format: OutputFormat) -> Result<bool, String> {
    let (document, status) = block_on(fetch(admin))?;
    terminal::say(&match format {
        OutputFormat::Table => table::page(&status, OffsetDateTime::now_utc()),
        OutputFormat::Json => indented(&document),
    })?;
    Ok(status.server.ready)
}

/// Indented JSON. Everything but ASCII is escaped, which is the same JSON: text may hold what steers a terminal.
fn indented(status: &Value) -> String {
    let escaped = |c: char| {
        let units = c.encode_utf16(&mut [0; 2]).to_vec();
        let units = units.iter().map(|unit| format!("\\u{unit:04x}"));
        units.collect::<String>()
    };
    let text = format!("{status:#}\n");
    let chars = text.chars().map(|c| match c.is_ascii() && c != '\u{7f}' {
        true => c.to_string(),
        false => escaped(c),
    });
    chars.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_the_same_json_and_steers_no_terminal() {
        let status =
            json!({"server": {"id": "\u{1b}[2J\u{9b}31m\u{7f}\u{202e}é😀", "ready": true}});
        let text = indented(&status);
        assert!(
            text.chars()
                .all(|c| c == '\n' || c == ' ' || c.is_ascii_graphic()),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), status);
    }
}
