//! What a client may be answered. Pure.
//!
//! Allowed are only: a 403 of an apiserver that starts, to a client that does not ask for readiness; a 500 or 504 of an apiserver that lost its etcd; and for a write, an unknown outcome (its
//! connection broke, or a 503 without `Retry-After`). Everything else that is not what was asked for is a violation.

use crate::exchange::{Answer, Outcome};

/// What a read must get.
#[derive(Clone, Debug)]
pub enum Expected {
    /// This user's object.
    Object { owner: String },
    /// A list with this object.
    List { object: String },
    /// A 403 that names this user.
    Forbidden { user: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Fine,
    /// It failed, as it may.
    Failed(String),
    Violation(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Create,
    Update,
    Delete,
}

/// What is known of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// With the revision, unless the answer does not say it.
    Done(Option<i64>),
    NotDone,
    /// Once, or not at all.
    Unknown,
}

pub fn read(expected: &Expected, attempts: &[Outcome]) -> Verdict {
    let Some(answer) = attempts.last().and_then(Outcome::answer) else {
        return unanswered(attempts);
    };
    let said = || format!("{} {}", answer.code, answer.message());
    match (answer.code, expected) {
        (200, Expected::Object { owner }) => {
            match answer.body["metadata"]["labels"]["owner"] == **owner {
                true => Verdict::Fine,
                false => violation(format!("not {owner}'s object: {}", answer.body)),
            }
        }
        (200, Expected::List { object }) => match lists(answer, object) {
            true => Verdict::Fine,
            false => violation(format!("a list without {object}")),
        },
        (200, Expected::Forbidden { user }) => {
            violation(format!("{user} was given what is another's"))
        }
        (403, Expected::Forbidden { user }) => {
            match answer.message().contains(&format!("User \"{user}\"")) {
                true => Verdict::Fine,
                false => violation(format!("{user} was answered as another: {}", said())),
            }
        }
        (404, _) => violation(format!("a false 404: {}", said())),
        (401 | 403, _) => violation(format!("refused who has the right: {}", said())),
        (500 | 504, _) => Verdict::Failed(said()),
        _ => violation(format!("{} after {} attempts", said(), attempts.len())),
    }
}

/// What a violation is if it was a client that did not ask for readiness, while an apiserver was starting: it answers
/// 403 before it knows all rights, and if no other server can be asked, its proxy passes that on.
pub fn unless_early(verdict: Verdict, attempts: &[Outcome]) -> Verdict {
    let answer = attempts.last().and_then(Outcome::answer);
    match (verdict, answer.map(|answer| answer.code)) {
        (Verdict::Violation(_), Some(403)) => Verdict::Failed("403, early".to_owned()),
        (verdict, _) => verdict,
    }
}

/// What happened, and whether it may.
pub fn write(verb: Verb, attempts: &[Outcome]) -> (Effect, Verdict) {
    let earlier = attempts.len().saturating_sub(1);
    let may_have = attempts[..earlier].iter().any(Outcome::is_uncertain);
    let Some(last) = attempts.last() else {
        return (Effect::NotDone, unanswered(attempts));
    };
    let said = last.describe();
    let Some(answer) = last.answer() else {
        let (effect, verdict) = match last {
            Outcome::Silent => (Effect::Unknown, violation(said)),
            Outcome::Broken(_) => (Effect::Unknown, Verdict::Failed(said)),
            _ if may_have => (Effect::Unknown, unanswered(attempts)),
            _ => (Effect::NotDone, unanswered(attempts)),
        };
        return (effect, verdict);
    };
    match answer.code {
        200..300 => (Effect::Done(revision(verb, answer)), Verdict::Fine),
        // An earlier attempt was it, or its own traces are in the way.
        404 | 409 if may_have && verb != Verb::Create => (Effect::Unknown, Verdict::Failed(said)),
        404 | 409 => (
            Effect::NotDone,
            violation(format!("a write that nobody else does: {said}")),
        ),
        _ if last.is_uncertain() => (Effect::Unknown, Verdict::Failed(said)),
        code => {
            let what = match code {
                401 | 403 => "refused who has the right",
                _ => "refused",
            };
            let effect = if may_have {
                Effect::Unknown
            } else {
                Effect::NotDone
            };
            let verdict = violation(format!("{what} after {} attempts: {said}", attempts.len()));
            (effect, verdict)
        }
    }
}

fn revision(verb: Verb, answer: &Answer) -> Option<i64> {
    match verb {
        Verb::Delete => None,
        Verb::Create | Verb::Update => answer.revision(),
    }
}

fn unanswered(attempts: &[Outcome]) -> Verdict {
    let last = attempts
        .last()
        .map_or("never asked".to_owned(), Outcome::describe);
    violation(format!("{last}, after {} attempts", attempts.len()))
}

fn violation(what: String) -> Verdict {
    Verdict::Violation(what)
}

/// Whether a list has this object, by namespace and name.
fn lists(answer: &Answer, object: &str) -> bool {
    let items = answer.body["items"].as_array().into_iter().flatten();
    let mut names = items.map(|item| {
        let text = |field: &str| item["metadata"][field].as_str().unwrap_or_default();
        format!("{}/{}", text("namespace"), text("name"))
    });
    names.any(|name| name == object)
}

#[cfg(test)]
mod tests;
