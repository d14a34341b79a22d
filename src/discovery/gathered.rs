//! What was gathered from peers, as requests read it: what the local apiserver's documents lack.
//!
//! Written as a whole by [`super::gather`], never changed afterwards. A request loads it once, without locks.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use bytes::Bytes;
use tokio::sync::{Notify, watch};

use super::newest::Rank;
use super::openapi::Form;
use super::others::Others;
use crate::local::state::LocalState;
use crate::routing::table::ServedSet;

/// What peers list and the local apiserver does not.
#[derive(Debug, Clone, Default)]
pub struct Gathered {
    /// Another number for other contents.
    pub generation: u64,
    /// The life of the local apiserver that it was made for, see [`Gathered::is_of`].
    pub epoch: Option<u64>,
    /// How new the local apiserver is, where known.
    pub local: Option<Rank>,
    /// What the local apiserver listed when it was read last.
    pub served: Option<Arc<ServedSet>>,
    /// What the local apiserver's discovery lacks, and nothing else; empty where all list the same.
    pub others: Others,
    /// OpenAPI documents of those that have it.
    pub openapi: OpenApi,
}

/// OpenAPI documents of peers, as they were sent. Together they have everything that [`Gathered::others`] lists, as far as
/// somebody could be asked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OpenApi {
    pub(super) documents: HashMap<Form, Vec<Bytes>>,
}

impl OpenApi {
    /// The documents in one form, those of the newest server first. `None`: not known yet; those of `/openapi/v2` have to
    /// be asked for with [`Gathering::want`].
    pub fn of(&self, form: Form) -> Option<&[Bytes]> {
        self.documents.get(&form).map(Vec::as_slice)
    }

    /// How large all documents are.
    pub fn bytes(&self) -> usize {
        self.documents.values().flatten().map(Bytes::len).sum()
    }
}

/// Whether somebody else lists a group version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    /// Somebody who can be asked.
    Fresh,
    /// Nobody who can be asked, or its document could not be read yet: there, but not to be relied on.
    Stale,
    /// Nobody, or the local apiserver lists all of it itself.
    No,
}

impl Source {
    /// For metrics: `read`, `failing`, or `unreachable`.
    pub fn state(&self) -> &'static str {
        match self.error {
            _ if !self.reachable => "unreachable",
            Some(_) => "failing",
            None if self.read.is_none() => "failing",
            None => "read",
        }
    }
}

impl Gathered {
    /// Whether it was made for what the local apiserver is now. Otherwise nobody knows what its documents lack: it was
    /// restarted and not read since, or etcd was not.
    pub fn is_of(&self, local: &LocalState) -> bool {
        self.epoch == Some(local.epoch())
    }

    /// Whether there is nothing to add to any document.
    pub fn is_empty(&self) -> bool {
        self.others.document.groups.is_empty()
    }

    /// Whether others list something of this group version that the local apiserver lacks; the core group is `""`.
    pub fn lists(&self, group: &str, version: &str) -> Listed {
        let groups = self.others.document.groups.iter();
        let of_group = groups.filter(|known| *known.name == *group);
        let mut versions = of_group.flat_map(|known| &known.versions);
        match versions.find(|known| *known.name == *version) {
            Some(known) if known.stale => Listed::Stale,
            Some(_) => Listed::Fresh,
            None => Listed::No,
        }
    }
}

/// Those of whom documents are kept, for the status page: servers of one version that list the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// Their server IDs.
    pub servers: Vec<Arc<str>>,
    /// Version of their binaries.
    pub version: Option<String>,
    /// Whether one of them can be asked.
    pub reachable: bool,
    /// Group versions that are missing here.
    pub group_versions: usize,
    /// Those of them whose document is not known: listed by name only.
    pub by_name: usize,
    /// When the documents were last read completely.
    pub read: Option<SystemTime>,
    /// Why they could not be read the last time.
    pub error: Option<String>,
}

/// Where what was gathered is published, and where is said what is wanted.
#[derive(Debug, Default)]
pub struct Gathering {
    current: ArcSwap<Gathered>,
    changed: watch::Sender<u64>,
    sources: ArcSwap<Vec<Source>>,
    v2_json: AtomicBool,
    v2_protobuf: AtomicBool,
    wanted: Notify,
}

impl Gathering {
    /// What is known now.
    pub fn load(&self) -> arc_swap::Guard<Arc<Gathered>> {
        self.current.load()
    }

    /// Somebody needs this document of peers. They are asked for `/openapi/v2` only then: an apiserver takes seconds and
    /// much memory to make a form of it that nobody wanted before. Costs a load once it was said.
    pub fn want(&self, form: Form) {
        let Some(flag) = self.flag(form) else { return };
        if !flag.load(Ordering::Relaxed) && !flag.swap(true, Ordering::Relaxed) {
            self.wanted.notify_one();
        }
    }

    /// What is known once peers were asked for this document, but not later than after `most`: whoever needs it first would
    /// be told that nobody serves what is in it.
    pub async fn asked(&self, form: Form, most: Duration) -> Arc<Gathered> {
        self.want(form);
        let mut changes = self.changes();
        let known = || {
            let now = self.load();
            now.is_empty() || now.openapi.of(form).is_some()
        };
        let asked = async { while !known() && changes.changed().await.is_ok() {} };
        // What is known by then is all that there is.
        let _ = tokio::time::timeout(most, asked).await;
        self.current.load_full()
    }

    /// Tells the generation of all that is published from now on.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Whose documents are kept.
    pub fn sources(&self) -> Arc<Vec<Source>> {
        self.sources.load_full()
    }

    fn flag(&self, form: Form) -> Option<&AtomicBool> {
        match form {
            Form::V2Json => Some(&self.v2_json),
            Form::V2Protobuf => Some(&self.v2_protobuf),
            // Small, and made for everybody.
            Form::V3Index => None,
        }
    }

    /// Whether somebody needs this form.
    pub(super) fn is_wanted(&self, form: Form) -> bool {
        let flag = self.flag(form);
        flag.is_none_or(|flag| flag.load(Ordering::Relaxed))
    }

    /// There is nothing to add any more: nobody needs any form.
    pub(super) fn unwant(&self) {
        for flag in [&self.v2_json, &self.v2_protobuf] {
            flag.store(false, Ordering::Relaxed);
        }
    }

    /// Resolves when another form is wanted. One waiter.
    pub(super) async fn wish(&self) {
        self.wanted.notified().await;
    }

    /// Publishes contents that differ, under the next generation.
    pub(super) fn publish(&self, mut now: Gathered) {
        let before = self.current.load();
        now.served = now.served.or_else(|| before.served.clone());
        let same = before.epoch == now.epoch
            && before.local == now.local
            && before.served == now.served
            && before.others.document == now.others.document
            && before.openapi == now.openapi;
        if same {
            return;
        }
        let generation = before.generation + 1;
        now.generation = generation;
        self.current.store(Arc::new(now));
        self.changed.send_replace(generation);
    }

    /// Publishes whose documents are kept.
    pub(super) fn tell(&self, sources: Vec<Source>) {
        self.sources.store(Arc::new(sources));
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::{Document, Group, Version};
    use super::*;

    fn gathered(versions: &[(&str, bool)]) -> Gathered {
        let version = |(name, stale): &(&str, bool)| Version {
            name: (*name).into(),
            stale: *stale,
            resources: Vec::new(),
        };
        let group = Group {
            name: "autoscaling".into(),
            versions: versions.iter().map(version).collect(),
        };
        Gathered {
            others: Others {
                document: Document {
                    groups: vec![group],
                },
            },
            ..Gathered::default()
        }
    }

    #[test]
    fn a_group_version_is_fresh_stale_or_not_listed() {
        let gathered = gathered(&[("v2", false), ("v2beta2", true)]);
        assert_eq!(gathered.lists("autoscaling", "v2"), Listed::Fresh);
        assert_eq!(gathered.lists("autoscaling", "v2beta2"), Listed::Stale);
        assert_eq!(gathered.lists("autoscaling", "v1"), Listed::No);
        assert_eq!(gathered.lists("", "v2"), Listed::No);
        assert!(!gathered.is_empty() && Gathered::default().is_empty());
    }

    #[test]
    fn only_other_contents_get_another_generation() {
        let gathering = Gathering::default();
        let changes = gathering.changes();
        gathering.publish(Gathered::default());
        assert!(!changes.has_changed().unwrap());
        gathering.publish(gathered(&[("v2", false)]));
        assert_eq!(*changes.borrow(), 1);
        gathering.publish(gathered(&[("v2", false)]));
        gathering.publish(gathered(&[("v2", true)]));
        assert_eq!(*changes.borrow(), 2);
        assert_eq!(gathering.load().generation, 2);
    }

    #[test]
    fn it_is_of_one_life_of_the_local_apiserver() {
        let local = LocalState::default();
        assert!(!Gathered::default().is_of(&local));
        let gathered = Gathered {
            epoch: Some(local.epoch()),
            ..Gathered::default()
        };
        assert!(gathered.is_of(&local));
        local.refused();
        assert!(!gathered.is_of(&local));
    }

    #[tokio::test(start_paused = true)]
    async fn who_needs_a_document_first_waits_until_peers_were_asked_but_not_for_ever() {
        let gathering = Gathering::default();
        gathering.publish(gathered(&[("v2", false)]));
        let most = Duration::from_secs(5);
        let begun = tokio::time::Instant::now();
        assert_eq!(gathering.asked(Form::V2Json, most).await.generation, 1);
        assert!(begun.elapsed() >= most);

        let asked = gathering.asked(Form::V2Json, most);
        let publish = async {
            gathering.wish().await;
            gathering.publish(gathered(&[("v2", true)]));
            let mut known = gathered(&[("v2", true)]);
            known.openapi.documents.insert(Form::V2Json, Vec::new());
            tokio::task::yield_now().await;
            gathering.publish(known);
        };
        let begun = tokio::time::Instant::now();
        let (known, ()) = tokio::join!(asked, publish);
        assert_eq!((known.generation, begun.elapsed()), (3, Duration::ZERO));
        gathering.publish(Gathered::default());
        let nothing = gathering.asked(Form::V2Protobuf, most).await;
        assert_eq!((nothing.generation, begun.elapsed()), (4, Duration::ZERO));
    }

    #[tokio::test]
    async fn a_form_is_wished_for_once() {
        let gathering = Gathering::default();
        gathering.want(Form::V2Json);
        gathering.wish().await;
        gathering.want(Form::V2Json);
        assert!(gathering.is_wanted(Form::V2Json) && !gathering.is_wanted(Form::V2Protobuf));
        let again = tokio::time::timeout(std::time::Duration::ZERO, gathering.wish());
        assert!(again.await.is_err());
        gathering.unwant();
        assert!(!gathering.is_wanted(Form::V2Json));
    }
}
