//! The status document as tables for a terminal. Pure.
//!
//! A proxy of another version may not have written some fields: an empty text or list is shown as unknown.

mod certificates;
mod differences;

use time::OffsetDateTime;

use super::super::text::{Table, fields, plain, span};
use super::wait;
use crate::admin::document::{EtcdStatus, PeerStatus, ServerStatus, StatusDocument};

/// This server, its peers, where they differ, and certificates that need attention. `width`: of the terminal, if it is one.
pub(super) fn page(status: &StatusDocument, now: OffsetDateTime, width: Option<usize>) -> String {
    let mut page = this_server(status);
    let sections = [
        peers(status, width),
        differences::section(status, width),
        certificates::section(&status.certificates, now, width),
    ];
    for section in sections.into_iter().flatten() {
        page.push('\n');
        page.push_str(&section);
    }
    page
}

fn this_server(status: &StatusDocument) -> String {
    let server = &status.server;
    let id = server.id.as_deref().unwrap_or_default();
    let state = if server.ready { "ready" } else { "NOT READY" };
    let mut lines = vec![
        ("Server", text(id, "has no ID yet")),
        ("Endpoint", text(&server.endpoint, "-")),
        ("Version", versions(server)),
        ("State", state.to_owned()),
    ];
    if !server.ready {
        lines.extend(server.missing.iter().map(|it| ("", text(it, "?"))));
    }
    lines.push(("etcd", etcd(&status.etcd)));
    let not_followed = status.not_followed();
    if !not_followed.is_empty() {
        let forbidden = format!("etcd's role does not permit to read {not_followed}");
        lines.push(("Forbidden", forbidden));
    }
    if let Some(what) = wait::only_here(status) {
        let refused = format!("{what}: would be answered 503 if this server stopped");
        lines.push(("Only here", refused));
    }
    let problems = status.config.problems.iter().map(|it| text(it, "?"));
    lines.extend(problems.map(|it| ("Config", format!("the file cannot be used: {it}"))));
    let changes = status.config.needs_restart.iter().map(|it| text(it, "?"));
    lines.extend(changes.map(|it| ("Config", format!("at the next start, {it}"))));
    let twice = |it| format!("{}: a second proxy claims this server ID", text(it, "?"));
    lines.extend(status.claims().map(|it| ("Duplicate", twice(it))));
    fields(10, &lines)
}

fn versions(server: &ServerStatus) -> String {
    let proxy = text(&server.version, "unknown");
    let apiserver = server.compatibility_version.as_deref();
    let apiserver = apiserver.map_or_else(|| "unknown".to_owned(), plain);
    format!("{proxy}, apiserver {apiserver}")
}

fn etcd(etcd: &EtcdStatus) -> String {
    if !etcd.synced {
        return "was never read completely since start".to_owned();
    }
    let mut parts = vec!["read".to_owned()];
    parts.extend(etcd.revision.map(|it| format!("revision {it}")));
    let heard = |age| format!("last heard of {} ago", span(age));
    parts.extend(etcd.age_seconds.map(heard));
    if etcd.undecodable > 0 {
        parts.push(format!("values that cannot be read: {}", etcd.undecodable));
    }
    parts.join(", ")
}

fn peers(status: &StatusDocument, width: Option<usize>) -> Option<String> {
    let mut table = Table::new(["PEER", "ENDPOINT", "VERSION", "STATE"]);
    for peer in &status.peers {
        table.row([
            text(&peer.id, "?"),
            text(&peer.endpoint, "-"),
            peer_version(peer),
            state(peer),
        ]);
    }
    Some(match table.is_empty() {
        true => "No other server is known.\n".to_owned(),
        false => table.lines(width),
    })
}

/// The version of the binary, and the one that it emulates if they differ.
fn peer_version(peer: &PeerStatus) -> String {
    let binary = peer.binary_version.as_deref();
    match (binary, peer.compatibility_version.as_deref()) {
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

fn state(peer: &PeerStatus) -> String {
    let mut words = vec![if !peer.live {
        "gone"
    } else if !peer.initialized {
        "starting"
    } else if !peer.target {
        "another one is at its address"
    } else if !peer.ready {
        "not ready, asked last"
    } else if peer.unhealthy {
        "unhealthy, asked last"
    } else {
        "serving"
    }];
    if peer.live && peer.known == Some(false) {
        words.push("what it serves is not known");
    }
    if peer.native {
        words.push("without a proxy");
    }
    if peer.bare {
        words.push("bare: without a proxy");
    }
    words.join(", ")
}

/// `unknown` where the proxy did not write the text.
fn text(text: &str, unknown: &str) -> String {
    match text {
        "" => unknown.to_owned(),
        text => plain(text),
    }
}

#[cfg(test)]
mod tests;
