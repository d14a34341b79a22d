//! Cases one by one, and a model of etcd, of an apiserver's watch and of what etcd tells, in any interleaving.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::watches::bookmark;
use crate::watches::follower::{Anchor, Follower};
use crate::watches::frames::FrameFormat;

fn log(from: i64, changes: &[(i64, &str)], through: i64) -> ChangeLog {
    let mut log = ChangeLog::new(from);
    for (revision, key) in changes {
        log.changed(*revision, key);
    }
    log.complete_through(through);
    log
}

fn at(revision: i64, seen: u32) -> WatchPosition {
    WatchPosition { revision, seen }
}

#[test]
fn the_newest_safe_revision_is_before_the_first_missed_change() {
    let changes = log(5, &[(5, "a/x"), (9, "b/x"), (12, "a/x")], 20);
    assert_eq!(newest_safe(at(5, 1), "a/", &changes, true), Ok(11));
    assert_eq!(newest_safe(at(5, 1), "", &changes, true), Ok(8));
    assert_eq!(newest_safe(at(12, 1), "a/", &changes, true), Ok(20));
    assert_eq!(newest_safe(at(4, 0), "c/", &changes, true), Ok(20));
}

#[test]
fn nothing_is_said_that_is_not_proved() {
    let changes = log(5, &[(5, "a/x"), (5, "a/y"), (6, "a/x")], 6);
    for (position, scope, found, why) in [
        (at(5, 2), "a/", false, Withheld::NotFound),
        (at(5, 1), "a/", true, Withheld::HalfRevision),
        (at(5, 3), "a/", true, Withheld::HalfRevision),
        (at(5, 2), "a/", true, Withheld::NothingNewer),
        (at(6, 1), "a/", true, Withheld::NothingNewer),
        (at(9, 0), "a/", true, Withheld::NothingNewer),
        (at(9, 1), "a/", true, Withheld::NotTold),
        (at(4, 1), "a/", true, Withheld::Forgotten),
        (at(3, 0), "a/", true, Withheld::Forgotten),
    ] {
        assert_eq!(
            newest_safe(position, scope, &changes, found),
            Err(why),
            "{position:?} {scope} {found}"
        );
    }
    assert_eq!(
        newest_safe(at(5, 0), "a/", &log(6, &[], 5), true),
        Err(Withheld::NothingNewer)
    );
}

#[test]
fn every_reason_has_a_name_of_its_own() {
    let names: std::collections::BTreeSet<_> = Withheld::ALL.map(Withheld::name).into();
    assert_eq!(names.len(), Withheld::ALL.len());
}

/// A transaction: keys written or deleted at once.
#[derive(Debug, Clone)]
enum Step {
    /// etcd commits changes of these keys (by number): namespaces, other resources.
    Commit(Vec<usize>),
    /// The apiserver delivers the next change that its client asked for.
    Deliver,
    /// The apiserver sends a bookmark, at a revision up to which everything was delivered.
    Bookmark,
    /// The apiserver answers a list, of which a few objects are kept.
    List,
    /// etcd tells its follower of all that is new.
    Tell,
    /// etcd tells of the next revision alone.
    TellOne,
    /// etcd compacts: a follower that begins now begins later.
    Compact,
}

/// Keys, by their resource: what is watched is `pods`, in namespace `a` or in all; the label is what a selector asks
/// for.
const KEYS: [(&str, bool); 8] = [
    ("pods/a/1", true),
    ("pods/a/2", false),
    ("pods/a/3", true),
    ("pods/ab/1", true),
    ("pods/b/1", false),
    ("secrets/a/1", true),
    ("leases/a/1", true),
    ("podsy/a/1", true),
];

#[derive(Debug, Clone, Copy)]
struct Setup {
    /// The watch is of namespace `a` alone.
    namespaced: bool,
    /// It selects by label.
    selects: bool,
    /// Its client began with what there was.
    from_anything: bool,
    /// The resource is in another etcd, which has a history of its own.
    elsewhere: bool,
    begins_at: usize,
    follower_begins_after: usize,
}

struct World {
    setup: Setup,
    /// Of the etcd that is asked.
    history: BTreeMap<i64, Vec<usize>>,
    /// Of the etcd that the apiserver keeps the resource in.
    source: BTreeMap<i64, Vec<usize>>,
    /// Delivered (revision, key).
    delivered: Vec<(i64, usize)>,
    /// Everything up to here was delivered.
    complete: i64,
    start: i64,
    stream: Follower,
    /// Of the last list.
    listed: Vec<Anchor>,
    change_log: Option<ChangeLog>,
    compacted: i64,
}

impl World {
    fn new(setup: Setup) -> Self {
        let start = i64::try_from(setup.begins_at).unwrap() + 1;
        Self {
            setup,
            history: BTreeMap::new(),
            source: BTreeMap::new(),
            delivered: Vec::new(),
            complete: start,
            start,
            stream: Follower::new(FrameFormat::Json, (!setup.from_anything).then_some(start)),
            listed: Vec::new(),
            change_log: None,
            compacted: 0,
        }
    }

    fn scope(&self) -> &'static str {
        if self.setup.namespaced { "a/" } else { "" }
    }

    fn revision(history: &BTreeMap<i64, Vec<usize>>) -> i64 {
        history
            .last_key_value()
            .map_or(1, |(revision, _)| *revision)
    }

    fn in_scope(&self, key: usize) -> bool {
        let key = KEYS[key].0.strip_prefix("pods/");
        key.is_some_and(|key| key.starts_with(self.scope()))
    }

    fn wanted(&self, key: usize) -> bool {
        self.in_scope(key) && (!self.setup.selects || KEYS[key].1)
    }

    /// What the client has to be told next.
    fn next(&self) -> Option<(i64, usize)> {
        let all = self.source.range(self.start + 1..);
        let all = all.flat_map(|(revision, keys)| keys.iter().map(|key| (*revision, *key)));
        all.filter(|(_, key)| self.wanted(*key))
            .nth(self.delivered.len())
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Commit(keys) => {
                let mut keys = keys.clone();
                keys.sort_unstable();
                keys.dedup();
                let revision = Self::revision(&self.history) + 1;
                // The other etcd goes its own way: it has the same keys, changed in another order.
                let others = keys.iter().map(|key| (key + 1) % KEYS.len()).collect();
                let source = if self.setup.elsewhere {
                    others
                } else {
                    keys.clone()
                };
                self.source.insert(Self::revision(&self.source) + 1, source);
                self.history.insert(revision, keys);
            }
            Step::Deliver => {
                if let Some((revision, key)) = self.next() {
                    self.delivered.push((revision, key));
                    let (namespace, name) = KEYS[key].0["pods/".len()..].split_once('/').unwrap();
                    self.stream.passed(
                        &format!(
                            r#"{{"type":"MODIFIED","object":{{"kind":"Pod","apiVersion":"v1","metadata":{{"namespace":"{namespace}","name":"{name}","resourceVersion":"{revision}"}}}}}}{}"#,
                            '\n'
                        )
                        .into(),
                    );
                    self.complete = self.complete.max(revision - 1);
                }
            }
            Step::Bookmark => {
                let next = self.next().map(|(revision, _)| revision - 1);
                let revision = next
                    .unwrap_or(Self::revision(&self.source))
                    .max(self.complete);
                let last = self.delivered.last().map_or(0, |(revision, _)| *revision);
                if revision >= last && revision >= self.start {
                    self.complete = revision;
                    self.stream
                        .passed(&bookmark::frame(FrameFormat::Json, "v1", "Pod", revision));
                }
            }
            Step::List => self.list(),
            Step::Compact => self.compacted = Self::revision(&self.history),
            Step::Tell => self.tell(i64::MAX),
            Step::TellOne => self.tell(1),
        }
    }

    /// Of all that the apiserver has, the two that have not changed for the longest time.
    fn list(&mut self) {
        let mut objects = BTreeMap::new();
        for (revision, keys) in &self.source {
            let pods = keys
                .iter()
                .filter_map(|key| KEYS[*key].0.strip_prefix("pods/"));
            objects.extend(pods.map(|key| (key, *revision)));
        }
        let anchor = |(key, revision): (&str, i64)| Anchor {
            key: key.to_owned(),
            revision,
        };
        self.listed = objects.into_iter().map(anchor).collect();
        self.listed.sort_by_key(|anchor| anchor.revision);
        self.listed.truncate(2);
    }

    fn tell(&mut self, most: i64) {
        let newest = Self::revision(&self.history);
        let begin = self.start + i64::try_from(self.setup.follower_begins_after).unwrap() - 2;
        let begin = begin.max(self.compacted).max(1);
        let change_log = self.change_log.get_or_insert_with(|| ChangeLog::new(begin));
        let from = change_log.through() + 1;
        let through = newest.min(from.saturating_add(most - 1));
        if from > through {
            return;
        }
        for (revision, keys) in self.history.range(from..=through) {
            for key in keys {
                if let Some(key) = KEYS[*key].0.strip_prefix("pods/") {
                    change_log.changed(*revision, key);
                }
            }
        }
        change_log.complete_through(through);
    }

    /// As the archive finds it: by key, at its revision.
    fn is_found(&self, anchor: &Anchor) -> bool {
        let keys = self.history.get(&anchor.revision).into_iter().flatten();
        keys.map(|key| KEYS[*key].0)
            .any(|key| key.strip_prefix("pods/") == Some(&anchor.key))
    }

    fn answer(&self) -> Option<i64> {
        let position = self.stream.position()?;
        let mut delivered = self.stream.anchor().into_iter().chain(&self.listed);
        let found = delivered.any(|anchor| self.is_found(anchor));
        newest_safe(position, self.scope(), self.change_log.as_ref()?, found).ok()
    }

    /// What the client would never be told if it came back with `revision`.
    fn missed(&self, revision: i64) -> Option<(i64, usize)> {
        self.next().filter(|(missed, _)| *missed <= revision)
    }
}

fn setup() -> impl Strategy<Value = Setup> {
    (any::<[bool; 3]>(), 0..6_usize, 0..6_usize).prop_map(
        |([namespaced, selects, from_anything], begins_at, follower_begins_after)| Setup {
            namespaced,
            selects,
            from_anything,
            elsewhere: false,
            begins_at,
            follower_begins_after,
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => prop::collection::vec(0..KEYS.len(), 1..3).prop_map(Step::Commit),
        5 => Just(Step::Deliver),
        1 => Just(Step::Bookmark),
        1 => Just(Step::List),
        2 => Just(Step::Tell),
        2 => Just(Step::TellOne),
        1 => Just(Step::Compact),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn no_bookmark_is_above_a_change_that_the_client_has_not_seen(setup in setup(), steps in steps()) {
        let mut world = World::new(setup);
        let mut given = 0;
        for step in &steps {
            world.step(step);
            if let Some(revision) = world.answer() {
                given += 1;
                prop_assert_eq!(world.missed(revision), None, "bookmark {}", revision);
                prop_assert!(revision <= World::revision(&world.history));
            }
        }
        // That most runs give some is seen below.
        prop_assert!(given <= steps.len());
    }

    #[test]
    fn a_watch_that_got_everything_is_told_the_newest_revision(namespaced: bool, steps in steps()) {
        let setup = Setup { namespaced, selects: false, from_anything: false, elsewhere: false, begins_at: 0,
            follower_begins_after: 0 };
        let mut world = World::new(setup);
        steps.iter().filter(|step| !matches!(step, Step::Compact)).for_each(|step| world.step(step));
        world.step(&Step::Commit(vec![0]));
        while world.next().is_some() {
            world.step(&Step::Deliver);
        }
        world.step(&Step::Commit(vec![5]));
        world.step(&Step::Tell);
        prop_assert_eq!(world.answer(), Some(World::revision(&world.history)));
    }
}

/// A watch that delivered nothing, of a resource that was listed before.
#[test]
fn a_quiet_watch_is_told_the_newest_revision_by_what_was_listed() {
    let mut world = World::new(Setup {
        namespaced: true,
        selects: false,
        from_anything: false,
        elsewhere: false,
        begins_at: 4,
        follower_begins_after: 0,
    });
    for key in [0, 1, 2, 5] {
        world.step(&Step::Commit(vec![key]));
    }
    world.step(&Step::Commit(vec![6]));
    world.step(&Step::Tell);
    assert_eq!(world.answer(), None, "nothing was delivered");
    world.step(&Step::List);
    assert_eq!(world.answer(), Some(World::revision(&world.history)));
}

/// The revisions of the other etcd look the same, and only the keys tell.
#[test]
fn revisions_of_another_etcd_prove_nothing() {
    let setup = Setup {
        namespaced: false,
        selects: false,
        from_anything: false,
        elsewhere: true,
        begins_at: 0,
        follower_begins_after: 0,
    };
    let mut world = World::new(setup);
    for key in [0, 1, 2, 3, 4, 0, 1, 2] {
        world.step(&Step::Commit(vec![key]));
        world.step(&Step::List);
        world.step(&Step::Deliver);
        // Enough for a newer revision, were it the right etcd.
        world.step(&Step::Commit(vec![6]));
        world.step(&Step::Tell);
        assert!(world.stream.position().is_some());
        assert_eq!(world.answer(), None);
    }
}
