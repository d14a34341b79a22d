//! The status document as tables for a terminal. Pure.

use std::collections::{BTreeMap, BTreeSet};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::wait;
use crate::admin::document::{
    CertificatesStatus, EtcdStatus, PeerStatus, StatusDocument, WindowStatus, peer_state,
};
use crate::cli::text::{fields, plain, plain_list, span, table};
use crate::config::joined;
use crate::kube::gvr::api_version;

/// A certificate that expires sooner is shown: the log warns at the same time.
const DAYS: i64 = 30;

/// This server, its peers, where they differ, and certificates that need attention.
pub(super) fn page(status: &StatusDocument, now: OffsetDateTime) -> String {
    let sections = [
        Some(this_server(status)),
        Some(peers(status)),
        differences(status),
        certificates(&status.certificates, now),
    ];
    joined(sections.into_iter().flatten(), "\n")
}

fn this_server(status: &StatusDocument) -> String {
    let server = &status.server;
    let id = server.id.as_deref().unwrap_or("has no ID yet");
    let state = if server.ready { "ready" } else { "NOT READY" };
    let apiserver = plain(server.compatibility_version.as_deref().unwrap_or("unknown"));
    let versions = format!("{}, apiserver {apiserver}", plain(&server.version));
    let mut lines = vec![
        ("Server", plain(id)),
        ("Endpoint", plain(&server.endpoint)),
        ("Version", versions),
        ("State", state.to_owned()),
    ];
    if !server.ready {
        lines.extend(server.missing.iter().map(|it| ("", plain(it))));
    }
    lines.push(("etcd", etcd(&status.etcd)));
    let forbidden = plain(&status.not_followed());
    if !forbidden.is_empty() {
        let forbidden = format!("etcd's role does not permit reading {forbidden}");
        lines.push(("Forbidden", forbidden));
    }
    lines.extend(status.window.iter().map(|it| ("Mixed", window(it))));
    if let Some(what) = wait::only_here(status) {
        let refused = format!("{what}: would be answered 503 if this server stopped");
        lines.push(("Only here", refused));
    }
    let problems = status.config.problems.iter().map(|it| plain(it));
    lines.extend(problems.map(|it| ("Config", format!("the file cannot be used: {it}"))));
    let changes = status.config.needs_restart.iter().map(|it| plain(it));
    lines.extend(changes.map(|it| ("Config", format!("at the next start, {it}"))));
    let twice = |it| format!("{}: a second proxy claims this server ID", plain(it));
    lines.extend(status.claims().map(|it| ("Duplicate", twice(it))));
    fields(10, &lines)
}

/// Versions that differ, and what that means for requests.
fn window(window: &WindowStatus) -> String {
    let versions = joined(window.versions.iter().map(|it| plain(it)), " and ");
    let to = match &*window.policy {
        "Oldest" => "all to the oldest",
        "Newest" => "all to the newest",
        _ => {
            "each to its own server: writes through an older one drop fields that it does not know"
        }
    };
    let since = window.since.as_deref().unwrap_or("unknown");
    let left = match window.left {
        0 => String::new(),
        left => format!("; requests that stayed nevertheless: {left}"),
    };
    format!("{versions}, since {}, {to}{left}", plain(since))
}

fn etcd(etcd: &EtcdStatus) -> String {
    if !etcd.synced {
        return "was never read completely since start".to_owned();
    }
    let (revision, age) = (etcd.revision, span(etcd.age_seconds));
    let mut text = format!("read, revision {revision}, last answer {age} ago");
    if etcd.undecodable > 0 {
        text += &format!(", values that cannot be read: {}", etcd.undecodable);
    }
    text
}

fn peers(status: &StatusDocument) -> String {
    let rows = status.peers.iter().map(|peer| {
        let (id, endpoint) = (plain(&peer.id), plain(&peer.endpoint));
        [id, endpoint, peer_version(peer), state(peer)]
    });
    let alone = || "No other server is known.\n".to_owned();
    table(["PEER", "ENDPOINT", "VERSION", "STATE"], rows).unwrap_or_else(alone)
}

/// The version of the binary, and the one that it emulates if they differ.
fn peer_version(peer: &PeerStatus) -> String {
    let is_of = |binary: &str, version: &str| {
        let minor = binary.trim_start_matches('v').strip_prefix(version);
        minor.is_some_and(|patch| patch.starts_with('.'))
    };
    let binary = peer.binary_version.as_deref();
    match (binary, peer.compatibility_version.as_deref()) {
        (None, None) => "-".to_owned(),
        (Some(one), None) | (None, Some(one)) => plain(one),
        (Some(binary), Some(emulated)) if is_of(binary, emulated) => plain(binary),
        (Some(binary), Some(emulated)) => format!("{} as {}", plain(binary), plain(emulated)),
    }
}

/// The state as metrics name it, and what is to be said of it.
fn state(peer: &PeerStatus) -> String {
    let state = peer_state(peer.live, peer.bare, peer.target);
    let mut notes = Vec::new();
    if peer.live {
        notes.extend(match peer {
            _ if !peer.initialized => Some("not initialized"),
            _ if !peer.target => Some("another server has its address"),
            _ if !peer.ready => Some("not ready, asked last"),
            _ if peer.unhealthy => Some("unhealthy, asked last"),
            _ => None,
        });
        notes.extend((!peer.known).then_some("resources not current"));
    }
    notes.extend(peer.native.then_some("native mixed version proxy"));
    notes.extend(peer.bare.then_some("without a proxy"));
    match notes.is_empty() {
        true => state.to_owned(),
        false => format!("{state}: {}", notes.join(", ")),
    }
}

/// Resources that some servers serve and others do not: one line for each group version and each set of servers that serve
/// something of it. Only servers whose resources are known are compared.
fn differences(status: &StatusDocument) -> Option<String> {
    let server = &status.server;
    let own_id = server.id.as_deref().unwrap_or("this");
    let own = Some(own_id).filter(|_| server.discovery_known);
    let compared = |peer: &&PeerStatus| peer.target && peer.known;
    let peers = status.peers.iter().filter(compared);
    let peers = peers.map(|peer| peer.id.as_str());
    let servers: BTreeSet<_> = peers.chain(own).collect();
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for resource in &status.resources {
        let with = resource.peers.iter().map(String::as_str);
        let with: BTreeSet<_> = with.chain(own.filter(|_| resource.local)).collect();
        let without: BTreeSet<_> = servers.difference(&with).copied().collect();
        if with.is_empty() || !without.is_empty() {
            let group_version = api_version(&plain(&resource.group), &plain(&resource.version));
            *counts.entry((group_version, with, without)).or_default() += 1;
        }
    }
    let rows = counts.into_iter();
    let rows = rows.map(|((group_version, with, without), count)| {
        let with = match with.is_empty() {
            true => "none that can be asked".to_owned(),
            false => plain_list(with),
        };
        [group_version, count.to_string(), with, plain_list(without)]
    });
    // Without another server there is nothing to compare.
    let compared = own.is_some() && servers.len() > 1;
    let same = || compared.then(|| "All servers that can be asked serve the same.\n".to_owned());
    table(["DIFFERENCE", "RESOURCES", "SERVED BY", "NOT BY"], rows).or_else(same)
}

/// Certificates that expire soon or have expired, and new files that cannot be used.
fn certificates(certificates: &CertificatesStatus, now: OffsetDateTime) -> Option<String> {
    let unused = "its new files cannot be used, the previous ones stay in use";
    let broken = certificates.broken.iter();
    let broken = broken.map(|files| [plain(files), unused.to_owned()]);
    let expire = certificates.expire.iter();
    let expire =
        expire.filter_map(|(file, end)| Some([plain(file), expiry(end.as_deref()?, now)?]));
    table(["CERTIFICATE", "STATE"], broken.chain(expire))
}

/// `None` if it expires late enough.
fn expiry(end: &str, now: OffsetDateTime) -> Option<String> {
    let left = OffsetDateTime::parse(end, &Rfc3339).ok()? - now;
    let distance = span(left.unsigned_abs().as_secs_f64());
    match left.is_positive() {
        true if left.whole_days() >= DAYS => None,
        true => Some(format!("expires in {distance}, {end}")),
        false => Some(format!("EXPIRED {distance} ago, {end}")),
    }
}

#[cfg(test)]
mod tests;
