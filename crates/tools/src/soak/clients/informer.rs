//! Lists all objects of a kind and watches them, and goes on from the last event or bookmark.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::anyhow;
use serde_json::Value;
use testkit::client::Streaming;
use testkit::ledger::Told;
use tokio::time::{sleep, timeout};

use crate::book::Exchange;
use crate::clients::{BOUND, Session, answer};
use crate::exchange::{Answer, Outcome};
use crate::informed::{Objects, Story};
use crate::kinds::{ANCHOR, KINDS, USERS};
use crate::rules::{Expected, Verdict};
use crate::watched::{Heard, heard, may_end, name, revision};

/// After which silence of a stream it asks again. The writers are never quiet for so long.
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
                sleep(BACKOFF).await;
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
        let answer = exchange.answer()?;
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
        let opened = timeout(BOUND, self.session.client.try_open("GET", &path, "")).await;
        let opened = opened.unwrap_or_else(|_| Err(anyhow!("no header within the bound")));
        let stream = match opened {
            Ok(stream) if stream.status == 200 => stream,
            Ok(stream) if stream.status == 410 => return None,
            Ok(stream) => {
                self.refused(&path, begun, stream).await;
                return Some(from);
            }
            Err(error) => {
                self.trouble(begun, &format!("not opened: {error:#}"));
                sleep(BACKOFF).await;
                return Some(from);
            }
        };
        self.follow(stream, from, begun).await
    }

    async fn refused(&self, path: &str, begun: Duration, stream: Streaming) {
        let collected = timeout(BOUND, stream.collect()).await;
        let response = match collected.unwrap_or_else(|_| Err(anyhow!("no end of the body"))) {
            Ok(response) => response,
            Err(error) => {
                self.trouble(begun, &format!("a refusal without its end: {error:#}"));
                return sleep(BACKOFF).await;
            }
        };
        let answer = answer(&response);
        let said = format!("{} {}", answer.code, answer.message());
        let pause = answer.retry_after.map_or(BACKOFF, Duration::from_secs);
        let verdict = match answer.code {
            429 | 500.. => Verdict::Failed(said),
            403 => Verdict::Refused(format!("a watch is refused: {said}")),
            _ => Verdict::Violation(format!("a watch is refused: {said}")),
        };
        let exchange = exchange(path, begun, answer);
        if exchange.attempts.iter().any(Outcome::is_trouble) {
            let what = format!("{path}: {}", exchange.attempts[0].describe());
            self.trouble(begun, &what);
        }
        self.session.note(&exchange, verdict);
        sleep(pause).await;
    }

    /// However it ends, it is asked for again.
    async fn follow(
        &self,
        mut stream: Streaming,
        mut position: i64,
        begun: Duration,
    ) -> Option<i64> {
        let book = &self.session.book;
        loop {
            let before = book.now();
            match heard(stream.next_line(QUIET).await) {
                Heard::Event(event) => {
                    position = event.revision;
                    self.tell(Told::Event(event));
                    continue;
                }
                Heard::Bookmark(revision) => {
                    position = revision;
                    self.tell(Told::Bookmark(position));
                    continue;
                }
                Heard::Expired => return None,
                // Then nobody writes any more.
                Heard::Silence if book.is_stopped() => {}
                Heard::Silence => self.trouble(before, "a silent watch"),
                Heard::CleanEnd if may_end(book.now().saturating_sub(begun)) => {}
                Heard::CleanEnd => self.ended("a watch ended early"),
                Heard::Broken(why) => self.ended(&format!("a watch: {why}")),
                Heard::Garbage(line) => {
                    let name = &self.session.name;
                    book.violation(format!("{name}: not an event: {line}"));
                }
            }
            sleep(BACKOFF).await;
            return Some(position);
        }
    }

    fn ended(&self, what: &str) {
        let what = format!("{}: {what}", self.session.name);
        self.session.book.watch_ended(what);
    }

    /// What may only be while something is broken.
    fn trouble(&self, from: Duration, what: &str) {
        let what = format!("{}: {what}", self.session.name);
        self.session.book.trouble(from, what);
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
    // One without a name or a revision is missing, and so the list is not what etcd had.
    let object = |item| Some((name(item)?, revision(item)?));
    items.filter_map(object).collect()
}
