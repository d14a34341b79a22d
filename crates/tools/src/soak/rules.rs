//! What a client may be answered. Pure.
//!
//! A client may be refused, and its connections may break, but only while something is broken: that is judged for each
//! attempt, elsewhere. And an apiserver that starts may give a 403 to a client that does not ask for readiness. Everything
//! else that is not what was asked for is a violation.

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
    /// Something of this API version.
    Of { group_version: &'static str },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Fine,
    /// It failed, as it may.
    Failed(String),
    /// A 403 for who has the right, which it may get for once.
    Early,
    /// The same where it may not: a violation.
    Refused(String),
    /// A false 404, a violation.
    NotFound(String),
    /// A field that was not kept, a violation.
    Dropped(String),
    /// The same where the policy prefers a server that does not know it.
    DroppedAsSet,
    /// What a controller must not do, or a kubectl that failed: a violation.
    Misled(String),
    Violation(String),
}

impl Verdict {
    pub fn violation(&self) -> Option<&str> {
        match self {
            Self::Fine | Self::Failed(_) | Self::Early | Self::DroppedAsSet => None,
            Self::Refused(why)
            | Self::NotFound(why)
            | Self::Dropped(why)
            | Self::Misled(why)
            | Self::Violation(why) => Some(why),
        }
    }
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
        (200, Expected::Of { group_version }) => match answer.body["apiVersion"] == **group_version
        {
            true => Verdict::Fine,
            false => violation(format!("not of {group_version}: {}", answer.body)),
        },
        (404, _) => Verdict::NotFound(format!("a false 404: {}", said())),
        (401, _) => violation(unjust(&said())),
        (403, _) => Verdict::Refused(unjust(&said())),
        (429 | 500.., _) => Verdict::Failed(said()),
        _ => violation(said()),
    }
}

/// What a verdict is if it was a client that did not ask for readiness, while an apiserver was starting: it answers
/// 403 before it knows all rights, and if no other server can be asked, its proxy passes that on.
pub fn unless_early(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Refused(_) => Verdict::Early,
        verdict => verdict,
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
    let not_by_this = match may_have {
        true => Effect::Unknown,
        false => Effect::NotDone,
    };
    let code = match last {
        Outcome::Answered(answer) => answer.code,
        Outcome::NotSent(_) => return (not_by_this, unanswered(attempts)),
        Outcome::Broken(_) | Outcome::Refused(_) | Outcome::Silent => {
            return (Effect::Unknown, unanswered(attempts));
        }
    };
    match code {
        200..300 => (Effect::Done(revision(verb, last)), Verdict::Fine),
        // An earlier attempt was it, or its own traces are in the way.
        404 | 409 if may_have && verb != Verb::Create => (Effect::Unknown, Verdict::Failed(said)),
        404 => (
            Effect::NotDone,
            Verdict::NotFound(format!("a false 404: {said}")),
        ),
        409 => {
            let twice = format!("a write that nobody else does: {said}");
            (Effect::NotDone, violation(twice))
        }
        429 | 500.. if last.is_uncertain() => (Effect::Unknown, Verdict::Failed(said)),
        429 | 500.. => (not_by_this, Verdict::Failed(said)),
        401 => (not_by_this, violation(unjust(&said))),
        403 => (not_by_this, Verdict::Refused(unjust(&said))),
        // From 1.27 on Jobs have a selector that an older apiserver does not make.
        422 if said.contains("spec.selector") => (not_by_this, Verdict::Failed(said)),
        _ => (not_by_this, violation(said)),
    }
}

fn revision(verb: Verb, last: &Outcome) -> Option<i64> {
    match verb {
        Verb::Delete => None,
        Verb::Create | Verb::Update => last.answer().and_then(Answer::revision),
    }
}

fn unanswered(attempts: &[Outcome]) -> Verdict {
    match attempts.last() {
        Some(last @ (Outcome::NotSent(_) | Outcome::Broken(_) | Outcome::Refused(_))) => {
            Verdict::Failed(last.describe())
        }
        Some(last) => violation(last.describe()),
        None => violation("never asked".to_owned()),
    }
}

fn unjust(said: &str) -> String {
    format!("refused who has the right: {said}")
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
