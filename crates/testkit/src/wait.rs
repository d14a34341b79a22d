//! Waits for a condition: polls until it holds, or panics with the last observation.

use std::fmt::Display;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

/// Between two attempts; longer where it takes long anyway.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// A pause is this part of the time so far, within these limits: nothing is seen much later than it is so.
const PART: u32 = 20;

/// The result of an attempt: `Option`, `Result` or `bool`.
pub trait Attempt {
    type Value;

    /// The value, or why there is none yet.
    fn outcome(self) -> Result<Self::Value, String>;
}

impl<T> Attempt for Option<T> {
    type Value = T;

    fn outcome(self) -> Result<T, String> {
        self.ok_or_else(|| "nothing there".to_owned())
    }
}

impl<T, E: Display> Attempt for Result<T, E> {
    type Value = T;

    fn outcome(self) -> Result<T, String> {
        self.map_err(|error| format!("{error:#}"))
    }
}

impl Attempt for bool {
    type Value = ();

    fn outcome(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(|| "not so".to_owned())
    }
}

/// Asks until there is a value, at most `timeout` long; panics then, with `what` and the last failure.
pub async fn eventually<A: Attempt>(
    what: &str,
    timeout: Duration,
    attempt: impl AsyncFnMut() -> A,
) -> A::Value {
    match within(timeout, attempt).await {
        Ok(value) => value,
        Err(last) => panic!("{what}: not within {timeout:?}; last seen: {last}"),
    }
}

/// Like [`eventually`], for callers that have more to say about a failure.
pub async fn within<A: Attempt>(
    timeout: Duration,
    mut attempt: impl AsyncFnMut() -> A,
) -> Result<A::Value, String> {
    let begun = Instant::now();
    let deadline = begun + timeout;
    let mut last = "the first attempt never ended".to_owned();
    loop {
        match timeout_at(deadline, attempt()).await {
            Ok(answer) => match answer.outcome() {
                Ok(value) => return Ok(value),
                Err(why) => last = why,
            },
            Err(_) => return Err(last),
        }
        if Instant::now() >= deadline {
            return Err(last);
        }
        sleep((begun.elapsed() / PART).clamp(PAUSE, LONGEST_PAUSE)).await;
    }
}

/// Panics as soon as `condition` fails within `time`: for what must not happen.
pub async fn holds<A: Attempt>(what: &str, time: Duration, mut condition: impl AsyncFnMut() -> A) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        if let Err(why) = condition().await.outcome() {
            panic!("{what}: no longer so: {why}");
        }
        sleep(PAUSE).await;
    }
}
