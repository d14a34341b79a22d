//! etcd, the apiservers, and what the proxy knows of them.

use std::sync::Arc;

use crate::kube::gvr::GvrRef;
use crate::kube::version::KubernetesVersion;
use crate::routing::decide::LocalServer;
use crate::routing::table::{self, Snapshot, things};
use crate::watches::sample::{KeyCount, ListedIn, Sample};

/// etcd's revision when the model begins.
pub(super) const BEGIN: i64 = 10;
/// The local apiserver's index; the others are peers.
pub(super) const LOCAL: usize = 0;
pub(super) const THINGS: GvrRef<'_> = GvrRef {
    group: "apps",
    version: "v1",
    resource: "things",
    subresource: "",
};

/// One transaction of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Change {
    One,
    /// Two objects of the resource.
    Both,
    /// An object of another resource.
    Foreign,
}

impl Change {
    /// The names of the changed objects; `all`: also of the other resource.
    pub(super) fn names(self, all: bool) -> &'static [&'static str] {
        match self {
            Self::One => &["a"],
            Self::Both => &["a", "b"],
            Self::Foreign if all => &["foreign"],
            Self::Foreign => &[],
        }
    }
}

/// What is special about an apiserver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Plain,
    /// It keeps the resource in another etcd.
    Elsewhere,
    /// Its watch cache is smaller than its history: it answers 410.
    Refuses,
    /// It is older and ignores a parameter of the request: it sends what was not asked for.
    Older,
}

impl Kind {
    pub(super) fn version(self) -> Option<KubernetesVersion> {
        let version = match self {
            Self::Older => "1.20",
            _ => "1.24",
        };
        version.parse().ok()
    }
}

#[derive(Clone, Hash)]
pub(super) struct Etcd {
    /// The transactions after [`BEGIN`]. A restore begins another history; the last one is there.
    histories: Vec<Vec<Change>>,
    pub(super) compacted: i64,
}

impl Etcd {
    pub(super) fn new() -> Self {
        Self {
            histories: vec![Vec::new()],
            compacted: BEGIN - 8,
        }
    }

    /// Another one, where the resource of [`Kind::Elsewhere`] is kept.
    pub(super) fn other() -> Self {
        Self {
            histories: vec![vec![Change::One; 2]],
            ..Self::new()
        }
    }

    pub(super) fn restores(&self) -> usize {
        self.histories.len() - 1
    }

    pub(super) fn revision(&self) -> i64 {
        self.end(self.restores())
    }

    pub(super) fn end(&self, history: usize) -> i64 {
        BEGIN + i64::try_from(self.histories[history].len()).unwrap()
    }

    pub(super) fn writes(&mut self, change: Change) {
        let present = self.restores();
        self.histories[present].push(change);
    }

    /// A backup comes back, which lacks the last transaction.
    pub(super) fn is_restored(&mut self) {
        let mut backup = self.histories[self.restores()].clone();
        backup.pop();
        self.histories.push(backup);
        self.compacted = self.compacted.min(self.revision());
    }

    /// The transaction of a revision, and its history, as a process has it that began in `history`: its watch goes on in the next
    /// one, from the revision that it has.
    pub(super) fn change(&self, history: usize, revision: i64) -> Option<(usize, Change)> {
        let index = usize::try_from(revision - BEGIN - 1).ok()?;
        let mut later = (history..).zip(&self.histories[history..]);
        later.find_map(|(history, changes)| Some((history, *changes.get(index)?)))
    }

    /// The changes of a history after revision `start`.
    pub(super) fn changes(&self, history: usize, start: i64) -> Vec<(i64, &'static str)> {
        let changes = (BEGIN + 1..).zip(&self.histories[history]);
        let changes = changes.filter(|(revision, _)| *revision > start);
        let named = changes.flat_map(|(revision, change)| {
            let names = change.names(false).iter();
            names.map(move |name| (revision, *name))
        });
        named.collect()
    }
}

/// What is known of a server by its keys in etcd (of the local apiserver by its probe).
#[derive(Clone, PartialEq, Hash)]
pub(super) struct Known {
    pub(super) ready: bool,
    pub(super) history_start: i64,
    /// In which history of etcd that was written.
    pub(super) history: usize,
}

#[derive(Clone, PartialEq, Hash)]
pub(super) struct Server {
    pub(super) up: bool,
    /// Its `/readyz` says that it is shutting down.
    pub(super) stopping: bool,
    /// The revision at which its watch cache begins. How far it has come shows in what it delivers.
    pub(super) cache_start: i64,
    /// etcd's history when its process began.
    pub(super) history: usize,
    /// What is known is of this process.
    pub(super) published: bool,
    pub(super) known: Known,
}

impl Server {
    pub(super) fn new() -> Self {
        Self {
            up: true,
            stopping: false,
            cache_start: BEGIN - 5,
            history: 0,
            published: true,
            known: Known {
                ready: true,
                history_start: BEGIN - 5,
                history: 0,
            },
        }
    }

    pub(super) fn restarts(&mut self, etcd: &Etcd) {
        *self = Self {
            cache_start: etcd.revision(),
            history: etcd.restores(),
            published: false,
            known: self.known.clone(),
            ..Self::new()
        };
    }

    /// What its proxy would write now: since when a new process has history is etcd's revision at that time or later.
    pub(super) fn publishes(&mut self, etcd: &Etcd) {
        if self.up && !self.published {
            self.published = true;
            self.known.history_start = etcd.revision();
            self.known.history = self.history;
        }
        self.known.ready = self.up && !self.stopping;
    }

    /// What is known of it is of a history before etcd's present one.
    pub(super) fn is_void(&self, etcd: &Etcd) -> bool {
        self.known.history < etcd.restores()
    }
}

/// The snapshot of the proxy beside `local`. `forgets_restores`: a history from before a restore counts.
pub(super) fn snapshot(
    (etcd, servers): (&Etcd, &[Server; 3]),
    kinds: [Kind; 3],
    local: usize,
    forgets_restores: bool,
) -> (Snapshot, LocalServer) {
    let group = [("apps", "v1")];
    let is_void = |server: &Server| server.is_void(etcd) && !forgets_restores;
    let peers = (0..servers.len()).filter(|index| *index != local);
    let peers = peers.map(|index| {
        let server = &servers[index];
        let is_void = is_void(server);
        table::Server {
            endpoint: ([10, 0, 0, u8::try_from(index).unwrap()], 6443).into(),
            ready: server.known.ready,
            version: kinds[index].version(),
            history_start: (!is_void).then_some(server.known.history_start),
            history_void: is_void,
            ..table::Server::listing(&index.to_string(), None, server.known.ready, &group)
        }
    });
    let mut snapshot = Snapshot::new(true, peers.collect(), Some(&things(&group)), Arc::default());
    snapshot.local_read = Some((1, std::time::Instant::now()));
    snapshot.local_version = kinds[local].version();
    let own = &servers[local];
    let process = LocalServer {
        epoch: 1,
        initialized: own.known.ready,
        history_start: match is_void(own) {
            true => i64::MAX,
            false => own.known.history_start,
        },
    };
    (snapshot, process)
}

/// Whether a server is proved to keep the resource in this etcd, as [`crate::watches::prover`] finds out: by the revision of a
/// list, which is another one in another etcd.
pub(super) fn is_stored(etcd: &Etcd, kind: Kind) -> bool {
    let revision = match kind {
        Kind::Elsewhere => etcd.revision() + 100,
        _ => etcd.revision(),
    };
    let list = format!(
        r#"{{"kind":"PartialObjectMetadataList","metadata":{{"resourceVersion":"{revision}"}},"items":[]}}"#
    );
    let count = KeyCount {
        revision: etcd.revision(),
        keys: 0,
    };
    Sample::read(list.as_bytes())
        .unwrap()
        .compared(count, count)
        == ListedIn::SameEtcd
}
