//! The answer as a page of tables for a terminal. Pure.
//!
//! It is read field by field: a proxy of another version may lack some, or have other ones in their place.

mod certificates;
mod differences;

use serde_json::Value;
use time::OffsetDateTime;

use super::super::text::{Table, plain, span};

/// This server, its peers, where they differ, and certificates that need somebody. `width`: of the terminal, if it is one.
pub(super) fn page(status: &Value, now: OffsetDateTime, width: Option<usize>) -> String {
    let mut page = this_server(status);
    let sections = [
        peers(status, width),
        differences::section(status, width),
        certificates::section(status, now, width),
    ];
    for section in sections.into_iter().flatten() {
        page.push('\n');
        page.push_str(&section);
    }
    page
}

fn this_server(status: &Value) -> String {
    let server = &status["server"];
    let mut lines = String::new();
    let mut line = |name: &str, value: &str| {
        lines.push_str(format!("{name:<10}{value}").trim_end());
        lines.push('\n');
    };
    line("Server", &text(&server["id"], "has no ID yet"));
    line("Endpoint", &text(&server["endpoint"], "-"));
    line("Version", &versions(server));
    if server["ready"] == true {
        line("State", "ready");
    } else {
        line("State", "NOT READY");
        for missing in list(&server["missing"]) {
            line("", &text(missing, "?"));
        }
    }
    line("etcd", &etcd(&status["etcd"]));
    for claim in list(&status["facts"]["claims"]) {
        let claim = text(claim, "?");
        line(
            "Duplicate",
            &format!("{claim}: a second proxy claims this server ID"),
        );
    }
    lines
}

fn versions(server: &Value) -> String {
    let proxy = text(&server["version"], "unknown");
    match server["compatibilityVersion"].as_str() {
        Some(version) => format!("{proxy}, apiserver {}", plain(version)),
        None => format!("{proxy}, apiserver unknown"),
    }
}

fn etcd(etcd: &Value) -> String {
    if etcd["synced"] != true {
        return "was never read completely since start".to_owned();
    }
    let mut line = "read".to_owned();
    if let Some(revision) = etcd["revision"].as_i64() {
        line.push_str(&format!(", revision {revision}"));
    }
    if let Some(age) = etcd["ageSeconds"].as_f64() {
        line.push_str(&format!(", last heard of {} ago", span(age)));
    }
    match etcd["undecodable"].as_u64() {
        None | Some(0) => {}
        Some(count) => line.push_str(&format!(", values that cannot be read: {count}")),
    }
    line
}

fn peers(status: &Value, width: Option<usize>) -> Option<String> {
    let mut table = Table::new(["PEER", "ENDPOINT", "VERSION", "STATE"]);
    for peer in list(&status["peers"]) {
        table.row([
            text(&peer["id"], "?"),
            text(&peer["endpoint"], "-"),
            peer_version(peer),
            state(peer),
        ]);
    }
    Some(match table.is_empty() {
        true => "No other server is known.\n".to_owned(),
        false => table.lines(width),
    })
}

/// The binary's, and the one that it emulates where that is another.
fn peer_version(peer: &Value) -> String {
    let binary = peer["binaryVersion"].as_str();
    match (binary, peer["compatibilityVersion"].as_str()) {
        (None, None) => "-".to_owned(),
        (Some(one), None) | (None, Some(one)) => plain(one),
        (Some(binary), Some(emulated)) => {
            let rest = binary.trim_start_matches('v').strip_prefix(emulated);
            match rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit())) {
                true => plain(binary),
                false => format!("{} as {}", plain(binary), plain(emulated)),
            }
        }
    }
}

fn state(peer: &Value) -> String {
    let is = |name: &str| peer[name] == true;
    let mut words = vec![if !is("live") {
        "gone"
    } else if !is("initialized") {
        "starting"
    } else if !is("target") {
        "another one is at its address"
    } else if is("unhealthy") {
        "unhealthy, asked last"
    } else {
        "serving"
    }];
    if is("live") && peer["known"] == false {
        words.push("what it serves is not known");
    }
    if is("native") {
        words.push("without a proxy");
    }
    words.join(", ")
}

/// What is in a list; nothing where there is none.
fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value, without: &str) -> String {
    match value.as_str() {
        Some(text) => plain(text),
        None => without.to_owned(),
    }
}

#[cfg(test)]
mod tests;
