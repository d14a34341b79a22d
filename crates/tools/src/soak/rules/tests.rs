use serde_json::{Value, json};

use super::*;

fn answered(code: u16, retry_after: Option<u64>, body: Value) -> Outcome {
    Outcome::Answered(Answer {
        code,
        retry_after,
        body,
    })
}

fn message(code: u16, message: &str) -> Outcome {
    answered(code, None, json!({"message": message}))
}

fn object(owner: &str) -> Outcome {
    let metadata = json!({"namespace": "of-alice", "name": "anchor", "resourceVersion": "7", "labels": {"owner": owner}});
    answered(200, None, json!({"metadata": metadata}))
}

fn broken() -> Outcome {
    Outcome::Broken("reset".to_owned())
}

fn refused() -> Outcome {
    answered(503, Some(5), json!({}))
}

fn alices() -> Expected {
    Expected::Object {
        owner: "alice".to_owned(),
    }
}

fn forbidden() -> Expected {
    Expected::Forbidden {
        user: "alice".to_owned(),
    }
}

#[track_caller]
fn assert_violation(verdict: &Verdict, says: &str) {
    let what = verdict.violation().expect("a violation");
    assert!(what.contains(says), "{what}");
}

#[test]
fn a_read_is_fine_however_often_it_was_refused_before() {
    let attempts = [refused(), broken(), object("alice")];
    assert_eq!(read(&alices(), &attempts), Verdict::Fine);
    let denied = message(403, "configmaps is forbidden: User \"alice\" cannot get");
    assert_eq!(read(&forbidden(), &[denied]), Verdict::Fine);
}

#[test]
fn another_users_object_or_answer_is_found() {
    assert_violation(&read(&alices(), &[object("bob")]), "not alice's");
    assert_violation(&read(&forbidden(), &[object("bob")]), "another's");
    let denied = message(403, "configmaps is forbidden: User \"alice2\" cannot get");
    assert_violation(&read(&forbidden(), &[denied]), "as another");
}

#[test]
fn a_false_404_a_false_403_and_a_401_are_found() {
    let missing = message(404, "the server could not find the requested resource");
    assert_violation(&read(&alices(), &[refused(), missing]), "a false 404");
    assert_violation(&read(&alices(), &[message(403, "")]), "who has the right");
    assert_violation(&read(&alices(), &[message(401, "")]), "who has the right");
}

#[test]
fn what_is_not_answered_at_all_is_found_and_what_is_refused_has_failed() {
    assert_violation(&read(&alices(), &[Outcome::Silent]), "within the bound");
    assert_violation(&read(&alices(), &[message(400, "bad")]), "400 bad");
    for refused in [refused(), broken(), Outcome::NotSent("refused".to_owned())] {
        let verdict = read(&alices(), &vec![refused; 11]);
        assert!(matches!(verdict, Verdict::Failed(_)), "{verdict:?}");
    }
}

#[test]
fn a_list_that_lacks_the_object_is_found() {
    let list = |name: &str| {
        answered(
            200,
            None,
            json!({"items": [{"metadata": {"namespace": "n", "name": name}}]}),
        )
    };
    let expected = Expected::List {
        object: "n/anchor".to_owned(),
    };
    assert_eq!(read(&expected, &[list("anchor")]), Verdict::Fine);
    assert_violation(&read(&expected, &[list("other")]), "without n/anchor");
}

#[test]
fn a_write_that_succeeded_is_done_at_its_revision() {
    let (effect, verdict) = write(Verb::Update, &[refused(), object("alice")]);
    assert_eq!((effect, verdict), (Effect::Done(Some(7)), Verdict::Fine));
}

#[test]
fn a_write_whose_connection_broke_is_unknown_and_so_is_a_503_without_retry_after() {
    for last in [broken(), answered(503, None, json!({}))] {
        let (effect, verdict) = write(Verb::Create, &[last]);
        assert_eq!(effect, Effect::Unknown);
        assert!(matches!(verdict, Verdict::Failed(_)));
    }
}

#[test]
fn a_conflict_with_oneself_is_found_unless_an_earlier_attempt_may_have_been_executed() {
    let conflict = || message(409, "the object has been modified");
    let (_, verdict) = write(Verb::Update, &[refused(), conflict()]);
    assert_violation(&verdict, "nobody else does");
    let timed_out = answered(504, Some(1), json!({}));
    let (effect, verdict) = write(Verb::Update, &[timed_out, conflict()]);
    assert_eq!(effect, Effect::Unknown);
    assert!(matches!(verdict, Verdict::Failed(_)));
    let (_, verdict) = write(Verb::Delete, &[message(404, "not found")]);
    assert_violation(&verdict, "a false 404");
}

#[test]
fn a_write_that_is_always_refused_is_not_done() {
    let (effect, verdict) = write(Verb::Create, &vec![refused(); 11]);
    assert_eq!(effect, Effect::NotDone);
    assert!(matches!(verdict, Verdict::Failed(_)));
    let (effect, _) = write(
        Verb::Create,
        &[answered(500, Some(1), json!({})), refused()],
    );
    assert_eq!(effect, Effect::Unknown);
    let (_, verdict) = write(Verb::Create, &[message(403, "")]);
    assert_violation(&verdict, "who has the right");
    let (_, verdict) = write(Verb::Create, &[Outcome::Silent]);
    assert_violation(&verdict, "within the bound");
}

#[test]
fn only_a_403_can_be_early() {
    let early = |code| unless_early(read(&alices(), &[message(code, "")]));
    assert_eq!(early(403), Verdict::Early);
    assert_violation(&early(404), "a false 404");
    assert_violation(&early(401), "who has the right");
    let early_write = |code| unless_early(write(Verb::Create, &[message(code, "")]).1);
    assert_eq!(early_write(403), Verdict::Early);
    assert_violation(&early_write(401), "who has the right");
    // Whoever has no right is refused at any time, and by its own name.
    let another = message(403, "configmaps is forbidden: User \"bob\" cannot get");
    let verdict = unless_early(read(&forbidden(), &[another]));
    assert!(matches!(verdict, Verdict::Violation(_)), "{verdict:?}");
}
