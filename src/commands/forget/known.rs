//! What etcd says of one server, and whether that may be forgotten. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::text::{plain, span};
use crate::cluster::codec;
use crate::cluster::json;
use crate::cluster::record::{Live, Record};

/// So many known servers, and group versions, are named.
const NAMED: usize = 50;

const BECOMES: &str = "is answered 503 now, and 404 once this is forgotten; garbage collectors and namespace controllers \
                       believe a 404.";

/// A key's value and the revision that wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) value: Vec<u8>,
    pub(super) revision: i64,
    /// Its lease in etcd; 0: none.
    pub(super) lease: i64,
    /// How long it stays if nobody writes it anew, where etcd tells.
    pub(super) left: Option<Duration>,
}

/// Everything about one server ID, of one revision.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    /// What its proxy told of it.
    pub(super) record: Option<Stored>,
    /// That its proxy lives.
    pub(super) live: Option<Stored>,
    /// That its apiserver lives, in `peerserverleases`; a proxy writes that too.
    pub(super) entry: Option<Stored>,
    /// Addresses of proxies that want this ID, as their keys name them.
    pub(super) claims: Vec<String>,
}

/// Whether it may be forgotten.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing<'a> {
    /// Yes: nothing but its record is left.
    Gone(&'a Stored),
    /// No, or not yet: what says so is gone `peer.leaseTTL` after its death.
    Lives(String),
    /// There is nothing to forget.
    Unknown,
}

impl Known {
    /// What all of it means.
    pub(super) fn standing(&self) -> Standing<'_> {
        if let Some(live) = &self.live {
            let at = json::read::<Live>(&live.value).map(|live| live.endpoint);
            let at = at.map_or_else(|_| "an unknown address".to_owned(), |at| at.to_string());
            return Standing::Lives(format!(
                "its proxy at {at} has a live key (revision {})",
                live.revision
            ));
        }
        if let Some(entry) = &self.entry {
            let at = codec::endpoints(&entry.value).map(|entry| entry.address);
            let at = at.map_or_else(|_| "an unknown address".to_owned(), |at| at.to_string());
            return Standing::Lives(format!(
                "the apiserver at {at} has an entry below peerserverleases (revision {})",
                entry.revision
            ));
        }
        if let Some(claim) = self.claims.first() {
            return Standing::Lives(format!(
                "a proxy at {} takes this ID for its own",
                plain(claim)
            ));
        }
        self.record
            .as_ref()
            .map_or(Standing::Unknown, Standing::Gone)
    }
}

impl Stored {
    /// A record, for somebody who is asked whether to drop it. `others`: the records of all other servers.
    pub(super) fn describe(&self, id: &str, others: &[Vec<u8>]) -> String {
        let mut lines = format!("{} is gone. Known of it:\n", plain(id));
        let mut line = |name: &str, value: String| {
            lines.push_str(&format!("  {name:<12}{value}\n"));
        };
        let read = json::read::<Record>(&self.value);
        match &read {
            Ok(record) => {
                line("Endpoint", record.endpoint.to_string());
                line("Version", version(record));
                line("Lists", resources(&record.resources));
            }
            Err(error) => line(
                "Record",
                format!("cannot be read: {}", plain(&error.to_string())),
            ),
        }
        line("Written at", format!("revision {}", self.revision));
        if let Some(left) = self.left {
            line(
                "Forgotten",
                format!("by itself in {}", span(left.as_secs_f64())),
            );
        }
        lines.push_str(&match read {
            Ok(record) => consequence(&listed_by_nobody_else(&record, others)),
            Err(_) => format!("What no other proxy lists {BECOMES}\n"),
        });
        lines
    }
}

/// What the clients will see. `only`: what nobody else lists.
fn consequence(only: &Resources) -> String {
    if only.is_empty() {
        return "Other proxies list all of it, too.\n".to_owned();
    }
    let groups = only
        .keys()
        .take(NAMED)
        .map(|group_version| plain(group_version));
    let groups = groups.collect::<Vec<_>>().join(", ");
    let more = if only.len() > NAMED { ", ..." } else { "" };
    format!(
        "No other proxy lists {} of them ({groups}{more}). What nobody lists {BECOMES}\n",
        only.values().map(Vec::len).sum::<usize>()
    )
}

/// What of a record is in no other one.
fn listed_by_nobody_else(record: &Record, others: &[Vec<u8>]) -> Resources {
    let mut only = record.resources.clone();
    for other in others
        .iter()
        .filter_map(|value| json::read::<Record>(value).ok())
    {
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

/// Names by group version, as records have them.
type Resources = BTreeMap<String, Vec<String>>;

fn resources(packed: &Resources) -> String {
    let count: usize = packed.values().map(Vec::len).sum();
    format!("{count} resources in {} group versions", packed.len())
}

/// A server that something in etcd names, and whether it lives.
pub(super) type Ids = BTreeMap<String, bool>;

/// What to say of an ID of which nothing is known.
pub(super) fn unknown(id: &str, ids: &Ids) -> String {
    let mut text = format!("{} is not known; ", plain(id));
    if ids.is_empty() {
        return text
            + "nor is any other server (is etcd.prefix what the apiserver's --etcd-prefix says?)";
    }
    let names = ids.iter().take(NAMED).map(|(id, lives)| {
        let state = if *lives { "lives" } else { "gone" };
        format!("{} ({state})", plain(id))
    });
    text.push_str("known are: ");
    text.push_str(&names.collect::<Vec<_>>().join(", "));
    if ids.len() > NAMED {
        text.push_str(&format!(" and {} more", ids.len() - NAMED));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = r#"{"endpoint":"10.0.0.3:6443","binaryVersion":"v1.20.2\u001b[2J",
        "compatibilityVersion":"1.20","resources":{"v1":["pods","pods/log"],"apps/v1":["deployments"]}}"#;
    const LIVE: &str = r#"{"endpoint":"10.0.0.3:6443","initialized":true}"#;

    fn stored(value: &str) -> Option<Stored> {
        Some(Stored {
            value: value.into(),
            revision: 42,
            lease: 7,
            left: Some(Duration::from_secs(1800)),
        })
    }

    fn record() -> Known {
        Known {
            record: stored(RECORD),
            ..Known::default()
        }
    }

    fn lives(known: &Known) -> String {
        match known.standing() {
            Standing::Lives(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_record_alone_may_be_forgotten() {
        let known = record();
        let record = stored(RECORD).unwrap();
        assert_eq!(known.standing(), Standing::Gone(&record));
        assert_eq!(Known::default().standing(), Standing::Unknown);
    }

    #[test]
    fn whoever_shows_a_sign_of_life_may_not() {
        for (value, named) in [(LIVE, "10.0.0.3:6443"), ("{\u{1b}", "unknown address")] {
            let why = lives(&Known {
                live: stored(value),
                ..record()
            });
            assert!(
                why.contains("live key (revision 42)") && why.contains(named),
                "{why}"
            );
        }
        let why = lives(&Known {
            entry: stored("k8s:enc:x"),
            ..Known::default()
        });
        assert!(why.contains("peerserverleases"), "{why}");
        let claims = vec!["10.0.0.9:6443\u{1b}".to_owned()];
        let why = lives(&Known { claims, ..record() });
        assert!(why.contains("10.0.0.9:6443\\u{1b}"), "{why}");
    }

    fn described(value: &str, others: &[&str]) -> String {
        let others: Vec<_> = others
            .iter()
            .map(|value| value.as_bytes().to_vec())
            .collect();
        stored(value).unwrap().describe("cp-3", &others)
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
        let mut ids: Ids = [("cp-1".to_owned(), true), ("cp-2\u{7}".to_owned(), false)].into();
        let text = unknown("cp-9", &ids);
        assert_eq!(
            text,
            "cp-9 is not known; known are: cp-1 (lives), cp-2\\u{7} (gone)"
        );
        ids.extend((0..60).map(|number| (format!("x{number:02}"), false)));
        assert!(unknown("cp-9", &ids).ends_with("and 12 more"));
        assert!(unknown("cp-9", &Ids::new()).contains("etcd.prefix"));
    }
}
