//! One request as client-go makes it, with all its attempts: what is repeated, and what may have been executed. Pure.

use std::time::Duration;

use serde_json::Value;

/// How often client-go asks again.
pub const MOST: usize = 10;
const AFTER_BROKEN: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub enum Outcome {
    /// No connection: certainly not sent.
    NotSent(String),
    /// The connection broke before the answer was complete.
    Broken(String),
    /// The stream was refused before an answer (REFUSED_STREAM), which a proxy may do late.
    Refused(String),
    /// Nothing came within the bound.
    Silent,
    Answered(Answer),
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub code: u16,
    pub retry_after: Option<u64>,
    /// Null if it is not JSON.
    pub body: Value,
}

/// How long client-go waits before it asks again, if it does. `asked`: how often it has.
pub fn again(reads: bool, outcome: &Outcome, asked: usize) -> Option<Duration> {
    if asked > MOST {
        return None;
    }
    match outcome {
        Outcome::Answered(answer) if answer.code == 429 || answer.code >= 500 => {
            answer.retry_after.map(Duration::from_secs)
        }
        Outcome::Broken(_) if reads => Some(AFTER_BROKEN),
        // The balancer knows another server by then. Go's HTTP/2 client repeats what was refused.
        Outcome::NotSent(_) | Outcome::Refused(_) => Some(AFTER_BROKEN),
        Outcome::Answered(_) | Outcome::Broken(_) | Outcome::Silent => None,
    }
}

impl Outcome {
    pub fn answer(&self) -> Option<&Answer> {
        match self {
            Self::Answered(answer) => Some(answer),
            _ => None,
        }
    }

    /// Whether a write may have been executed although it was not answered with success. A proxy says 503 with
    /// `Retry-After` only for what was not executed; the apiserver's own 500 and 504 are about etcd, and say nothing.
    pub fn is_uncertain(&self) -> bool {
        match self {
            Self::NotSent(_) => false,
            Self::Broken(_) | Self::Refused(_) | Self::Silent => true,
            Self::Answered(answer) => match answer.code {
                500 | 504 => true,
                503 => answer.retry_after.is_none(),
                _ => false,
            },
        }
    }

    /// What no client should see while nothing is broken.
    pub fn is_trouble(&self) -> bool {
        self.answer()
            .is_none_or(|answer| answer.code == 429 || answer.code >= 500)
    }

    pub fn describe(&self) -> String {
        match self {
            Self::NotSent(why) => format!("not sent: {why}"),
            Self::Broken(why) => format!("broken off: {why}"),
            Self::Refused(why) => format!("refused: {why}"),
            Self::Silent => "no answer within the bound".to_owned(),
            Self::Answered(answer) => {
                let retry = match answer.retry_after {
                    Some(seconds) => format!(" (Retry-After {seconds})"),
                    None => String::new(),
                };
                format!("{}{retry} {}", answer.code, answer.message())
            }
        }
    }
}

impl Answer {
    pub fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    pub fn revision(&self) -> Option<i64> {
        let revision = self.body["metadata"]["resourceVersion"].as_str()?;
        revision.parse().ok()
    }
}

#[cfg(test)]
mod tests;
