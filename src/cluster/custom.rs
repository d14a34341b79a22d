//! Tracks which resources belong to CRDs and aggregated APIs, which every apiserver serves. Pure.
//!
//! A resource that was custom counts as built-in only after two more reads of discovery: it stays listed for a short time
//! after its definition is deleted.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::kube::gvr::{Custom, Definition, Pair, may_be_built_in};

/// Reads of discovery after which a resource that was custom counts as built-in.
const READS_UNTIL_BUILT_IN: u64 = 2;

/// The current custom resources, and those that were deleted recently.
#[derive(Debug, Default)]
pub struct CustomTracker {
    now: Arc<Custom>,
    /// What has gone, by how often discovery had been read then.
    gone: BTreeMap<u64, Custom>,
    with_gone: Arc<Custom>,
}

impl CustomTracker {
    /// The current set, with what was deleted since the last but one read of discovery.
    pub fn get(&self) -> &Arc<Custom> {
        &self.with_gone
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
        let before = std::mem::replace(&mut self.now, Arc::new(custom));
        let gone = self.gone.entry(reads).or_default();
        for (pair, was) in &before.definitions {
            let now = self.now.definitions.get(pair);
            if now.is_none_or(|now| now.versions != was.versions) {
                add(gone, pair, was);
            }
        }
        let aggregated = before.aggregated.difference(&self.now.aggregated);
        gone.aggregated.extend(aggregated.cloned());
        self.combine(reads);
    }

    /// Discovery was read for the `reads`th time.
    pub fn read(&mut self, reads: u64) {
        let first = self.gone.keys().next();
        if first.is_some_and(|at| reads >= at + READS_UNTIL_BUILT_IN) {
            self.combine(reads);
        }
    }

    fn combine(&mut self, reads: u64) {
        self.gone
            .retain(|at, gone| reads < at + READS_UNTIL_BUILT_IN && *gone != Custom::default());
        self.with_gone = self.now.clone();
        for gone in self.gone.values() {
            let all = Arc::make_mut(&mut self.with_gone);
            for (pair, was) in &gone.definitions {
                add(all, pair, was);
            }
            all.aggregated.extend(gone.aggregated.iter().cloned());
        }
    }
}

/// Adds the versions of a CRD. `None`: any, because its value could not be read.
fn add(to: &mut Custom, pair: &Pair, was: &Definition) {
    let Some(known) = to.definitions.get_mut(pair) else {
        to.definitions.insert(pair.clone(), was.clone());
        return;
    };
    let both = known.versions.take().zip(was.versions.as_ref());
    known.versions = both.map(|(known, was)| {
        let others = was.iter().filter(|version| !known.contains(version));
        known.iter().chain(others).cloned().collect()
    });
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
