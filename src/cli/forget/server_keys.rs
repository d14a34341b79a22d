//! The keys of one server in etcd, and whether its record may be deleted. Pure.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::super::text::{fields, plain, span};
use crate::cluster::codec;
use crate::cluster::json;
use crate::cluster::record::{LiveKey, Record};
use crate::cluster::source::EtcdItem;

/// Most servers, or group versions, that are named.
const MAX_NAMED: usize = 50;

const BECOMES: &str = "is answered 503 now, and 404 once this is forgotten; garbage collectors and namespace controllers \
                       believe a 404.";

/// All keys of one server ID, at one revision.
#[derive(Debug, Clone, Default)]
pub(super) struct ServerKeys {
    pub(super) record: Option<EtcdItem>,
    /// Exists while its proxy lives.
    pub(super) live: Option<EtcdItem>,
    /// Exists below `peerserverleases` while its apiserver lives; a proxy writes it too.
    pub(super) entry: Option<EtcdItem>,
    /// Addresses of proxies that claim this ID.
    pub(super) claims: Vec<String>,
}

/// Whether the server may be forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Liveness<'a> {
    /// Yes: only its record exists.
    RecordOnly(&'a EtcdItem),
    /// No, for this reason. The keys of a dead server expire after `peer.leaseTTL`.
    Live(String),
    /// It has no key.
    Unknown,
}

impl ServerKeys {
    pub(super) fn liveness(&self) -> Liveness<'_> {
        let shown = |address: Option<SocketAddr>| {
            address.map_or_else(|| "an unknown address".to_owned(), |at| at.to_string())
        };
        Liveness::Live(if let Some(live) = &self.live {
            let at = json::read::<LiveKey>(&live.value).map(|key| key.endpoint);
            let (at, revision) = (shown(at.ok()), live.mod_revision);
            format!("its proxy at {at} has a live key (revision {revision})")
        } else if let Some(entry) = &self.entry {
            let at = codec::endpoints(&entry.value).map(|value| value.address);
            let (at, revision) = (shown(at.ok()), entry.mod_revision);
            format!(
                "the apiserver at {at} has an entry below peerserverleases (revision {revision})"
            )
        } else if let Some(claim) = self.claims.first() {
            format!("a proxy at {} takes this ID for its own", plain(claim))
        } else {
            let record = self.record.as_ref();
            return record.map_or(Liveness::Unknown, Liveness::RecordOnly);
        })
    }
}

/// Describes a record to the operator who decides. `left`: the time until it expires, if etcd tells; `others`: records of
/// other servers that can be read.
pub(super) fn describe(
    id: &str,
    item: &EtcdItem,
    left: Option<Duration>,
    others: &[Record],
) -> String {
    let record = json::read::<Record>(&item.value);
    let mut lines = match &record {
        Ok(record) => {
            let groups = record.resources.len();
            let count: usize = record.resources.values().map(Vec::len).sum();
            let lists = format!("{count} resources in {groups} group versions");
            vec![
                ("  Endpoint", record.endpoint.to_string()),
                ("  Version", version(record)),
                ("  Lists", lists),
            ]
        }
        Err(error) => {
            let error = plain(&error.to_string());
            vec![("  Record", format!("cannot be read: {error}"))]
        }
    };
    lines.push(("  Written at", format!("revision {}", item.mod_revision)));
    let left = left.map(|left| span(left.as_secs_f64()));
    lines.extend(left.map(|left| ("  Forgotten", format!("by itself in {left}"))));
    let consequence = match record {
        Ok(record) => consequence(&only_listed_here(&record, others)),
        Err(_) => format!("What no other proxy lists {BECOMES}\n"),
    };
    let known = fields(14, &lines);
    format!("{} is gone. Known of it:\n{known}{consequence}", plain(id))
}

/// What clients will see. `only`: resources that no other server lists.
fn consequence(only: &Resources) -> String {
    if only.is_empty() {
        return "Other proxies list all of it, too.\n".to_owned();
    }
    let names = only.keys().take(MAX_NAMED).map(|name| plain(name));
    let groups = names.collect::<Vec<_>>().join(", ");
    let more = if only.len() > MAX_NAMED { ", ..." } else { "" };
    let count: usize = only.values().map(Vec::len).sum();
    format!("No other proxy lists {count} of them ({groups}{more}). What nobody lists {BECOMES}\n")
}

/// The resources of a record that no other record has.
fn only_listed_here(record: &Record, others: &[Record]) -> Resources {
    let mut only = record.resources.clone();
    for other in others {
        for (group_version, listed) in &other.resources {
            if let Some(left) = only.get_mut(group_version) {
                left.retain(|resource| !listed.contains(resource));
            }
        }
    }
    only.retain(|_, left| !left.is_empty());
    only
}

fn version(record: &Record) -> String {
    let binary = record.binary_version.as_deref().unwrap_or("unknown");
    match record.compatibility_version.as_deref() {
        Some(emulated) => format!("{} ({})", plain(binary), plain(emulated)),
        None => plain(binary),
    }
}

/// Resource names by group version.
type Resources = BTreeMap<String, Vec<String>>;

/// Servers that have a key in etcd, and whether they are live.
pub(super) type ServerLivenessById = BTreeMap<String, bool>;

/// Message for an ID without keys.
pub(super) fn unknown(id: &str, ids: &ServerLivenessById) -> String {
    let mut text = format!("{} is not known; ", plain(id));
    if ids.is_empty() {
        return text
            + "nor is any other server (is etcd.prefix what the apiserver's --etcd-prefix says?)";
    }
    let names = ids.iter().take(MAX_NAMED).map(|(id, lives)| {
        let state = if *lives { "lives" } else { "gone" };
        format!("{} ({state})", plain(id))
    });
    text.push_str("known are: ");
    text.push_str(&names.collect::<Vec<_>>().join(", "));
    if ids.len() > MAX_NAMED {
        text.push_str(&format!(" and {} more", ids.len() - MAX_NAMED));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"endpoint":"10.0.0.3:6443","binaryVersion":"v1.20.2\u001b[2J",
        "compatibilityVersion":"1.20","resources":{"v1":["pods","pods/log"],"apps/v1":["deployments"]}}"#;
    const LIVE: &str = r#"{"endpoint":"10.0.0.3:6443","initialized":true}"#;

    fn stored(value: &str) -> Option<EtcdItem> {
        Some(EtcdItem {
            key: "cp-3".to_owned(),
            value: value.into(),
            create_revision: 7,
            mod_revision: 42,
        })
    }

    fn record() -> ServerKeys {
        ServerKeys {
            record: stored(RECORD),
            ..ServerKeys::default()
        }
    }

    fn lives(known: &ServerKeys) -> String {
        match known.liveness() {
            Liveness::Live(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_record_alone_may_be_forgotten() {
        let known = record();
        let record = stored(RECORD).unwrap();
        assert_eq!(known.liveness(), Liveness::RecordOnly(&record));
        assert_eq!(ServerKeys::default().liveness(), Liveness::Unknown);
    }

    #[test]
    fn whoever_shows_a_sign_of_life_may_not() {
        for (value, named) in [(LIVE, "10.0.0.3:6443"), ("{\u{1b}", "unknown address")] {
            let why = lives(&ServerKeys {
                live: stored(value),
                ..record()
            });
            assert!(
                why.contains("live key (revision 42)") && why.contains(named),
                "{why}"
            );
        }
        let why = lives(&ServerKeys {
            entry: stored("k8s:enc:x"),
            ..ServerKeys::default()
        });
        assert!(why.contains("peerserverleases"), "{why}");
        let claims = vec!["10.0.0.9:6443\u{1b}".to_owned()];
        let why = lives(&ServerKeys { claims, ..record() });
        assert!(why.contains("10.0.0.9:6443\\u{1b}"), "{why}");
    }

    fn described(value: &str, others: &[&str]) -> String {
        let others: Vec<_> = others
            .iter()
            .filter_map(|value| json::read::<Record>(value.as_bytes()).ok())
            .collect();
        let left = Some(Duration::from_secs(1800));
        describe("cp-3", &stored(value).unwrap(), left, &others)
    }

    #[test]
    fn what_will_be_dropped_is_described_and_steers_no_terminal() {
        let text = described(RECORD, &[]);
        for part in [
            "cp-3 is gone",
            "10.0.0.3:6443",
            "v1.20.2\\u{1b}[2J (1.20)",
            "3 resources in 2 group versions",
            "revision 42",
            "by itself in 30 min",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = described("{\"endpoint\":\"\u{1b}[2J", &[]);
        assert!(
            text.contains("cannot be read") && text.contains("404"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn what_becomes_a_404_is_named() {
        let other =
            |resources: &str| format!(r#"{{"endpoint":"10.0.0.4:6443","resources":{resources}}}"#);
        let (pods, rest) = (
            other(r#"{"v1":["pods"]}"#),
            other(r#"{"v1":["pods/log"],"apps/v1":["deployments"]}"#),
        );
        let text = described(RECORD, &[&pods, "{broken"]);
        assert!(
            text.contains("No other proxy lists 2 of them (apps/v1, v1). What nobody lists is answered 503 now, and 404"),
            "{text}"
        );
        let text = described(RECORD, &[&pods, &rest]);
        assert!(
            text.contains("Other proxies list all of it, too.") && !text.contains("404"),
            "{text}"
        );
    }

    #[test]
    fn an_unknown_id_is_answered_with_those_that_are_known() {
        let mut ids: ServerLivenessById =
            [("cp-1".to_owned(), true), ("cp-2\u{7}".to_owned(), false)].into();
        let text = unknown("cp-9", &ids);
        assert_eq!(
            text,
            "cp-9 is not known; known are: cp-1 (lives), cp-2\\u{7} (gone)"
        );
        ids.extend((0..60).map(|number| (format!("x{number:02}"), false)));
        assert!(unknown("cp-9", &ids).ends_with("and 12 more"));
        assert!(unknown("cp-9", &ServerLivenessById::new()).contains("etcd.prefix"));
    }
}
