//! Whether a request may read metrics.

use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderMap, HeaderValue};

use super::decisions::Decisions;
use super::review::{Reviewer, Subject, User, Verdict};
use crate::relay::shared::Shared;
use crate::request::caller::{Caller, ClientConnection, UserHeaders};
use crate::request::token;

/// The group that apiservers add to every user whom they authenticate.
const AUTHENTICATED: &str = "system:authenticated";

/// Longer tokens are none: each would be sent to the apiserver.
const LONGEST_TOKEN: usize = 16 << 10;

pub(super) struct Gate {
    shared: Arc<Shared>,
    reviewer: Reviewer,
    decisions: Decisions,
}

impl Gate {
    pub(super) fn new(shared: Arc<Shared>, reviewer: Reviewer) -> Self {
        Self {
            shared,
            reviewer,
            decisions: Decisions::default(),
        }
    }

    /// The verdict on a request; `None`: it brings neither a user's certificate nor a token.
    ///
    /// A peer's certificate is for asserting users, which nobody does here: it is none, and a token beside it counts.
    pub(super) async fn verdict(
        &self,
        connection: &ClientConnection,
        headers: &HeaderMap,
    ) -> Option<Verdict> {
        let judge = self.shared.callers.judge.load();
        let token = token::of_header(headers).filter(|token| token.len() <= LONGEST_TOKEN);
        let caller = judge.caller(connection, token.is_some(), SystemTime::now());
        drop(judge);
        let (name, subject) = match (caller, token) {
            (Caller::User(headers), _) => {
                let user = user(&headers)?;
                (of_user(&user), Subject::User(user))
            }
            (Caller::Bearer | Caller::Peer, Some(token)) => {
                let token = std::str::from_utf8(token).ok()?;
                (of_token(token), Subject::Token(token))
            }
            _ => return None,
        };
        let review = |known| self.reviewer.verdict(subject, known);
        Some(self.decisions.on(&name, review).await)
    }
}

fn user(headers: &UserHeaders) -> Option<User> {
    let text = |value: &HeaderValue| String::from_utf8(value.as_bytes().to_vec()).ok();
    let mut groups: Vec<String> = headers.groups.iter().map(text).collect::<Option<_>>()?;
    if !groups.iter().any(|group| group == AUTHENTICATED) {
        groups.push(AUTHENTICATED.to_owned());
    }
    Some(User {
        name: text(&headers.user)?,
        groups,
        ..User::default()
    })
}

/// Distinguishes tokens from users. A NUL is in neither.
fn of_token(token: &str) -> Vec<u8> {
    [b"token\0", token.as_bytes()].concat()
}

fn of_user(user: &User) -> Vec<u8> {
    let groups = user.groups.iter().map(String::as_str);
    let parts: Vec<&str> = ["user", &user.name].into_iter().chain(groups).collect();
    parts.join("\0").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(user: &'static str, groups: &[&'static str]) -> UserHeaders {
        UserHeaders {
            user: HeaderValue::from_static(user),
            groups: groups
                .iter()
                .map(|it| HeaderValue::from_static(it))
                .collect(),
            credential: HeaderValue::from_static("X509SHA256=00"),
            uid: None,
        }
    }

    #[test]
    fn the_owner_of_a_certificate_is_authenticated() {
        let expected = |groups: &[&str]| User {
            name: "alice".to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..User::default()
        };
        let devs = user(&headers("alice", &["devs"])).unwrap();
        assert_eq!(devs, expected(&["devs", AUTHENTICATED]));
        let already = user(&headers("alice", &[AUTHENTICATED, "devs"])).unwrap();
        assert_eq!(already, expected(&[AUTHENTICATED, "devs"]));
    }

    #[test]
    fn no_two_subjects_have_one_name() {
        let names = [
            of_token("user"),
            of_token("alice"),
            of_user(&user(&headers("alice", &[])).unwrap()),
            of_user(&user(&headers("alice", &["devs"])).unwrap()),
            of_user(&user(&headers("alice", &["devs", "qa"])).unwrap()),
            of_user(&user(&headers("devs", &["alice"])).unwrap()),
        ];
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }
}
