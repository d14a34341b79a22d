//! What the next line of a watch says, or its end. Pure.

use std::time::Duration;

use serde_json::Value;
use testkit::ledger::{Event, What};
use tokio::time::error::Elapsed;

/// An apiserver ends a watch cleanly when its own timeout is over, after 30 to 60 minutes.
const OWN_TIMEOUT: Duration = Duration::from_secs(30 * 60);
/// Of a line that is named.
const SHOWN: usize = 200;

#[derive(Debug)]
pub enum Heard {
    Event(Event),
    Bookmark(i64),
    /// Only a list helps.
    Expired,
    /// Nothing came in time.
    Silence,
    CleanEnd,
    /// An ERROR event, or a body that broke off.
    Broken(String),
    /// A complete line that is no event.
    Garbage(String),
}

pub fn heard(line: anyhow::Result<Option<String>>) -> Heard {
    match line {
        Ok(Some(line)) => frame(&line),
        Ok(None) => Heard::CleanEnd,
        Err(error) if error.is::<Elapsed>() => Heard::Silence,
        Err(error) => Heard::Broken(format!("{error:#}")),
    }
}

fn frame(line: &str) -> Heard {
    let garbage = || Heard::Garbage(line.chars().take(SHOWN).collect());
    let Ok(event) = serde_json::from_str::<Value>(line) else {
        return garbage();
    };
    let object = &event["object"];
    let what = match event["type"].as_str() {
        Some("ADDED" | "MODIFIED") => What::Applied,
        Some("DELETED") => What::Deleted,
        Some("BOOKMARK") => return revision(object).map_or_else(garbage, Heard::Bookmark),
        Some("ERROR") if object["code"] == 410 => return Heard::Expired,
        Some("ERROR") => return Heard::Broken(format!("an ERROR event: {object}")),
        _ => return garbage(),
    };
    let (Some(revision), Some(object)) = (revision(object), name(object)) else {
        return garbage();
    };
    Heard::Event(Event {
        revision,
        object,
        what,
    })
}

/// Whether the apiserver's own timeout can be why a watch ended cleanly.
pub fn may_end(lasted: Duration) -> bool {
    lasted >= OWN_TIMEOUT
}

/// Namespace and name.
pub fn name(object: &Value) -> Option<String> {
    let text = |field: &str| object["metadata"][field].as_str();
    Some(format!("{}/{}", text("namespace")?, text("name")?))
}

pub fn revision(object: &Value) -> Option<i64> {
    let revision = object["metadata"]["resourceVersion"].as_str()?;
    revision.parse().ok()
}

#[cfg(test)]
mod tests;
