use testkit::ledger::{Event, Labels, What};

use super::*;

fn change(revision: i64, name: &str, after: bool) -> Change {
    Change {
        revision,
        namespace: "n".to_owned(),
        name: name.to_owned(),
        before: (!after).then(Labels::new),
        after: after.then(Labels::new),
    }
}

fn event(revision: i64, name: &str, what: What) -> Told {
    Told::Event(Event {
        revision,
        object: format!("n/{name}"),
        what,
    })
}

fn history() -> Vec<Change> {
    vec![
        change(11, "a", true),
        change(12, "b", true),
        change(14, "a", false),
    ]
}

fn start() -> Objects {
    Objects::from([("n/old".to_owned(), 3)])
}

fn story() -> Story {
    Story {
        name: "it".to_owned(),
        told: vec![
            event(11, "a", What::Applied),
            event(12, "b", What::Applied),
            Told::Bookmark(13),
            event(14, "a", What::Deleted),
        ],
        lists: vec![(10, start())],
    }
}

fn wrong(story: &Story) -> Vec<String> {
    check(story, 10, &start(), &history())
}

#[test]
fn nothing_is_wrong_with_a_whole_story_and_a_list_in_between() {
    assert_eq!(wrong(&story()), [""; 0]);
    let mut again = story();
    let objects = [
        ("n/old".to_owned(), 3),
        ("n/a".to_owned(), 11),
        ("n/b".to_owned(), 12),
    ];
    again.told[1] = Told::Listed(Some(12));
    again.lists.push((12, Objects::from(objects)));
    assert_eq!(wrong(&again), [""; 0]);
}

#[test]
fn what_was_not_told_is_found_and_so_is_what_was_told_twice() {
    let mut missed = story();
    missed.told.remove(3);
    assert_eq!(wrong(&missed), ["it: missed: n/a Deleted at 14"]);
    let mut twice = story();
    twice.told.insert(1, event(11, "a", What::Applied));
    assert_eq!(wrong(&twice), ["it: told twice: n/a Applied at 11"]);
    let mut backwards = story();
    backwards.told.swap(0, 1);
    assert_eq!(
        wrong(&backwards),
        ["it: backwards: n/a Applied at 11, after 12"]
    );
}

#[test]
fn a_list_that_lacks_an_object_is_found() {
    let mut lacking = story();
    lacking
        .lists
        .push((12, Objects::from([("n/b".to_owned(), 12)])));
    assert_eq!(
        wrong(&lacking),
        ["it: a list at 12 is not what etcd had then"]
    );
}

#[test]
fn a_story_is_complete_when_the_last_change_was_told_or_listed() {
    assert!(is_complete(&story(), 14));
    assert!(!is_complete(&story(), 15));
    let mut listed = story();
    listed.told.push(Told::Listed(Some(20)));
    assert!(is_complete(&listed, 20));
}
