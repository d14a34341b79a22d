use testkit::ledger::Labels;

use super::*;

fn change(revision: i64, name: &str, before: bool, after: bool) -> Change {
    Change {
        revision,
        namespace: "n".to_owned(),
        name: name.to_owned(),
        before: before.then(Labels::new),
        after: after.then(Labels::new),
    }
}

fn history() -> Vec<Change> {
    vec![
        change(5, "w-1-abcde", false, true),
        change(6, "w-1-abcde", true, true),
        change(8, "w-1-abcde", true, false),
        change(9, "w-2-abcde", false, true),
    ]
}

fn write(verb: Verb, object: &str, effect: Effect) -> Write {
    Write {
        verb,
        object: format!("n/{object}"),
        effect,
        uncertain: 0,
    }
}

fn whole() -> Vec<Write> {
    vec![
        write(Verb::Create, "w-1-", Effect::Done(Some(5))),
        write(Verb::Update, "w-1-abcde", Effect::Done(Some(6))),
        write(Verb::Delete, "w-1-abcde", Effect::Done(None)),
        write(Verb::Create, "w-2-", Effect::Unknown),
        write(Verb::Create, "w-3-", Effect::Unknown),
        write(Verb::Create, "w-4-", Effect::NotDone),
    ]
}

#[test]
fn nothing_is_wrong_with_what_happened_once_and_what_is_unknown() {
    assert_eq!(check(&whole(), &history()), [""; 0]);
}

#[test]
fn a_write_that_is_lost_after_its_answer_is_found() {
    let mut lost = history();
    lost.remove(1);
    assert_eq!(
        check(&whole(), &lost),
        [
            "lost: Update of n/w-1-abcde was answered with 6",
            "lost: 1 changes of n/w-1-abcde, at least 2 expected"
        ]
    );
    let mut created = history();
    created.drain(..3);
    let wrong = check(&whole()[..1], &created);
    assert_eq!(
        wrong,
        [
            "lost: 0 objects of n/w-1-, at least 1 expected",
            "lost: Create of n/w-1- was answered with 5"
        ]
    );
}

#[test]
fn a_write_that_is_done_twice_is_found() {
    let mut twice = history();
    twice.push(change(10, "w-1-fghij", false, true));
    twice.push(change(11, "w-2-fghij", false, true));
    assert_eq!(
        check(&whole(), &twice),
        [
            "done twice: 2 objects of n/w-1-, at most 1 expected",
            "done twice: 2 objects of n/w-2-, at most 1 expected"
        ]
    );
    let mut updated = history();
    updated.insert(2, change(7, "w-1-abcde", true, true));
    assert_eq!(
        check(&whole(), &updated),
        ["done twice: 3 changes of n/w-1-abcde, at most 2 expected"]
    );
}

#[test]
fn a_write_that_was_refused_and_done_is_found() {
    let mut done = history();
    done.push(change(10, "w-4-abcde", false, true));
    assert_eq!(
        check(&whole(), &done),
        ["done twice: 1 objects of n/w-4-, at most 0 expected"]
    );
}

#[test]
fn an_attempt_that_may_have_been_executed_counts_once() {
    let mut twice = history();
    twice.push(change(10, "w-1-fghij", false, true));
    let mut writes = whole();
    writes[0].uncertain = 1;
    assert_eq!(check(&writes, &twice), [""; 0]);
}
