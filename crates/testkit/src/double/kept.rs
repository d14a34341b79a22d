//! Objects of doubles that a real etcd keeps, where kube-apiserver keeps them: their revisions are etcd's. They are
//! written to etcd itself.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, Event, EventType, WatchOptions, WatchResponse};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::store::{Kept, Key, Store};
use crate::etcd::{Access, Etcd};

/// The groups of resources that are found in etcd. All of them are in namespaces.
const RESOURCES: [(&str, &str); 2] = [("", "secrets"), ("autoscaling", "horizontalpodautoscalers")];
/// After etcd has not answered.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for etcd, as of kube-apiserver's requests.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct KeptInEtcd {
    pub store: Arc<Store>,
    access: Access,
    /// Ends when it is dropped.
    _following: JoinSet<()>,
}

impl KeptInEtcd {
    pub fn new(etcd: &Etcd) -> Arc<Self> {
        let store = Store::kept_elsewhere();
        let mut following = JoinSet::new();
        following.spawn(follow(store.clone(), etcd.access()));
        Arc::new(Self {
            store,
            access: etcd.access(),
            _following: following,
        })
    }

    /// Waits until everything is known that etcd has now.
    pub async fn catch_up(&self) -> Result<(), String> {
        let caught_up = async {
            let mut client = self.access.client().await?;
            let answer = client.get("any", None).await.map_err(|it| it.to_string())?;
            let revision = answer.header().map_or(0, |header| header.revision());
            let reached = |known: &u64| i64::try_from(*known).is_ok_and(|it| it >= revision);
            let mut known = self.store.subscribe();
            let waited = known.wait_for(reached).await;
            waited.map(drop).map_err(|error| error.to_string())
        };
        timeout(PATIENCE, caught_up)
            .await
            .unwrap_or_else(|_| Err("etcd does not answer".to_owned()))
    }
}

/// Where kube-apiserver keeps an object.
pub fn key(resource: &str, namespace: &str, name: &str) -> String {
    format!("/registry/{resource}/{namespace}/{name}")
}

async fn follow(store: Arc<Store>, access: Access) {
    loop {
        if let Ok(client) = access.client().await {
            // It is followed again when etcd is back.
            let _ = follow_once(&store, client).await;
        }
        sleep(PAUSE).await;
    }
}

async fn follow_once(store: &Store, mut client: Client) -> Result<(), etcd_client::Error> {
    let next = i64::try_from(store.revision() + 1).expect("a revision");
    let options = WatchOptions::new()
        .with_all_keys()
        .with_start_revision(next);
    let mut stream = client.watch("", Some(options)).await?;
    while let Some(message) = stream.message().await? {
        if message.canceled() {
            break;
        }
        store.kept(changes(&message));
    }
    Ok(())
}

/// No message ends within a revision.
fn changes(message: &WatchResponse) -> Vec<Kept> {
    let events = message.events().iter();
    let change = |event: &Event| {
        let kv = event.kv()?;
        let object = serde_json::from_slice(kv.value()).ok();
        Some(Kept {
            revision: u64::try_from(kv.mod_revision()).ok()?,
            key: key_of(kv.key()),
            object: object.filter(|_| event.event_type() == EventType::Put),
        })
    };
    events.filter_map(change).collect()
}

/// Of an object's key; `None`: it is none that the double serves.
fn key_of(key: &[u8]) -> Option<Key> {
    let key = str::from_utf8(key).ok()?.strip_prefix("/registry/")?;
    let mut parts = key.splitn(3, '/');
    let (resource, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
    let (group, _) = RESOURCES.iter().find(|(_, known)| *known == resource)?;
    Some(Key::new(group, resource, namespace, name))
}

/// Writes or, with null, deletes an object; its revision.
pub async fn write(client: &mut Client, key: &str, object: &Value) -> i64 {
    let header = match object.is_null() {
        true => client
            .delete(key, None)
            .await
            .map(|it| it.header().cloned()),
        false => client
            .put(key, object.to_string(), None)
            .await
            .map(|it| it.header().cloned()),
    };
    let header = header.expect("an answer of etcd").expect("a header");
    header.revision()
}
