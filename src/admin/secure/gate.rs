//! Whether a request may read metrics: who asks, and when the apiserver is asked about it.

use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderMap, HeaderValue};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::decisions::Decisions;
use super::review::{self, DEADLINE, ReviewError, Subject, User, Verdict};
use crate::client::{ClientError, ClientMaker};
use crate::log_throttle::{chain, log_rarely};
use crate::relay::shared::Shared;
use crate::request::caller::{Caller, ClientConnection, UserHeaders};
use crate::request::token;

/// The group that apiservers add to every user whom they authenticate.
const AUTHENTICATED: &str = "system:authenticated";

/// Longer tokens are none: each would be sent to the apiserver.
const LONGEST_TOKEN: usize = 16 << 10;

/// Reviews at the same time.
const MOST_AT_ONCE: usize = 4;

pub(in crate::admin) struct Gate {
    shared: Arc<Shared>,
    /// Of clients for the local apiserver.
    maker: Arc<ClientMaker>,
    decisions: Decisions,
    permits: Semaphore,
    /// For those who were allowed lately: made-up tokens must not keep them waiting.
    known_permits: Semaphore,
}

impl Gate {
    pub(in crate::admin) fn new(shared: Arc<Shared>, maker: Arc<ClientMaker>) -> Self {
        Self {
            shared,
            maker,
            decisions: Decisions::default(),
            permits: Semaphore::new(MOST_AT_ONCE),
            known_permits: Semaphore::new(MOST_AT_ONCE),
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
        let authenticator = self.shared.callers.authenticator.load();
        let token = token::of_header(headers).filter(|token| token.len() <= LONGEST_TOKEN);
        let caller = authenticator.caller(connection, token.is_some(), SystemTime::now());
        drop(authenticator);
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
        let review = |known| self.review(subject, known);
        Some(self.decisions.on(&name, review).await)
    }

    /// `known`: it was allowed lately.
    async fn review(&self, subject: Subject<'_>, known: bool) -> Verdict {
        let deadline = Instant::now() + DEADLINE;
        let error = match timeout_at(deadline, self.ask(subject, known, deadline)).await {
            Ok(Ok(verdict)) => return verdict,
            Ok(Err(ReviewError::Client(ClientError::Timeout(_)))) | Err(_) => ReviewError::Late,
            Ok(Err(error)) => error,
        };
        if matches!(error, ReviewError::Client(ClientError::Refused)) {
            self.shared.local.refused();
        }
        let cause = chain(&error);
        log_rarely!(
            warn,
            error = cause,
            "the apiserver does not say who may read metrics"
        );
        Verdict::Unavailable(error.to_string())
    }

    async fn ask(
        &self,
        subject: Subject<'_>,
        known: bool,
        deadline: Instant,
    ) -> Result<Verdict, ReviewError> {
        // Before it is initialized its RBAC may be empty, and a 403 wrong.
        if !self.shared.local.is_initialized() {
            return Err(ReviewError::NotInitialized);
        }
        let permits = match known {
            true => &self.known_permits,
            false => &self.permits,
        };
        // A semaphore is never closed.
        let _permit = permits.acquire().await.ok();
        let client = self.maker.client(self.shared.config.api_server.address);
        review::ask(client, subject, deadline).await
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
