//! Watches: JSON lines, or protobuf with the metadata of objects alone. Sends the header and every event at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::body::{Body, BoxError, channel};
use super::protobuf::{Message, envelope};
use super::resources::ServedResource;
use super::state::State;
use super::status::{Status, accepts_protobuf};
use super::store::{Change, Key};

/// As long as kube-apiserver's own, so that no test sees it by chance.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1800);

pub struct Watch {
    state: Arc<State>,
    served: ServedResource,
    scope: Key,
    bookmarks: bool,
    protobuf: bool,
    sender: mpsc::Sender<Result<Bytes, BoxError>>,
    ends: tokio::sync::watch::Receiver<()>,
    /// Everything up to here has been sent.
    revision: u64,
}

/// The client is gone.
struct Gone;

/// Answers at once; a task sends the events until the client disconnects or the timeout ends.
pub fn start(
    state: &Arc<State>,
    served: ServedResource,
    scope: Key,
    query: &HashMap<String, String>,
    headers: &HeaderMap,
) -> Response<Body> {
    // Custom resources have no protobuf.
    let protobuf = accepts_protobuf(headers) && !served.custom;
    let (sender, body) = channel();
    let flag = |name: &str| {
        query
            .get(name)
            .is_some_and(|value| value == "true" || value == "1")
    };
    let from = query.get("resourceVersion").cloned().unwrap_or_default();
    let as_status = !flag("sendInitialEvents") && state.read(|it| it.expired_as_status);
    if let Some(expired) = too_old(state, &from).filter(|_| as_status) {
        return expired.answer(headers);
    }
    let timeout = query
        .get("timeoutSeconds")
        .and_then(|value| value.parse().ok());
    let timeout = timeout.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    let bookmarks = flag("allowWatchBookmarks");
    let watch = Watch {
        state: Arc::clone(state),
        served,
        scope,
        bookmarks,
        protobuf,
        sender,
        ends: state.watches_end.subscribe(),
        revision: 0,
    };
    tokio::spawn(watch.run(from, flag("sendInitialEvents"), Instant::now() + timeout));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static(match protobuf {
            true => "application/vnd.kubernetes.protobuf;stream=watch",
            false => "application/json",
        }),
    );
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("no-cache, private"),
    );
    response
}

impl Watch {
    async fn run(mut self, from: String, initial_events: bool, end: Instant) {
        // Before the first look, so that no change falls between.
        let changed = self.state.store.subscribe();
        if self.begin(&from, initial_events).await.is_ok() {
            // An error means that the client is gone.
            let _ = self.follow(changed, end).await;
        }
    }

    /// Finds the place to start at; sends what comes before it.
    async fn begin(&mut self, from: &str, initial_events: bool) -> Result<(), Gone> {
        let revision = from.parse::<u64>().unwrap_or(0);
        if revision > 0 && !initial_events {
            if let Some(expired) = too_old(&self.state, from) {
                self.send_frame(match self.protobuf {
                    true => protobuf_frame("ERROR", &expired.protobuf()),
                    false => json_line("ERROR", &expired.json()),
                })
                .await?;
                return Err(Gone);
            }
            self.revision = revision;
            return Ok(());
        }
        let (objects, revision) = self.state.store.list(&self.scope);
        self.revision = revision;
        for object in objects {
            self.send("ADDED", self.typed(object)).await?;
        }
        if initial_events {
            self.bookmark(json!({"k8s.io/initial-events-end": "true"}))
                .await?;
        }
        Ok(())
    }

    async fn follow(
        &mut self,
        mut changed: tokio::sync::watch::Receiver<u64>,
        end: Instant,
    ) -> Result<(), Gone> {
        let mut asked = self.state.bookmarks.subscribe();
        loop {
            let (changes, revision) = self.state.store.changes_after(self.revision, &self.scope);
            for Change { kind, object, .. } in changes {
                self.send(kind, self.typed(object)).await?;
            }
            // A watch from the future waits for it.
            self.revision = self.revision.max(revision);
            tokio::select! {
                _ = changed.changed() => {}
                _ = asked.changed() => self.bookmark(Value::Null).await?,
                () = self.sender.closed() => return Err(Gone),
                () = sleep_until(end) => return Ok(()),
                _ = self.ends.changed() => return Ok(()),
            }
        }
    }

    async fn bookmark(&self, annotations: Value) -> Result<(), Gone> {
        if !self.bookmarks {
            return Ok(());
        }
        let mut object = json!({"metadata": {"resourceVersion": self.revision.to_string()}});
        if !annotations.is_null() {
            object["metadata"]["annotations"] = annotations;
        }
        self.send("BOOKMARK", self.typed(object)).await
    }

    async fn send(&self, kind: &str, object: Value) -> Result<(), Gone> {
        let frame = match self.protobuf {
            true => protobuf_frame(kind, &protobuf_object(&object)),
            false => json_line(kind, &object),
        };
        self.send_frame(frame).await
    }

    async fn send_frame(&self, frame: Bytes) -> Result<(), Gone> {
        self.sender.send(Ok(frame)).await.map_err(|_| Gone)?;
        // Thousands of watches must not keep the double from answering pings.
        tokio::task::yield_now().await;
        Ok(())
    }

    fn typed(&self, mut object: Value) -> Value {
        object["kind"] = json!(self.served.kind);
        object["apiVersion"] = json!(self.served.group_version());
        object
    }
}

/// A history start: it begins after the first watch was asked for, as that of a custom resource does.
pub const AT_FIRST_WATCH: u64 = u64::MAX;

/// The 410 of a watch that starts before the history.
fn too_old(state: &State, from: &str) -> Option<Status> {
    let revision = from.parse().unwrap_or(0);
    let oldest = state.read(|settings| settings.history_start);
    let oldest = match oldest {
        AT_FIRST_WATCH => {
            let next = state.store.revision() + 1;
            state.write(|settings| settings.history_start = next);
            next
        }
        oldest => oldest,
    };
    (0 < revision && revision < oldest).then(|| Status::expired(revision, oldest))
}

/// Its fields in kube-apiserver's order.
fn json_line(kind: &str, object: &Value) -> Bytes {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n").into()
}

/// The length and a `metav1.WatchEvent`.
fn protobuf_frame(kind: &str, object: &[u8]) -> Bytes {
    let object = Message::default().bytes(1, object);
    let event = Message::default().string(1, kind).message(2, &object);
    let event = event.finish();
    let length = u32::try_from(event.len()).expect("a short event");
    [&length.to_be_bytes()[..], &event].concat().into()
}

/// Its type and metadata in the envelope.
fn protobuf_object(object: &Value) -> Vec<u8> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    let metadata = Message::default()
        .string(1, &text(&metadata["name"]))
        .string(3, &text(&metadata["namespace"]))
        .string(6, &text(&metadata["resourceVersion"]));
    let raw = Message::default().message(1, &metadata);
    envelope(&text(&object["apiVersion"]), &text(&object["kind"]), &raw)
}
