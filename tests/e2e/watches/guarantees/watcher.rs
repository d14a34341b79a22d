//! A client that watches ConfigMaps of one proxy, and remembers what it was told.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;

use super::data_of;
use testkit::client::Client;
use testkit::cluster::LONG;
use testkit::guarantees::{Event, Kind, Stream, Told, Violation, begins_within, check};

/// Before a watch that was refused is asked for again.
const BACKOFF: Duration = Duration::from_millis(100);

/// One who watches, and goes on where a watch ended.
pub struct Watcher {
    /// Empty: all.
    namespace: &'static str,
    client: Client,
    /// In their order; the last is open.
    streams: Mutex<Vec<Stream>>,
    /// From where it was told that the history is gone.
    expired: Mutex<Vec<i64>>,
}

impl Watcher {
    pub fn new(namespace: &'static str, client: Client, from: i64) -> Self {
        Self {
            namespace,
            client,
            streams: Mutex::new(vec![Stream::new(from)]),
            expired: Mutex::default(),
        }
    }

    /// Watches until the last object.
    pub async fn run(&self) {
        while !self.is_told_all() {
            let from = self.streams.lock().unwrap().last().unwrap().position();
            self.streams.lock().unwrap().push(Stream::new(from));
            self.watch(from).await;
            self.client.reconnect().await;
        }
    }

    async fn watch(&self, from: i64) {
        let namespace = match self.namespace {
            "" => String::new(),
            namespace => format!("namespaces/{namespace}/"),
        };
        let path = format!(
            "/api/v1/{namespace}configmaps?watch=true&allowWatchBookmarks=true&resourceVersion={from}"
        );
        let mut stream = match self.client.try_open("GET", &path, "").await {
            Ok(stream) if stream.status == 200 => stream,
            Ok(stream) if stream.status == 410 => return self.has_expired(from).await,
            _ => return tokio::time::sleep(BACKOFF).await,
        };
        while let Ok(Some(event)) = stream.next_event(LONG).await {
            let Some(told) = told(&event) else {
                assert_eq!(event["object"]["code"], 410, "{event}");
                return self.has_expired(from).await;
            };
            self.streams
                .lock()
                .unwrap()
                .last_mut()
                .unwrap()
                .told
                .push(told);
            if self.is_told_all() {
                return;
            }
        }
    }

    async fn has_expired(&self, from: i64) {
        self.expired.lock().unwrap().push(from);
        tokio::time::sleep(BACKOFF).await;
    }

    fn is_told_all(&self) -> bool {
        let streams = self.streams.lock().unwrap();
        let last = streams.last().unwrap().told.last();
        let object = match self.namespace {
            "default" => "default/last",
            _ => "quiet/last",
        };
        matches!(last, Some(Told::Event(event)) if event.object == object)
    }

    /// What is wrong with its watches.
    pub fn violations(&self, history: &[Event]) -> Vec<String> {
        let prefix = match self.namespace {
            "" => String::new(),
            namespace => format!("{namespace}/"),
        };
        let history: Vec<_> = history
            .iter()
            .filter(|event| event.object.starts_with(&prefix))
            .cloned()
            .collect();
        let mut violations = Vec::new();
        for stream in &*self.streams.lock().unwrap() {
            let mut found = check(&history, stream);
            // kube-apiserver's doing, not the proxy's.
            if begins_within(&found).is_some() {
                found.retain(|violation| !matches!(violation, Violation::Torn(_)));
            }
            violations.extend(
                found
                    .iter()
                    .map(|violation| format!("{prefix} from {}: {violation}", stream.from)),
            );
        }
        let expired = self.expired.lock().unwrap();
        violations.extend(
            expired
                .iter()
                .map(|from| format!("{prefix} not resumable from {from}")),
        );
        violations
    }

    pub fn bookmarks(&self) -> usize {
        let streams = self.streams.lock().unwrap();
        let told = streams.iter().flat_map(|stream| &stream.told);
        told.filter(|told| matches!(told, Told::Bookmark(_)))
            .count()
    }
}

/// What a frame of a watch tells, unless it is an error.
fn told(event: &Value) -> Option<Told> {
    let object = &event["object"];
    let metadata = &object["metadata"];
    let revision = || {
        metadata["resourceVersion"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap()
    };
    let kind = match event["type"].as_str()? {
        "ADDED" => Kind::Added,
        "MODIFIED" => Kind::Modified,
        "DELETED" => Kind::Deleted,
        "BOOKMARK" => return Some(Told::Bookmark(revision())),
        _ => return None,
    };
    let text = |field: &str| metadata[field].as_str().unwrap();
    Some(Told::Event(Event {
        revision: revision(),
        object: format!("{}/{}", text("namespace"), text("name")),
        kind,
        data: data_of(object),
    }))
}
