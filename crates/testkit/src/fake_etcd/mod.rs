//! A fake etcd with faults that real ones rarely show: progress that overtakes changes, connections that break at a
//! given time, another history.
//!
//! It speaks etcd's protocol without TLS and supports list, watch and version. Other calls get an unimplemented error:
//! tests write by calling methods.

mod wire;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use h2::server::SendResponse;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::addr::Loopback;
use wire::{
    Create, Event, Header, KeyValue, Range, Ranged, Requests, Status, WatchRequest, Watched,
};

const PORT: u16 = 2379;
/// The only watch of a stream.
const WATCH: i64 = 0;
/// Requested progress is that of a whole stream.
const WHOLE_STREAM: i64 = -1;

pub struct FakeEtcd {
    address: Loopback,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    store: Mutex<Store>,
    /// Something is to be sent.
    changed: watch::Sender<()>,
    /// All connections end.
    cut: watch::Sender<()>,
}

struct Store {
    version: String,
    cluster: u64,
    revision: i64,
    /// All puts, in order.
    log: Vec<KeyValue>,
    /// Watches do not get puts.
    withholds: bool,
    /// Watches get nothing but that they were created.
    mute: bool,
    /// Watches begin on a member that is this many revisions behind.
    lag: i64,
    /// How often progress was announced to all watches.
    announced: usize,
    asked: BTreeMap<Vec<u8>, Asked>,
}

/// The requests for one key range, named by its first key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Revisions that watches began at.
    pub watched_from: Vec<i64>,
    pub progress: usize,
    pub gets: usize,
}

impl FakeEtcd {
    /// `version`: the reported version. `revision`: the newest revision.
    pub async fn start(version: &str, revision: i64) -> Self {
        let address = Loopback::new();
        let listener = TcpListener::bind(address.socket(PORT))
            .await
            .expect("the fake's port");
        let store = Store {
            version: version.to_owned(),
            cluster: 1,
            revision,
            log: Vec::new(),
            withholds: false,
            mute: false,
            lag: 0,
            announced: 0,
            asked: BTreeMap::new(),
        };
        let shared = Arc::new(Shared {
            store: Mutex::new(store),
            changed: watch::Sender::new(()),
            cut: watch::Sender::new(()),
        });
        let task = tokio::spawn(accept(listener, shared.clone()));
        Self {
            address,
            shared,
            task,
        }
    }

    pub fn addr(&self) -> SocketAddr {
        self.address.socket(PORT)
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.addr())
    }

    /// Writes a key; the revision of it.
    pub fn put(&self, key: &str, value: &str) -> i64 {
        let mut store = self.shared.lock();
        store.revision += 1;
        let revision = store.revision;
        store.log.push(KeyValue {
            key: key.into(),
            mod_revision: revision,
            value: value.into(),
        });
        drop(store);
        self.shared.changed.send_replace(());
        revision
    }

    pub fn revision(&self) -> i64 {
        self.shared.lock().revision
    }

    /// Withholds puts from watches until [`FakeEtcd::deliver`].
    pub fn withhold(&self) {
        self.shared.lock().withholds = true;
    }

    /// From now on watches are dead, and requests are answered.
    pub fn mute(&self) {
        self.shared.lock().mute = true;
    }

    /// Delivers withheld puts, and then all others, to watches.
    pub fn deliver(&self) {
        self.shared.lock().withholds = false;
        self.shared.changed.send_replace(());
    }

    /// Sends a progress notification with the newest revision to all watches, even before withheld puts.
    pub fn announce(&self) {
        self.shared.lock().announced += 1;
        self.shared.changed.send_replace(());
    }

    /// Watches that are opened from now on say that they are so many revisions behind.
    pub fn lag(&self, revisions: i64) {
        self.shared.lock().lag = revisions;
    }

    /// Ends all connections. New ones are welcome.
    pub fn cut(&self) {
        self.shared.cut.send_replace(());
    }

    /// Resets the state as if there had been only `revision` changes, and ends connections.
    pub fn replace(&self, cluster: u64, revision: i64) {
        let mut store = self.shared.lock();
        (store.cluster, store.revision) = (cluster, revision);
        store.log.clear();
        drop(store);
        self.cut();
    }

    /// The requests below `prefix`.
    pub fn asked(&self, prefix: &str) -> Asked {
        let store = self.shared.lock();
        store
            .asked
            .get(prefix.as_bytes())
            .cloned()
            .unwrap_or_default()
    }
}

impl Drop for FakeEtcd {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().expect("the store")
    }
}

impl Store {
    fn header(&self) -> Option<Header> {
        Some(Header {
            cluster_id: self.cluster,
            revision: self.revision,
        })
    }

    fn asked(&mut self, key: &[u8]) -> &mut Asked {
        self.asked.entry(key.to_vec()).or_default()
    }

    fn range(&mut self, range: &Range) -> Ranged {
        self.asked(&range.key).gets += 1;
        let kvs = self
            .log
            .iter()
            .filter(|kv| is_in(kv, &range.key, &range.range_end));
        let newest: BTreeMap<_, _> = kvs.map(|kv| (&kv.key, kv)).collect();
        Ranged {
            header: self.header(),
            kvs: newest.into_values().cloned().collect(),
        }
    }
}

fn is_in(kv: &KeyValue, key: &[u8], end: &[u8]) -> bool {
    kv.key == key || (kv.key.as_slice() > key && kv.key.as_slice() < end)
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    while let Ok((tcp, _)) = listener.accept().await {
        connections.spawn(serve(tcp, shared.clone(), shared.cut.subscribe()));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(tcp: TcpStream, shared: Arc<Shared>, mut cut: watch::Receiver<()>) {
    let Ok(mut connection) = h2::server::handshake(tcp).await else {
        return;
    };
    let mut calls = JoinSet::new();
    loop {
        tokio::select! {
            // Queued responses are still sent.
            biased;
            call = connection.accept() => match call {
                Some(Ok((request, respond))) => {
                    let (head, body) = request.into_parts();
                    let (path, requests) = (head.uri.path().to_owned(), Requests::new(body));
                    calls.spawn(call_method(path, requests, respond, shared.clone()));
                }
                _ => return,
            },
            _ = cut.changed() => return,
        }
    }
}

/// Errors are those of connections that are gone.
async fn call_method(
    path: String,
    mut requests: Requests,
    respond: SendResponse<Bytes>,
    shared: Arc<Shared>,
) -> Result<(), h2::Error> {
    match path.as_str() {
        "/etcdserverpb.KV/Range" => match requests.next().await {
            Some(range) => {
                let ranged = shared.lock().range(&range);
                wire::answer_with(respond, &ranged)
            }
            None => Ok(()),
        },
        "/etcdserverpb.Maintenance/Status" => {
            let store = shared.lock();
            let (header, version) = (store.header(), store.version.clone());
            drop(store);
            wire::answer_with(respond, &Status { header, version })
        }
        "/etcdserverpb.Watch/Watch" => watch_keys(requests, respond, &shared).await,
        _ => wire::refuse(respond),
    }
}

async fn watch_keys(
    mut requests: Requests,
    mut respond: SendResponse<Bytes>,
    shared: &Shared,
) -> Result<(), h2::Error> {
    let mut changed = shared.changed.subscribe();
    let mut body = wire::answer(&mut respond)?;
    let Some(create) = requests
        .next::<WatchRequest>()
        .await
        .and_then(|first| first.create)
    else {
        return Ok(());
    };
    let mut watch = Watch::open(create, &mut shared.lock());
    loop {
        let messages = watch.due(&shared.lock());
        for message in messages {
            body.send_data(wire::framed(&message), false)?;
        }
        tokio::select! {
            request = requests.next::<WatchRequest>() => {
                if request.ok_or(h2::Reason::CANCEL)?.progress.is_some() {
                    watch.was_asked(&mut shared.lock());
                }
            }
            _ = changed.changed() => {}
        }
    }
}

/// A watch, and the number of changes it has got.
struct Watch {
    create: Create,
    /// Of the log.
    reported: usize,
    /// Of the store's.
    announced: usize,
    due: Vec<Watched>,
}

impl Watch {
    fn open(create: Create, store: &mut Store) -> Self {
        let asked = store.asked(&create.key);
        asked.watched_from.push(create.start_revision);
        let header = store.header().map(|header| Header {
            revision: header.revision - store.lag,
            ..header
        });
        let created = Watched {
            header,
            watch_id: WATCH,
            created: true,
            ..Watched::default()
        };
        Self {
            create,
            reported: 0,
            announced: store.announced,
            due: vec![created],
        }
    }

    fn was_asked(&mut self, store: &mut Store) {
        store.asked(&self.create.key).progress += 1;
        self.due.push(progress(store));
    }

    /// The events to send now.
    fn due(&mut self, store: &Store) -> Vec<Watched> {
        let mut due = std::mem::take(&mut self.due);
        if store.mute {
            due.retain(|message| message.created);
            return due;
        }
        if self.announced < store.announced {
            self.announced = store.announced;
            due.push(progress(store));
        }
        if store.withholds {
            return due;
        }
        let Create {
            key,
            range_end,
            start_revision,
        } = &self.create;
        let new = store.log.get(self.reported..).unwrap_or_default();
        self.reported = store.log.len();
        let new = new
            .iter()
            .filter(|kv| kv.mod_revision >= *start_revision && is_in(kv, key, range_end));
        due.extend(new.map(|kv| Watched {
            header: store.header(),
            watch_id: WATCH,
            created: false,
            events: vec![Event {
                kv: Some(kv.clone()),
            }],
        }));
        due
    }
}

fn progress(store: &Store) -> Watched {
    Watched {
        header: store.header(),
        watch_id: WHOLE_STREAM,
        ..Watched::default()
    }
}
