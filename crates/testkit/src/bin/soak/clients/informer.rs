//! Lists all objects of a kind and watches them, and goes on from the last event or bookmark.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use testkit::client::Streaming;
use testkit::ledger::{Event, Told, What};
use tokio::time::sleep;

use crate::book::Exchange;
use crate::clients::{Session, answer};
use crate::exchange::{Answer, Outcome};
use crate::informed::{Objects, Story};
use crate::kinds::{ANCHOR, KINDS, USERS};
use crate::rules::{Expected, Verdict};

/// After which silence of a stream it asks again.
const QUIET: Duration = Duration::from_secs(60);
const BACKOFF: Duration = Duration::from_millis(300);

pub struct Informer {
    pub session: Session,
    pub kind: usize,
    pub story: Arc<Mutex<Story>>,
}

impl Informer {
    /// Never ends by itself: what is told last counts most.
    pub async fn run(mut self) {
        loop {
            let Some(mut position) = self.list().await else {
                continue;
            };
            // Until that is too old.
            while let Some(newer) = self.watch(position).await {
                position = newer;
            }
            self.session.book.relist(&self.session.name, position);
        }
    }

    fn tell(&self, told: Told) {
        self.story.lock().unwrap().told.push(told);
    }

    async fn list(&mut self) -> Option<i64> {
        let object = format!("{}/{ANCHOR}", USERS[0].namespace);
        let path = KINDS[self.kind].everywhere();
        let exchange = self.session.read(&path, &Expected::List { object }).await;
        let answer = exchange.attempts.last().and_then(Outcome::answer)?;
        let revision = answer.revision()?;
        let mut story = self.story.lock().unwrap();
        if !story.lists.is_empty() {
            story.told.push(Told::Listed(Some(revision)));
        }
        story.lists.push((revision, objects(&answer.body)));
        Some(revision)
    }

    /// One watch to its end; from where the next has to go on, unless that is too old.
    async fn watch(&mut self, from: i64) -> Option<i64> {
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={from}",
            KINDS[self.kind].everywhere()
        );
        let begun = self.session.book.now();
        self.session.client.reconnect().await;
        let stream = match self.session.client.try_open("GET", &path, "").await {
            Ok(stream) if stream.status == 200 => stream,
            Ok(stream) if stream.status == 410 => return None,
            Ok(stream) => {
                self.refused(&path, begun, stream).await;
                return Some(from);
            }
            // Whether that may last is seen by what it is not told.
            Err(_) => {
                sleep(BACKOFF).await;
                return Some(from);
            }
        };
        self.follow(stream, from).await
    }

    async fn refused(&self, path: &str, begun: Duration, stream: Streaming) {
        let Ok(response) = stream.collect().await else {
            return;
        };
        let answer = answer(&response);
        let said = format!("{} {}", answer.code, answer.message());
        let pause = answer.retry_after.map_or(BACKOFF, Duration::from_secs);
        let verdict = match answer.code {
            429 | 500.. => Verdict::Failed(said),
            _ => Verdict::Violation(format!("a watch is refused: {said}")),
        };
        let exchange = exchange(path, begun, answer);
        if exchange.attempts.iter().any(Outcome::is_trouble) {
            let what = format!(
                "{}: {path}: {}",
                self.session.name,
                exchange.attempts[0].describe()
            );
            self.session.book.trouble(begun, what);
        }
        self.session.note(&exchange, verdict);
        sleep(pause).await;
    }

    async fn follow(&self, mut stream: Streaming, mut position: i64) -> Option<i64> {
        // A stream that breaks off, and one that is quiet for long, is asked for again.
        while let Ok(Some(event)) = stream.next_event(QUIET).await {
            let object = &event["object"];
            let what = match event["type"].as_str() {
                Some("ADDED" | "MODIFIED") => What::Applied,
                Some("DELETED") => What::Deleted,
                Some("BOOKMARK") => {
                    position = revision(object);
                    self.tell(Told::Bookmark(position));
                    continue;
                }
                _ if object["code"] == 410 => return None,
                _ => return Some(position),
            };
            position = revision(object);
            self.tell(Told::Event(Event {
                revision: position,
                object: name(object),
                what,
            }));
        }
        Some(position)
    }
}

fn exchange(path: &str, from: Duration, answer: Answer) -> Exchange {
    Exchange {
        what: format!("GET {path}"),
        from,
        last: from,
        attempts: vec![Outcome::Answered(answer)],
    }
}

fn objects(list: &Value) -> Objects {
    let items = list["items"].as_array().into_iter().flatten();
    items.map(|item| (name(item), revision(item))).collect()
}

fn name(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap();
    format!("{}/{}", text("namespace"), text("name"))
}

fn revision(object: &Value) -> i64 {
    let revision = object["metadata"]["resourceVersion"].as_str().unwrap();
    revision.parse().unwrap()
}
