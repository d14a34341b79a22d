//! An etcd that delivers what it is told to, and remembers what it delivered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use kube_interop_proxy::cluster::json;
use kube_interop_proxy::cluster::keys::Topic;
use kube_interop_proxy::cluster::record::LiveKey;
use kube_interop_proxy::cluster::source::{
    Batch, ChangeStream, EtcdItem, Event, Listing, ListingRest, SourceError, WatchSource,
};
use tokio::sync::mpsc;

use crate::is_decodable;

type Keys = BTreeMap<(Topic, String), EtcdItem>;

/// What a watch does next.
pub enum Command {
    /// It delivers so many revisions.
    Deliver(usize),
    /// It delivers nothing, and says that it has come as far as it has, less this.
    Progress(i64),
    Break,
}

#[derive(Default)]
pub struct Etcd {
    pub revision: i64,
    /// How often it was restored.
    pub cluster: u64,
    compacted: i64,
    keys: Keys,
    history: Vec<(i64, Topic, Event)>,
    backup: (i64, Keys),
    forbidden: Vec<Topic>,
    /// The last values that were delivered and can be decoded, of the keys that were not deleted since.
    known: Keys,
}

impl Etcd {
    pub fn put(&mut self, topic: Topic, key: &str, value: Vec<u8>) {
        self.revision += 1;
        let item = EtcdItem {
            key: key.to_owned(),
            value,
            create_revision: 1,
            mod_revision: self.revision,
        };
        self.keys.insert((topic, key.to_owned()), item.clone());
        self.history
            .push((self.revision, topic, Event::Apply(item)));
    }

    /// Live proxies write their keys again, as they were.
    pub fn renew(&mut self) {
        let live = self.keys.iter().filter(|((of, _), _)| *of == Topic::Live);
        let live: Vec<_> = live
            .map(|((_, key), item)| (key.clone(), item.value.clone()))
            .collect();
        for (key, value) in live {
            self.put(Topic::Live, &key, value);
        }
    }

    /// In one transaction.
    pub fn delete(&mut self, keys: &[(Topic, String)]) {
        let removed = keys.iter().filter(|key| self.keys.remove(*key).is_some());
        let removed: Vec<_> = removed.cloned().collect();
        if removed.is_empty() {
            return;
        }
        self.revision += 1;
        for (topic, key) in removed {
            self.history
                .push((self.revision, topic, Event::Delete(key)));
        }
    }

    pub fn compact(&mut self) {
        self.compacted = self.revision;
        self.history.clear();
    }

    pub fn backup(&mut self) {
        self.backup = (self.revision, self.keys.clone());
    }

    pub fn restore(&mut self) {
        (self.revision, self.keys) = self.backup.clone();
        self.cluster += 1;
        self.compact();
    }

    pub fn permit(&mut self, topic: Topic, permitted: bool) {
        self.forbidden.retain(|forbidden| *forbidden != topic);
        if !permitted && topic.is_optional() {
            self.forbidden.push(topic);
        }
    }

    pub fn permit_all(&mut self) {
        self.forbidden.clear();
    }

    /// Whether `topic` may be read. If not, the proxy drops what it knew of it.
    fn permits(&mut self, topic: Topic) -> Result<(), SourceError> {
        if !self.forbidden.contains(&topic) {
            return Ok(());
        }
        self.known.retain(|(of, _), _| *of != topic);
        Err(SourceError::Failed("permission denied".into()))
    }

    pub fn known(&self, topic: Topic) -> impl Iterator<Item = EtcdItem> {
        let known = self.known.iter().filter(move |((of, _), _)| *of == topic);
        known.map(|(_, item)| item.clone())
    }

    pub fn live(&self) -> BTreeMap<String, LiveKey> {
        let live = self.known(Topic::Live);
        let read = |item: EtcdItem| Some((item.key, json::read(&item.value).ok()?));
        live.filter_map(read).collect()
    }

    fn list(&mut self, topic: Topic) -> Listing {
        let of_topic = |(of, _): &(Topic, String)| *of == topic;
        self.known
            .retain(|key, _| !of_topic(key) || self.keys.contains_key(key));
        let items = self.keys.iter().filter(|(key, _)| of_topic(key));
        let items: Vec<_> = items.map(|(_, item)| item.clone()).collect();
        for item in &items {
            self.learn(topic, item);
        }
        Listing {
            revision: self.revision,
            items,
            rest: None,
        }
    }

    fn learn(&mut self, topic: Topic, item: &EtcdItem) {
        if is_decodable(topic, item) {
            self.known.insert((topic, item.key.clone()), item.clone());
        }
    }

    /// The changes of the next revisions of `topic` after `position`, which moves on.
    fn deliver(&mut self, topic: Topic, position: &mut i64, mut revisions: usize) -> Batch {
        let mut changes = Vec::new();
        let mut last = *position;
        for (revision, of, change) in &self.history {
            if *of != topic || *revision <= *position {
                continue;
            }
            if *revision != last && revisions == 0 {
                break;
            }
            revisions -= usize::from(*revision != last);
            last = *revision;
            changes.push(change.clone());
        }
        for change in &changes {
            match change {
                Event::Apply(item) => self.learn(topic, item),
                Event::Delete(key) => drop(self.known.remove(&(topic, key.clone()))),
                _ => {}
            }
        }
        // A watch that has caught up tells how far etcd is.
        *position = if revisions > 0 { self.revision } else { last };
        Batch {
            revision: *position,
            changes,
        }
    }
}

type Commands = Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<Command>>>;

/// One topic.
#[derive(Clone)]
pub struct Source {
    etcd: Arc<Mutex<Etcd>>,
    topic: Topic,
    commands: Commands,
    /// Delivered so far, and from which history.
    position: i64,
    cluster: u64,
}

impl Source {
    pub fn new(etcd: &Arc<Mutex<Etcd>>, topic: Topic) -> (mpsc::UnboundedSender<Command>, Self) {
        let (sender, commands) = mpsc::unbounded_channel();
        let source = Self {
            etcd: etcd.clone(),
            topic,
            commands: Arc::new(tokio::sync::Mutex::new(commands)),
            position: 0,
            cluster: 0,
        };
        (sender, source)
    }

    /// Whether what this watch delivers next is still there.
    fn check(&self, etcd: &mut Etcd) -> Result<(), SourceError> {
        etcd.permits(self.topic)?;
        if self.cluster != etcd.cluster || self.position > etcd.revision {
            return Err(SourceError::OtherHistory("restored".to_owned()));
        }
        match self.position < etcd.compacted {
            true => Err(SourceError::Compacted(etcd.compacted)),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl WatchSource for Source {
    async fn list(&mut self, _: Option<ListingRest>) -> Result<Listing, SourceError> {
        let mut etcd = self.etcd.lock().expect("a lock");
        etcd.permits(self.topic)?;
        self.cluster = etcd.cluster;
        Ok(etcd.list(self.topic))
    }

    async fn watch(&mut self, from: i64) -> Result<Box<dyn ChangeStream>, SourceError> {
        self.position = from - 1;
        self.check(&mut self.etcd.lock().expect("a lock"))?;
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl ChangeStream for Source {
    async fn next(&mut self) -> Result<Batch, SourceError> {
        let command = self.commands.clone().lock_owned().await.recv().await;
        let etcd = self.etcd.clone();
        let mut etcd = etcd.lock().expect("a lock");
        if self.cluster != etcd.cluster {
            return Err(SourceError::Ended("restored".to_owned()));
        }
        self.check(&mut etcd)?;
        match command {
            Some(Command::Deliver(revisions)) => {
                Ok(etcd.deliver(self.topic, &mut self.position, revisions))
            }
            Some(Command::Progress(lag)) => Ok(Batch {
                revision: (self.position - lag).max(0),
                changes: Vec::new(),
            }),
            Some(Command::Break) | None => Err(SourceError::Ended("broken".to_owned())),
        }
    }
}
