//! What happens to all kinds of objects, as etcd itself tells it: a list, and a watch that goes on at another member when
//! one is silent or gone. etcd's watches are ordered, complete and can be resumed; its revisions are the measure.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use etcd_client::{EventType, GetOptions, WatchOptions};
use testkit::etcd::Access;
use testkit::ledger::{Change, Labels};
use testkit::wait::eventually;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::informed::Objects;
use crate::kinds::KINDS;

/// Members tell their progress every second.
const SILENCE: Duration = Duration::from_secs(5);
const BACKOFF: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(90);

/// What is known of one kind.
struct History {
    start: Objects,
    changes: Vec<Change>,
    /// Everything up to here is known.
    revision: i64,
}

pub struct Reference {
    /// One for each kind.
    histories: Vec<Arc<Mutex<History>>>,
    _tasks: JoinSet<()>,
}

impl Reference {
    pub async fn start(members: Vec<Access>) -> Self {
        let mut histories = Vec::new();
        let mut tasks = JoinSet::new();
        for kind in &KINDS {
            let history = Arc::new(Mutex::new(list(&members, kind.prefix).await));
            histories.push(Arc::clone(&history));
            tasks.spawn(follow(members.clone(), kind.prefix, history));
        }
        Self {
            histories,
            _tasks: tasks,
        }
    }

    /// Everything up to this revision.
    pub async fn until(&self, kind: usize, revision: i64) -> (Objects, Vec<Change>) {
        let history = &self.histories[kind];
        eventually("etcd has told everything", PATIENCE, async || {
            history.lock().unwrap().revision >= revision
        })
        .await;
        let history = history.lock().unwrap();
        let changes = history
            .changes
            .iter()
            .filter(|change| change.revision <= revision);
        (history.start.clone(), changes.cloned().collect())
    }
}

async fn list(members: &[Access], prefix: &str) -> History {
    eventually("a list of etcd", PATIENCE, async || {
        let mut client = members[0].client().await?;
        let options = GetOptions::new().with_prefix().with_keys_only();
        let answer = client.get(prefix, Some(options)).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let revision = answer
            .header()
            .map_or(0, etcd_client::ResponseHeader::revision);
        let objects = answer
            .kvs()
            .iter()
            .map(|kv| (object(kv.key(), prefix), kv.mod_revision()));
        Ok::<_, String>(History {
            start: objects.collect(),
            changes: Vec::new(),
            revision,
        })
    })
    .await
}

async fn follow(members: Vec<Access>, prefix: &'static str, history: Arc<Mutex<History>>) {
    for member in members.iter().cycle() {
        // A member that is gone, silent or without a leader: the next one.
        let _ = watch(member, prefix, &history).await;
        sleep(BACKOFF).await;
    }
}

async fn watch(member: &Access, prefix: &str, history: &Mutex<History>) -> Result<(), String> {
    let text = |error: etcd_client::Error| error.to_string();
    let mut client = timeout(SILENCE, member.client())
        .await
        .map_err(|_| "silent")??;
    let from = history.lock().unwrap().revision + 1;
    let options = WatchOptions::new()
        .with_prefix()
        .with_start_revision(from)
        .with_progress_notify();
    let watch = timeout(SILENCE, client.watch(prefix, Some(options))).await;
    let mut watch = watch.map_err(|_| "silent")?.map_err(text)?;
    loop {
        let message = timeout(SILENCE, watch.message())
            .await
            .map_err(|_| "silent")?;
        let message = message.map_err(text)?.ok_or("it ended")?;
        if message.canceled() {
            return Err(message.cancel_reason().to_owned());
        }
        let mut history = history.lock().unwrap();
        history.changes.extend(
            message
                .events()
                .iter()
                .filter_map(|event| change(event, prefix)),
        );
        // The answer to the request itself may come before older events; later ones come in order.
        let revision = message
            .header()
            .map_or(0, etcd_client::ResponseHeader::revision);
        if !message.created() {
            history.revision = history.revision.max(revision);
        }
    }
}

fn change(event: &etcd_client::Event, prefix: &str) -> Option<Change> {
    let kv = event.kv()?;
    let object = object(kv.key(), prefix);
    let (namespace, name) = object.split_once('/')?;
    let put = event.event_type() == EventType::Put;
    let is_new = put && kv.create_revision() == kv.mod_revision();
    Some(Change {
        revision: kv.mod_revision(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        before: (!is_new).then(Labels::new),
        after: put.then(Labels::new),
    })
}

fn object(key: &[u8], prefix: &str) -> String {
    let key = String::from_utf8_lossy(key);
    key.strip_prefix(prefix).unwrap_or(&key).to_owned()
}
