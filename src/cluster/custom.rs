//! Tracks which resources belong to CRDs and aggregated APIs, which every apiserver serves. Pure.
//!
//! A resource that was custom counts as built-in only after two more reads of discovery: it stays listed for a short time
//! after its definition is deleted.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::kube::gvr::{Custom, Definition, Pair, may_be_built_in};

/// Reads of discovery after which a resource that was custom counts as built-in.
const READS_UNTIL_BUILT_IN: u64 = 2;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Departed {
    /// A version of a CRD; `None`: any, because its value could not be read.
    Version(Pair, Option<Box<str>>),
    Aggregated(Pair),
}

impl Departed {
    fn is_in(&self, custom: &Custom) -> bool {
        match self {
            Self::Version(pair, version) => {
                let now = custom.definitions.get(pair);
                now.is_some_and(|now| {
                    now.versions.is_none() || versions(now).any(|it| it == *version)
                })
            }
            Self::Aggregated(pair) => custom.aggregated.contains(pair),
        }
    }
}

/// The versions that a CRD serves; one `None` if it may be any.
fn versions(definition: &Definition) -> impl Iterator<Item = Option<Box<str>>> {
    let known = definition.versions.iter().flat_map(|known| known.iter());
    let any = definition.versions.is_none().then_some(None);
    known.cloned().map(Some).chain(any)
}

/// The current custom resources, and those that were deleted recently.
#[derive(Debug, Default)]
pub struct CustomTracker {
    now: Arc<Custom>,
    with_departed: Arc<Custom>,
    /// With the number of the read of discovery that removes them, and the revision of the CRD.
    departed: BTreeMap<Departed, (u64, i64)>,
}

impl CustomTracker {
    /// The current set, with what was deleted since the last but one read of discovery.
    pub fn get(&self) -> &Arc<Custom> {
        &self.with_departed
    }

    /// The CRDs by name (`<plural>.<group>`), and the names of APIServices that have a service (`<version>.<group>`), have
    /// changed. `reads`: how often discovery was read.
    pub fn replace<'a>(
        &mut self,
        definitions: impl Iterator<Item = (&'a str, Definition)>,
        aggregated: impl Iterator<Item = &'a str>,
        reads: u64,
    ) {
        let definition = |(name, mut definition): (&str, Definition)| {
            let pair = pair(name)?;
            if !may_be_built_in(&pair.0) {
                definition.revision = 0;
            }
            Some((pair, definition))
        };
        let custom = Custom {
            definitions: definitions.filter_map(definition).collect(),
            aggregated: aggregated.filter_map(pair).collect(),
        };
        let until = reads + READS_UNTIL_BUILT_IN;
        let before = std::mem::take(&mut self.now);
        for (pair, definition) in &before.definitions {
            let now = custom.definitions.get(pair);
            if now.is_some_and(|now| now.versions == definition.versions) {
                continue;
            }
            let version = |version| Departed::Version(pair.clone(), version);
            let gone = versions(definition).map(|it| (version(it), (until, definition.revision)));
            self.departed.extend(gone);
        }
        let gone = before.aggregated.difference(&custom.aggregated);
        let gone = gone
            .cloned()
            .map(|pair| (Departed::Aggregated(pair), (until, 0)));
        self.departed.extend(gone);
        self.departed.retain(|which, _| !which.is_in(&custom));
        self.now = Arc::new(custom);
        self.forget(reads);
        self.combine();
    }

    /// Discovery was read for the `reads`th time.
    pub fn read(&mut self, reads: u64) {
        if self.forget(reads) {
            self.combine();
        }
    }

    fn forget(&mut self, reads: u64) -> bool {
        let before = self.departed.len();
        self.departed.retain(|_, (until, _)| reads < *until);
        self.departed.len() != before
    }

    fn combine(&mut self) {
        if self.departed.is_empty() {
            self.with_departed = self.now.clone();
            return;
        }
        let mut all = Custom::clone(&self.now);
        for (which, (_, revision)) in self.departed.clone() {
            match which {
                Departed::Version(pair, version) => {
                    let definition = all.definitions.entry(pair).or_insert_with(|| Definition {
                        versions: Some([].into()),
                        revision,
                    });
                    let known = definition.versions.iter().flat_map(|known| known.iter());
                    let with = |version| known.cloned().chain([version]).collect();
                    definition.versions =
                        version.map(with).filter(|_| definition.versions.is_some());
                }
                Departed::Aggregated(pair) => drop(all.aggregated.insert(pair)),
            }
        }
        self.with_departed = Arc::new(all);
    }
}

/// Group and resource, or group and version, of a name that has the group last.
fn pair(name: &str) -> Option<Pair> {
    name.split_once('.')
        .map(|(first, group)| Pair(group.to_owned(), first.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::gvr::{GvrRef, defined};

    const WIDGETS: GvrRef<'_> = GvrRef {
        group: "example.com",
        version: "v1",
        resource: "widgets",
        subresource: "",
    };

    #[test]
    fn the_core_groups_api_service_has_an_empty_group() {
        assert_eq!(pair("v1."), Some(Pair(String::new(), "v1".into())));
        assert_eq!(pair("v1"), None);
    }

    #[test]
    fn what_was_custom_is_taken_for_built_in_only_after_two_more_reads() {
        let mut tracker = CustomTracker::default();
        let definition = ("widgets.example.com", defined(&["v1"]));
        tracker.replace([definition].into_iter(), [].into_iter(), 1);
        assert!(tracker.get().contains(WIDGETS));
        let other = GvrRef {
            version: "v2",
            ..WIDGETS
        };
        assert!(!tracker.get().contains(other), "another version");
        tracker.read(5);
        tracker.replace([].into_iter(), [].into_iter(), 5);
        for (reads, custom) in [(5, true), (6, true), (7, false)] {
            tracker.read(reads);
            assert_eq!(tracker.get().contains(WIDGETS), custom, "{reads}");
        }
    }

    #[test]
    fn a_version_that_a_crd_serves_no_longer_is_kept_as_long() {
        let mut tracker = CustomTracker::default();
        let mut serves = |versions: &[&str], reads| {
            let definition = ("widgets.example.com", defined(versions));
            tracker.replace([definition].into_iter(), [].into_iter(), reads);
            ["v1", "v2", "v3"].map(|version| tracker.get().contains(GvrRef { version, ..WIDGETS }))
        };
        for (versions, reads, served) in [
            (&["v1", "v2"][..], 1, [true, true, false]),
            (&["v1"], 1, [true, true, false]),
            (&["v3"], 2, [true, true, true]),
            (&["v3"], 3, [true, false, true]),
            (&["v3"], 4, [false, false, true]),
        ] {
            assert_eq!(serves(versions, reads), served, "{versions:?} {reads}");
        }
        let unreadable = ("widgets.example.com", Definition::default());
        tracker.replace([unreadable].into_iter(), [].into_iter(), 5);
        tracker.replace([].into_iter(), [].into_iter(), 5);
        assert!(tracker.get().contains(WIDGETS), "it may have been any");
    }

    #[test]
    fn what_is_created_again_stays_custom() {
        let mut tracker = CustomTracker::default();
        for names in [vec!["v1.example.com"], vec![], vec!["v1.example.com"]] {
            tracker.replace([].into_iter(), names.into_iter(), 1);
        }
        tracker.read(9);
        assert!(tracker.get().contains(WIDGETS));
    }
}
