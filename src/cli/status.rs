//! `status`: shows the status document of a running proxy as tables or as JSON.
//!
//! `fetch` gets the document from the admin port, `table` prints it, and `wait` asks again and again. The command
//! succeeds if the proxy is ready: it shows problems of peers, but only with `--wait` do they make it fail.

mod table;
mod wait;

use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::Value;
use time::OffsetDateTime;

use super::fetch::address;
use super::{block_on, terminal};
use crate::admin::document::StatusDocument;
use crate::config::duration;

#[derive(Args)]
pub struct StatusArguments {
    /// Its admin port (admin.bindAddress).
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6450", value_parser = address)]
    admin: String,
    /// What to show.
    #[arg(short, long, value_enum, default_value_t = OutputFormat::Table)]
    output: OutputFormat,
    /// Show nothing, but wait until this server and --peers others serve, everything is known of them, and nothing
    /// has to be refused: then the next node may be stopped.
    #[arg(long, conflicts_with = "output")]
    wait: bool,
    /// How many other servers there must be, at least; by default all that are known.
    #[arg(long, value_name = "N", requires = "wait")]
    peers: Option<usize>,
    /// How long to wait before exiting with 1.
    #[arg(long, value_name = "DURATION", requires = "wait", default_value = "5m", value_parser = timeout)]
    timeout: Duration,
}

/// Checks a duration of the command line.
pub fn timeout(text: &str) -> Result<Duration, &'static str> {
    duration::parse(text).ok_or("no duration such as 90s or 5m")
}

/// Output of the command.
#[derive(Clone, Copy, ValueEnum)]
enum OutputFormat {
    Table,
    // The document as the proxy wrote it, indented; fields that this version does not know included.
    Json,
}

/// The document as the proxy wrote it and as it is read, or one line that says why there is none.
async fn fetch(admin: &str) -> Result<(Value, StatusDocument), String> {
    let fetched = super::fetch::status(admin).await;
    fetched.map_err(|error| format!("{admin}: {error}"))
}

/// Shows the status of a proxy, or waits. Returns whether it is ready.
pub fn run(arguments: &StatusArguments) -> Result<bool, String> {
    let admin = &arguments.admin;
    if arguments.wait {
        return wait::run(admin, arguments.peers, arguments.timeout);
    }
    let (document, status) = block_on(fetch(admin))?;
    terminal::say(&match arguments.output {
        OutputFormat::Table => table::page(&status, OffsetDateTime::now_utc()),
        OutputFormat::Json => indented(&document),
    })?;
    Ok(status.server.ready)
}

/// Indented JSON. Everything but ASCII is escaped, which is the same JSON: text may hold what steers a terminal.
fn indented(status: &Value) -> String {
    let text = format!("{status:#}\n");
    let units = text.encode_utf16().map(|unit| match u8::try_from(unit) {
        Ok(byte @ ..0x7f) => char::from(byte).to_string(),
        _ => format!("\\u{unit:04x}"),
    });
    units.collect()
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
