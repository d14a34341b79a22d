use serde_json::Value;

use super::*;

fn answered(code: u16, retry_after: Option<u64>) -> Outcome {
    Outcome::Answered(Answer {
        code,
        retry_after,
        body: Value::Null,
    })
}

fn broken() -> Outcome {
    Outcome::Broken("reset".to_owned())
}

#[test]
fn any_verb_is_repeated_when_the_answer_says_so_and_a_write_never_when_its_connection_broke() {
    let five = Some(Duration::from_secs(5));
    assert_eq!(again(false, &answered(503, Some(5)), 1), five);
    assert_eq!(again(false, &answered(429, Some(5)), 1), five);
    assert_eq!(again(false, &answered(503, None), 1), None);
    assert_eq!(again(false, &answered(404, Some(5)), 1), None);
    assert_eq!(again(false, &broken(), 1), None);
    assert_eq!(again(true, &broken(), 1), Some(AFTER_BROKEN));
    assert_eq!(again(true, &answered(503, Some(5)), MOST), five);
    assert_eq!(again(true, &answered(503, Some(5)), MOST + 1), None);
}

#[test]
fn what_may_have_been_executed() {
    assert!(broken().is_uncertain());
    assert!(Outcome::Silent.is_uncertain());
    assert!(answered(503, None).is_uncertain());
    assert!(answered(504, Some(1)).is_uncertain());
    assert!(!answered(503, Some(5)).is_uncertain());
    assert!(!answered(409, None).is_uncertain());
    assert!(!Outcome::NotSent("refused".to_owned()).is_uncertain());
}

#[test]
fn what_no_client_should_see_while_nothing_is_broken() {
    let refused = Outcome::NotSent("refused".to_owned());
    for trouble in [
        broken(),
        refused,
        Outcome::Silent,
        answered(503, Some(5)),
        answered(429, None),
    ] {
        assert!(trouble.is_trouble(), "{trouble:?}");
    }
    assert!(!answered(200, None).is_trouble());
    assert!(!answered(404, None).is_trouble());
}
