//! Objects in memory with a history, as in etcd. The doubles of a cluster share it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::sync::watch;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub group: String,
    pub resource: String,
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(group: &str, resource: &str, namespace: &str, name: &str) -> Self {
        Self {
            group: group.to_owned(),
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    /// Whether a list or watch with these limits ("" is none) has it.
    pub fn is_in(&self, scope: &Self) -> bool {
        let fits = |own: &str, limit: &str| limit.is_empty() || own == limit;
        self.group == scope.group
            && self.resource == scope.resource
            && fits(&self.namespace, &scope.namespace)
            && fits(&self.name, &scope.name)
    }
}

#[derive(Clone, Debug)]
pub struct Change {
    pub revision: u64,
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub kind: &'static str,
    pub key: Key,
    pub object: Value,
}

/// A change of one key of etcd.
pub(super) struct Kept {
    pub revision: u64,
    /// If it is one of an object that is served.
    pub key: Option<Key>,
    /// `None`: it was deleted.
    pub object: Option<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    NotFound,
    Exists,
    Conflict,
}

pub struct Store {
    inner: Mutex<Inner>,
    revision: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    /// Revisions are those of an etcd ([`super::kept`]).
    is_kept: bool,
    revision: u64,
    objects: BTreeMap<Key, Value>,
    log: Vec<Change>,
}

impl Store {
    /// Empty but for the namespaces that every cluster has.
    pub fn new() -> Arc<Self> {
        let store = Self {
            inner: Mutex::default(),
            revision: watch::Sender::new(0),
        };
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            let namespace =
                json!({"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
            store
                .create(&Key::new("", "namespaces", "", name), namespace)
                .expect("an empty store");
        }
        Arc::new(store)
    }

    /// For objects that an etcd keeps: its revisions are not counted here.
    pub(super) fn kept_elsewhere() -> Arc<Self> {
        let inner = Inner {
            is_kept: true,
            ..Inner::default()
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
            revision: watch::Sender::new(0),
        })
    }

    pub(super) fn is_kept(&self) -> bool {
        self.inner.lock().unwrap().is_kept
    }

    /// What happened in etcd since the last call, in its order, transactions whole.
    pub(super) fn kept(&self, changes: Vec<Kept>) {
        let mut inner = self.inner.lock().unwrap();
        for change in changes {
            inner.revision = change.revision;
            match (change.key, change.object) {
                (Some(key), Some(object)) => {
                    let is_new = !inner.objects.contains_key(&key);
                    let kind = if is_new { "ADDED" } else { "MODIFIED" };
                    inner.write(kind, &key, object);
                }
                (Some(key), None) => drop(inner.remove(&key)),
                (None, _) => {}
            }
        }
        self.revision.send_replace(inner.revision);
    }

    pub fn revision(&self) -> u64 {
        self.inner.lock().unwrap().revision
    }

    /// Tells about every later revision.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    pub fn get(&self, key: &Key) -> Option<Value> {
        self.inner.lock().unwrap().objects.get(key).cloned()
    }

    /// All objects in `scope`, and the revision of this state.
    pub fn list(&self, scope: &Key) -> (Vec<Value>, u64) {
        let inner = self.inner.lock().unwrap();
        let found = inner.objects.iter().filter(|(key, _)| key.is_in(scope));
        (
            found.map(|(_, object)| object.clone()).collect(),
            inner.revision,
        )
    }

    pub fn create(&self, key: &Key, object: Value) -> Result<Value, Failure> {
        self.change(|inner| {
            if inner.objects.contains_key(key) {
                return Err(Failure::Exists);
            }
            Ok(inner.put("ADDED", key, object))
        })
    }

    /// `expected`: the object's resourceVersion, or "" for any.
    pub fn update(&self, key: &Key, expected: &str, object: Value) -> Result<Value, Failure> {
        self.change(|inner| {
            let old = inner.objects.get(key).ok_or(Failure::NotFound)?;
            let current = old["metadata"]["resourceVersion"]
                .as_str()
                .unwrap_or_default();
            if !expected.is_empty() && expected != current {
                return Err(Failure::Conflict);
            }
            Ok(inner.put("MODIFIED", key, object))
        })
    }

    pub fn delete(&self, key: &Key) -> Result<Value, Failure> {
        self.change(|inner| {
            if !inner.objects.contains_key(key) {
                return Err(Failure::NotFound);
            }
            inner.advance();
            inner.remove(key).ok_or(Failure::NotFound)
        })
    }

    /// Lets the revision pass on without a change to any object: what other resources do to an idle one.
    pub fn tick(&self) -> u64 {
        let ticked = self.change(|inner| {
            inner.revision += 1;
            Ok(inner.revision)
        });
        ticked.expect("nothing that could fail")
    }

    /// The changes in `scope` after a revision, and the revision they are complete to.
    pub fn changes_after(&self, revision: u64, scope: &Key) -> (Vec<Change>, u64) {
        let inner = self.inner.lock().unwrap();
        let from = inner
            .log
            .partition_point(|change| change.revision <= revision);
        let later = inner.log.get(from..).unwrap_or_default();
        let changes = later
            .iter()
            .filter(|change| change.key.is_in(scope))
            .cloned()
            .collect();
        (changes, inner.revision)
    }

    fn change<T>(
        &self,
        change: impl FnOnce(&mut Inner) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut inner = self.inner.lock().unwrap();
        let result = change(&mut inner);
        self.revision.send_replace(inner.revision);
        result
    }
}

impl Inner {
    fn advance(&mut self) {
        self.revision += u64::from(!self.is_kept);
    }

    fn put(&mut self, kind: &'static str, key: &Key, object: Value) -> Value {
        self.advance();
        self.write(kind, key, object)
    }

    /// At the present revision.
    fn remove(&mut self, key: &Key) -> Option<Value> {
        let mut object = self.objects.remove(key)?;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.remember("DELETED", key, object.clone());
        Some(object)
    }

    /// At the present revision.
    fn write(&mut self, kind: &'static str, key: &Key, mut object: Value) -> Value {
        let old = self.objects.get(key);
        let metadata = &mut object["metadata"];
        if !metadata.is_object() {
            *metadata = json!({});
        }
        metadata["name"] = json!(key.name);
        if !key.namespace.is_empty() {
            metadata["namespace"] = json!(key.namespace);
        }
        for field in ["uid", "creationTimestamp"] {
            metadata[field] = match old {
                Some(old) => old["metadata"][field].clone(),
                None if field == "uid" => {
                    json!(format!("00000000-0000-4000-8000-{:012}", self.revision))
                }
                None => json!("2026-01-01T00:00:00Z"),
            };
        }
        metadata["resourceVersion"] = json!(self.revision.to_string());
        self.objects.insert(key.clone(), object.clone());
        self.remember(kind, key, object.clone());
        object
    }

    fn remember(&mut self, kind: &'static str, key: &Key, object: Value) {
        self.log.push(Change {
            revision: self.revision,
            kind,
            key: key.clone(),
            object,
        });
    }
}
