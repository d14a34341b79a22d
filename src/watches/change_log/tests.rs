//! Cases one by one, and a model of etcd, of an apiserver's watch and of what etcd tells, in any interleaving.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use bytes::Bytes;

use crate::watches::follower::Follower;
use crate::watches::frames::{FrameFormat, ObjectType};
use crate::watches::sample::{KeyCount, ListedIn, Sample};

fn log(from: i64, changes: &[(i64, &str)], through: i64) -> ChangeLog {
    let mut log = ChangeLog::new(from);
    for (revision, key) in changes {
        log.changed(*revision, key);
    }
    log.complete_through(through);
    log
}

fn at(revision: i64, seen: u32) -> WatchPosition {
    let position = WatchPosition::all_of(revision);
    WatchPosition { seen, ..position }
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

fn first_after(log: &ChangeLog, revision: i64, scope: &str) -> Option<i64> {
    log.after(revision, scope).next()
}

fn count_at(log: &ChangeLog, revision: i64, scope: &str) -> usize {
    let later = log.after(revision - 1, scope);
    later.take_while(|at| *at == revision).count()
}

#[test]
fn changes_are_found_by_revision_and_scope() {
    let mut log = ChangeLog::new(5);
    for (revision, key) in [(6, "a/x"), (8, "ab/x"), (8, "a/y"), (9, "b/x")] {
        log.changed(revision, key);
    }
    log.complete_through(12);
    log.complete_through(11);
    assert_eq!((log.from, log.through), (5, 12));
    assert_eq!(first_after(&log, 4, "a/"), Some(6));
    assert_eq!(first_after(&log, 6, "a/"), Some(8));
    assert_eq!(first_after(&log, 8, "a/"), None);
    assert_eq!(first_after(&log, 8, ""), Some(9));
    assert_eq!(
        (
            count_at(&log, 8, ""),
            count_at(&log, 8, "a/"),
            count_at(&log, 7, "")
        ),
        (2, 1, 0)
    );
}

#[test]
fn what_is_too_much_is_forgotten_and_not_claimed() {
    let mut log = ChangeLog::new(1);
    let count = i64::try_from(LIMIT).unwrap() + 10;
    (1..=count).for_each(|revision| log.changed(revision, "a"));
    assert_eq!(log.from, 11);
    assert_eq!(first_after(&log, 10, ""), Some(11));
}

fn pod() -> ObjectType {
    ObjectType {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
    }
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
    /// The apiserver is asked for the metadata of one object, while etcd's next transactions (so many) come in between.
    Ask(u8),
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
    /// The resource is in another etcd, which has a history of its own: it is so many revisions ahead.
    elsewhere: Option<i64>,
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
    /// The apiserver's answer proved that the resource is stored here.
    stored_here: bool,
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
            stored_here: false,
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

    fn passes(&mut self, mut frame: Bytes) {
        while self.stream.next(&mut frame).unwrap().is_some() {}
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
                let source = match self.setup.elsewhere {
                    Some(_) => others,
                    None => keys.clone(),
                };
                let ahead = self.setup.elsewhere.unwrap_or_default();
                self.source.insert(revision + ahead, source);
                self.history.insert(revision, keys);
            }
            Step::Deliver => {
                if let Some((revision, key)) = self.next() {
                    self.delivered.push((revision, key));
                    let (namespace, name) = KEYS[key].0["pods/".len()..].split_once('/').unwrap();
                    self.passes(
                        format!(
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
                    self.passes(FrameFormat::Json.bookmark(&pod(), revision).unwrap());
                }
            }
            Step::Ask(commits) => self.ask(*commits),
            Step::Compact => self.compacted = Self::revision(&self.history),
            Step::Tell => self.tell(i64::MAX),
            Step::TellOne => self.tell(1),
        }
    }

    /// What is there for the watched resource, by key: its last change. A change of a key that is there deletes it.
    fn objects(history: &BTreeMap<i64, Vec<usize>>) -> BTreeMap<&'static str, i64> {
        let mut objects = BTreeMap::new();
        for (revision, keys) in history {
            for key in keys {
                if let Some(key) = KEYS[*key].0.strip_prefix("pods/")
                    && objects.remove(key).is_none()
                {
                    objects.insert(key, *revision);
                }
            }
        }
        objects
    }

    fn count(&self) -> KeyCount {
        KeyCount {
            revision: Self::revision(&self.history),
            keys: i64::try_from(Self::objects(&self.history).len()).unwrap(),
        }
    }

    /// As [`crate::watches::prover`] does it. Half of the commits come before the answer, the others after it.
    fn ask(&mut self, commits: u8) {
        let before = self.count();
        let others = |world: &mut Self, count: u8| {
            for _ in 0..count {
                world.step(&Step::Commit(vec![5]));
            }
        };
        others(self, commits / 2);
        let objects = Self::objects(&self.source);
        let revision = match self.source.is_empty() {
            true => 1 + self.setup.elsewhere.unwrap_or_default(),
            false => Self::revision(&self.source),
        };
        let first = objects.into_iter().next();
        others(self, commits - commits / 2);
        let item = first.map(|(key, revision)| {
            let (namespace, name) = key.split_once('/').unwrap();
            format!(
                r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}","resourceVersion":"{revision}"}}}}"#
            )
        });
        let list = format!(
            r#"{{"kind":"PartialObjectMetadataList","metadata":{{"resourceVersion":"{revision}"}},"items":[{}]}}"#,
            item.unwrap_or_default()
        );
        let sample = Sample::read(list.as_bytes()).unwrap();
        let listed_in = sample.compared(before, self.count());
        let object = sample.object.as_ref();
        self.stored_here |= listed_in == ListedIn::SameEtcd
            && object.is_none_or(|object| self.is_found(&object.key, object.revision));
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
    fn is_found(&self, key: &str, revision: i64) -> bool {
        let keys = self.history.get(&revision).into_iter().flatten();
        keys.map(|key| KEYS[*key].0)
            .any(|changed| changed.strip_prefix("pods/") == Some(key))
    }

    fn answer(&self) -> Option<i64> {
        let position = self.stream.position()?;
        let change_log = self.change_log.as_ref()?;
        newest_safe(position, self.scope(), change_log, self.stored_here).ok()
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
            elsewhere: None,
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
        1 => (0..8_u8).prop_map(Step::Ask),
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
        let setup = Setup { namespaced, selects: false, from_anything: false, elsewhere: None, begins_at: 0,
            follower_begins_after: 0 };
        let mut world = World::new(setup);
        steps.iter().filter(|step| !matches!(step, Step::Compact)).for_each(|step| world.step(step));
        world.step(&Step::Commit(vec![0]));
        while world.next().is_some() {
            world.step(&Step::Deliver);
        }
        world.step(&Step::Commit(vec![5]));
        world.step(&Step::Ask(0));
        world.step(&Step::Tell);
        prop_assert_eq!(world.answer(), Some(World::revision(&world.history)));
    }
}

fn world(elsewhere: Option<i64>, begins_at: usize) -> World {
    World::new(Setup {
        namespaced: true,
        selects: false,
        from_anything: false,
        elsewhere,
        begins_at,
        follower_begins_after: 0,
    })
}

/// A watch that delivered nothing.
#[test]
fn a_quiet_watch_is_told_the_newest_revision_by_one_object() {
    let mut world = world(None, 4);
    for key in [0, 1, 2, 5, 6] {
        world.step(&Step::Commit(vec![key]));
    }
    world.step(&Step::Tell);
    assert_eq!(world.answer(), None, "nothing was delivered");
    world.step(&Step::Ask(0));
    assert_eq!(world.answer(), Some(World::revision(&world.history)));
}

#[test]
fn a_watch_of_nothing_is_told_the_newest_revision_by_an_empty_list() {
    let mut world = world(None, 1);
    // Created and deleted: what there was is delivered.
    for key in [5, 0, 0, 6, 6, 6] {
        world.step(&Step::Commit(vec![key]));
    }
    world.step(&Step::Deliver);
    world.step(&Step::Deliver);
    world.step(&Step::Ask(6));
    world.step(&Step::Tell);
    assert!(world.stored_here);
    assert_eq!(world.answer(), Some(World::revision(&world.history)));
}

/// The revisions of the other etcd look the same, and only the keys tell.
#[test]
fn revisions_of_another_etcd_prove_nothing() {
    for ahead in [0, 20] {
        let mut world = world(Some(ahead), 0);
        world.setup.namespaced = false;
        for key in [0, 1, 2, 3, 4, 0, 1, 2] {
            world.step(&Step::Commit(vec![key]));
            world.step(&Step::Ask(0));
            world.step(&Step::Deliver);
            // Enough for a newer revision, were it the right etcd.
            world.step(&Step::Commit(vec![6]));
            world.step(&Step::Tell);
            assert!(world.stream.position().is_some());
            assert_eq!(world.answer(), None);
        }
    }
}

proptest! {
    #[test]
    fn a_list_from_another_etcd_proves_nothing(
        steps in steps(), ahead in 9..1000_i64, asked in 0..8_u8,
    ) {
        let mut world = world(Some(ahead), 0);
        steps.iter().for_each(|step| world.step(step));
        world.step(&Step::Ask(asked));
        prop_assert!(!world.stored_here);
    }
}
