//! `status`: what a running proxy says of itself on its admin port, as a table or as JSON.
//!
//! `ask` asks, `table` and `json` make text of the answer. The command ends well if the proxy is ready: what is
//! wrong with peers is shown, but no fault of this one.

mod ask;
mod json;
mod table;

use serde_json::Value;
use time::OffsetDateTime;

use super::{Ending, terminal};

pub use ask::address;

/// What is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Table,
    /// The proxy's answer as it came, indented.
    Json,
}

/// Asks the proxy whose admin port is at `admin`, as [`address`] allows it.
pub fn run(admin: &str, form: Form) -> Ending {
    let status = match ask::ask(admin) {
        Ok(status) => status,
        Err(error) => {
            terminal::complain(format_args!("{admin}: {error}"));
            return Ending::Bad;
        }
    };
    let text = match form {
        Form::Table => table::page(&status, OffsetDateTime::now_utc(), terminal::width()),
        Form::Json => json::indented(&status),
    };
    match terminal::say(&text) {
        Ok(()) if is_ready(&status) => Ending::Good,
        Ok(()) => Ending::Bad,
        Err(error) => {
            terminal::complain(format_args!("cannot write: {error}"));
            Ending::Bad
        }
    }
}

fn is_ready(status: &Value) -> bool {
    status["server"]["ready"] == true
}
