//! Tracks which resources belong to CRDs and aggregated APIs, which every apiserver serves. Pure.
//!
//! A resource that was custom counts as built-in only after two more reads of discovery: it stays listed for a short time
//! after its definition is deleted.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::kube::gvr::{Custom, Pair};

/// Reads of discovery after which a resource that was custom counts as built-in.
const READS_UNTIL_BUILT_IN: u64 = 2;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Departed {
    Definition(Pair),
    Aggregated(Pair),
}

/// The current custom resources, and those that were deleted recently.
#[derive(Debug, Default)]
pub struct CustomTracker {
    now: Arc<Custom>,
    with_departed: Arc<Custom>,
    /// With the number of the read of discovery that removes them.
    departed: BTreeMap<Departed, u64>,
}

impl CustomTracker {
    /// The current set, with what was deleted since the last but one read of discovery.
    pub fn get(&self) -> &Arc<Custom> {
        &self.with_departed
    }

    /// The names of all CRDs (`<plural>.<group>`) and of APIServices that have a service (`<version>.<group>`) have changed.
    /// `reads`: how often discovery was read.
    pub fn replace<'a>(
        &mut self,
        definitions: impl Iterator<Item = &'a str>,
        aggregated: impl Iterator<Item = &'a str>,
        reads: u64,
    ) {
        let custom = Custom {
            definitions: definitions.filter_map(pair).collect(),
            aggregated: aggregated.filter_map(pair).collect(),
        };
        let until = reads + READS_UNTIL_BUILT_IN;
        let gone = self.now.definitions.difference(&custom.definitions);
        let gone = gone.cloned().map(Departed::Definition);
        self.departed.extend(gone.map(|which| (which, until)));
        let gone = self.now.aggregated.difference(&custom.aggregated);
        let gone = gone.cloned().map(Departed::Aggregated);
        self.departed.extend(gone.map(|which| (which, until)));
        self.departed.retain(|which, _| match which {
            Departed::Definition(pair) => !custom.definitions.contains(pair),
            Departed::Aggregated(pair) => !custom.aggregated.contains(pair),
        });
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
        self.departed.retain(|_, until| reads < *until);
        self.departed.len() != before
    }

    fn combine(&mut self) {
        if self.departed.is_empty() {
            self.with_departed = self.now.clone();
            return;
        }
        let mut all = Custom::clone(&self.now);
        for which in self.departed.keys().cloned() {
            match which {
                Departed::Definition(pair) => all.definitions.insert(pair),
                Departed::Aggregated(pair) => all.aggregated.insert(pair),
            };
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
    use crate::kube::gvr::GvrRef;

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
        tracker.replace(["widgets.example.com"].into_iter(), [].into_iter(), 1);
        assert!(tracker.get().contains(WIDGETS));
        tracker.read(5);
        tracker.replace([].into_iter(), [].into_iter(), 5);
        for (reads, custom) in [(5, true), (6, true), (7, false)] {
            tracker.read(reads);
            assert_eq!(tracker.get().contains(WIDGETS), custom, "{reads}");
        }
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
