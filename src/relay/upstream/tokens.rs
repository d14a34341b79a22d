//! Remembers bearer tokens that apiservers have accepted: their requests may share upstream connections.
//!
//! Since 1.29 kube-apiserver closes an HTTP/2 connection after each request that it does not authenticate. A request
//! with a token that was never accepted must not use a shared connection. A token is remembered by a keyed hash. A
//! false match costs other requests a connection, nothing more.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashSet;
use http::Method;
use http::header::{AUTHORIZATION, HeaderMap};

use crate::request::token;

/// Most tokens in one of the two generations.
const MOST: usize = 8192;

/// A token's hash, keyed by a secret of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(u64);

/// Accepted tokens of one serving thread.
#[derive(Debug, Default)]
pub struct Tokens {
    key: RandomState,
    accepted: Mutex<Generations>,
}

/// Two generations of tokens: a token that is not used is forgotten with the older one.
#[derive(Debug, Default)]
struct Generations {
    young: HashSet<Token>,
    old: HashSet<Token>,
}

impl Tokens {
    /// The bearer token of a request. Callers with other credentials are anonymous.
    pub fn of(&self, headers: &HeaderMap) -> Option<Token> {
        let token = headers
            .get(AUTHORIZATION)
            .filter(|_| token::is_there(headers, false))?;
        Some(Token(self.key.hash_one(token.as_bytes())))
    }

    pub fn is_known(&self, token: Token) -> bool {
        let mut accepted = self.lock();
        if accepted.young.contains(&token) {
            return true;
        }
        let old = accepted.old.remove(&token);
        if old {
            accepted.remember(token);
        }
        old
    }

    /// An apiserver answered a request with this token. Returns whether the token became known.
    ///
    /// Before kube-apiserver checks a token, it may answer 204 to OPTIONS (CORS), 400 (a malformed `timeout`), 429 (it
    /// shuts down), 431, 500, 503 (it starts or shuts down) and 504. So such codes prove nothing, nor does any answer to
    /// OPTIONS.
    pub fn answered(&self, token: Token, method: &Method, code: u16) -> bool {
        let mut accepted = self.lock();
        match code {
            401 => {
                accepted.forget(token);
                false
            }
            _ if *method == Method::OPTIONS => false,
            200..300 | 403 | 404 | 409 | 410 | 422 => accepted.remember(token),
            _ => false,
        }
    }

    /// Never contended: all users are on one thread, and none waits while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Generations {
    /// Returns whether the token is new in the young generation.
    fn remember(&mut self, token: Token) -> bool {
        if self.young.contains(&token) {
            return false;
        }
        if self.young.len() >= MOST {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(token)
    }

    fn forget(&mut self, token: Token) {
        self.young.remove(&token);
        self.old.remove(&token);
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn token(tokens: &Tokens, number: usize) -> Token {
        let value = HeaderValue::try_from(format!("Bearer {number}")).unwrap();
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
        tokens.of(&headers).unwrap()
    }

    #[test]
    fn a_token_is_known_from_its_first_acceptance_until_it_is_refused() {
        let tokens = Tokens::default();
        let (good, other) = (token(&tokens, 1), token(&tokens, 2));
        assert!(!tokens.is_known(good));
        for code in [101, 302, 400, 401, 408, 413, 429, 431, 500, 503] {
            tokens.answered(good, &Method::GET, code);
            assert!(!tokens.is_known(good), "{code}");
        }
        tokens.answered(good, &Method::OPTIONS, 204);
        assert!(!tokens.is_known(good), "a preflight");
        tokens.answered(good, &Method::GET, 403);
        assert!(tokens.is_known(good) && !tokens.is_known(other));
        tokens.answered(good, &Method::GET, 503);
        assert!(tokens.is_known(good));
        tokens.answered(good, &Method::GET, 401);
        assert!(!tokens.is_known(good));
    }

    #[test]
    fn only_what_an_apiserver_takes_for_a_token_is_one() {
        let tokens = Tokens::default();
        for (value, expected) in [("Bearer x", true), ("Basic eDp5", false), ("Bearer", false)] {
            let value = HeaderValue::from_static(value);
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.clone())]);
            assert_eq!(tokens.of(&headers).is_some(), expected, "{value:?}");
        }
    }

    #[test]
    fn tokens_that_are_used_outlive_any_number_of_others() {
        let tokens = Tokens::default();
        let good = token(&tokens, 0);
        tokens.answered(good, &Method::GET, 200);
        for number in 1..5 * MOST {
            tokens.answered(token(&tokens, number), &Method::GET, 200);
            if number % MOST == 0 {
                assert!(tokens.is_known(good), "{number}");
            }
        }
        let accepted = tokens.lock();
        assert!(accepted.young.len() + accepted.old.len() <= 2 * MOST);
    }
}
