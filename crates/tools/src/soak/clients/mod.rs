//! Clients of the cluster, which go through the balancer and repeat requests as client-go does.

pub mod controlled;
pub mod definitions;
pub mod informer;
pub mod kubectl;
pub mod partly;
pub mod reader;
pub mod stream;
pub mod writer;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use testkit::client::{Client, Response};
use tokio::time::{sleep, timeout};

use crate::book::{Book, Exchange, Until};
use crate::exchange::{Answer, Outcome, again};
use crate::rules::{Expected, Verdict, read, unless_early};

/// In which every attempt is answered, a write too: a frozen server is noticed after 15 s, the next may be one too, and
/// the machine may be busy.
pub const BOUND: Duration = Duration::from_secs(60);
/// client-go's own for a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// After so many requests on one connection the balancer gives another server.
const REQUESTS: usize = 20;

pub struct Session {
    pub name: String,
    pub client: Client,
    pub book: Arc<Book>,
    asks_readiness: bool,
    /// The versions that can answer; `None`: all.
    pub minors: Option<Range<u32>>,
    asked: usize,
}

impl Session {
    pub fn new(name: String, client: &Client, book: Arc<Book>) -> Self {
        Self {
            name,
            // Its own limit must not win: silence would look like a broken connection.
            client: client.timeout(2 * BOUND),
            book,
            asks_readiness: false,
            minors: None,
            asked: 0,
        }
    }

    /// Every request carries the header of KEP-3028.
    pub fn asking_readiness(self) -> Self {
        Self {
            client: self.client.header("X-Kubernetes-If-Ready", "true"),
            asks_readiness: true,
            ..self
        }
    }

    /// Asks until client-go would give up.
    pub async fn ask(&mut self, method: &str, path: &str, body: &str) -> Exchange {
        self.asked += 1;
        if self.asked.is_multiple_of(REQUESTS) {
            self.client.reconnect().await;
        }
        let from = self.book.now();
        let mut attempts = Vec::new();
        let mut last;
        loop {
            last = self.book.now();
            let outcome = self.attempt(method, path, body).await;
            if method == "GET" {
                let what = format!("{}: {path}: {}", self.name, outcome.describe());
                self.book.waited(last, what);
            }
            let is_answerable = |minors| self.book.is_answerable(minors, last, Until::Stopping);
            if outcome.is_trouble() && self.minors.as_ref().is_none_or(is_answerable) {
                let what = format!("{}: {method} {path}: {}", self.name, outcome.describe());
                self.book.trouble(last, what);
            }
            let pause = again(method == "GET", &outcome, attempts.len() + 1);
            attempts.push(outcome);
            match pause {
                Some(pause) => sleep(pause).await,
                None => break,
            }
        }
        Exchange {
            what: format!("{method} {path}"),
            from,
            last,
            attempts,
        }
    }

    async fn attempt(&self, method: &str, path: &str, body: &str) -> Outcome {
        let connected = match timeout(HANDSHAKE, self.client.connect_first()).await {
            Ok(connected) => connected.map_err(|error| format!("{error:#}")),
            Err(_) => Err("no TLS handshake in time".to_owned()),
        };
        if let Err(why) = connected {
            self.client.reconnect().await;
            return Outcome::NotSent(why);
        }
        let asked = self.client.try_request(method, path, body.to_owned());
        match timeout(BOUND, asked).await {
            Ok(Ok(response)) => Outcome::Answered(answer(&response)),
            Ok(Err(error)) => {
                self.client.reconnect().await;
                broken(&error)
            }
            Err(_) => {
                self.client.reconnect().await;
                Outcome::Silent
            }
        }
    }

    /// A read, judged and written down.
    pub async fn read(&mut self, path: &str, expected: &Expected) -> Exchange {
        let exchange = self.ask("GET", path, "").await;
        let verdict = read(expected, &exchange.attempts);
        self.note(&exchange, verdict);
        exchange
    }

    pub fn note(&self, exchange: &Exchange, verdict: Verdict) {
        let may_be_early = !self.asks_readiness && self.book.was_starting_since(exchange.last);
        let verdict = match may_be_early {
            true => unless_early(verdict),
            false => verdict,
        };
        self.book.request(&self.name, exchange, verdict);
    }
}

fn broken(error: &anyhow::Error) -> Outcome {
    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<hyper::Error>());
    let why = format!("{error:#}");
    if causes.any(hyper::Error::is_canceled) {
        return Outcome::NotSent(why);
    }
    let reasons = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<h2::Error>());
    let mut reasons = reasons.filter_map(h2::Error::reason);
    match reasons.any(|reason| reason == h2::Reason::REFUSED_STREAM) {
        true => Outcome::Refused(why),
        false => Outcome::Broken(why),
    }
}

pub fn answer(response: &Response) -> Answer {
    Answer {
        code: response.code(),
        retry_after: response.header("retry-after").parse().ok(),
        body: serde_json::from_slice(&response.body).unwrap_or(Value::Null),
    }
}
