//! The comparison of a watch with etcd's history.

use testkit::guarantees::{Data, Event, Kind, Stream, Told, Violation, begins_within, check};

fn changed(revision: i64, object: &str, kind: Kind) -> Event {
    Event {
        revision,
        object: object.to_owned(),
        kind,
        data: Data::from([("number".to_owned(), revision.to_string())]),
    }
}

/// Two events of one transaction between others.
fn example() -> Vec<Event> {
    vec![
        changed(9, "early", Kind::Added),
        changed(11, "a", Kind::Added),
        changed(12, "b", Kind::Added),
        changed(12, "a", Kind::Modified),
        changed(15, "b", Kind::Deleted),
    ]
}

/// What is wrong with a watch from revision 10 that was told these events of the example and bookmarks.
fn wrong(told: &[Result<usize, i64>]) -> Vec<Violation> {
    let told = told.iter().map(|told| match told {
        Ok(index) => Told::Event(example()[*index].clone()),
        Err(bookmark) => Told::Bookmark(*bookmark),
    });
    let stream = Stream {
        from: 10,
        told: told.collect(),
    };
    check(&example(), &stream)
}

#[test]
fn a_whole_history_with_bookmarks_and_its_beginning_are_right() {
    assert_eq!(
        wrong(&[
            Ok(1),
            Err(11),
            Ok(2),
            Ok(3),
            Err(14),
            Ok(4),
            Err(15),
            Err(20)
        ]),
        []
    );
    assert_eq!(wrong(&[]), []);
    // It ended in the transaction.
    assert_eq!(wrong(&[Ok(1), Ok(2)]), []);
}

#[test]
fn an_event_that_is_told_twice_or_from_before_the_beginning_is_found() {
    let event = |index: usize| Violation::Twice(example()[index].clone());
    assert_eq!(wrong(&[Ok(1), Ok(1)]), [event(1)]);
    assert_eq!(wrong(&[Ok(0), Ok(1)]), [event(0)]);
}

#[test]
fn events_in_another_order_are_found_also_within_a_transaction() {
    let event = |index: usize| example()[index].clone();
    let swapped = wrong(&[Ok(2), Ok(3), Ok(1)]);
    assert_eq!(
        swapped,
        [Violation::Missed(event(1)), Violation::Unordered(event(1))]
    );
    let swapped = wrong(&[Ok(1), Ok(3), Ok(2)]);
    assert_eq!(
        swapped,
        [Violation::Torn(event(2)), Violation::Unordered(event(2))]
    );
}

#[test]
fn a_gap_and_a_torn_transaction_are_found() {
    let event = |index: usize| example()[index].clone();
    assert_eq!(wrong(&[Ok(2), Ok(3)]), [Violation::Missed(event(1))]);
    assert_eq!(wrong(&[Ok(1), Ok(2), Ok(4)]), [Violation::Torn(event(3))]);
    assert_eq!(wrong(&[Ok(1), Ok(3), Ok(4)]), [Violation::Torn(event(2))]);
    assert_eq!(
        wrong(&[Ok(1), Ok(4)]),
        [Violation::Missed(event(2)), Violation::Missed(event(3))]
    );
}

#[test]
fn an_event_that_did_not_happen_like_that_is_found() {
    let mut other = example()[1].clone();
    other.data.clear();
    let mut stream = Stream::new(10);
    stream.told.push(Told::Event(other.clone()));
    assert_eq!(check(&example(), &stream), [Violation::MadeUp(other)]);
}

#[test]
fn a_bookmark_above_what_was_not_told_or_backwards_is_found() {
    let event = example()[3].clone();
    let above = Violation::BookmarkAbove {
        bookmark: 12,
        event,
    };
    assert_eq!(wrong(&[Ok(1), Ok(2), Err(12)]), [above]);
    let backwards = Violation::BookmarkBackwards {
        bookmark: 13,
        after: 15,
    };
    assert_eq!(wrong(&[Ok(1), Ok(2), Ok(3), Ok(4), Err(13)]), [backwards]);
}

#[test]
fn one_torn_transaction_is_told_from_several() {
    let event = |index: usize| example()[index].clone();
    let torn = |event: Event| Violation::Torn(event);
    let one = [torn(event(2)), torn(event(3))];
    assert_eq!(begins_within(&one), Some(12));
    let two = [torn(event(2)), torn(event(4))];
    assert_eq!(begins_within(&two), None);
    assert_eq!(begins_within(&[Violation::Missed(event(2))]), None);
}

#[test]
fn a_watch_goes_on_after_its_bookmark_and_before_its_last_event() {
    let mut stream = Stream::new(10);
    assert_eq!(stream.position(), 10);
    stream.told.push(Told::Event(example()[1].clone()));
    assert_eq!(stream.position(), 10);
    stream.told.push(Told::Bookmark(13));
    assert_eq!(stream.position(), 13);
}
