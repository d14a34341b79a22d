//! The double's options, and the state that tests change while it runs.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use serde_json::json;
use tokio::sync::watch;

use super::auth::{Authenticator, RequestHeaders, Rule};
use super::kept::KeptInEtcd;
use super::record::Recorder;
use super::resources::{Preset, ServedResource, group_version};
use super::scripted_answer::ScriptedAnswer;
use super::store::{Key, Store};

#[derive(Clone)]
pub struct DoubleOptions {
    /// Where `apiserver.crt`, `ca.crt`, `front-proxy-ca.crt` and `tokens.csv` are.
    pub pki: PathBuf,
    pub preset: Preset,
    /// `None`: a new address.
    pub listen: Option<SocketAddr>,
    /// `None`: a new cluster.
    pub store: Option<Arc<Store>>,
    /// etcd keeps the objects of the store.
    pub kept: Option<Arc<KeptInEtcd>>,
    pub phase: Phase,
    pub alpn: Vec<&'static str>,
    pub request_headers: RequestHeaders,
    /// Of HTTP/2, for one connection.
    pub max_streams: u32,
    /// How long it takes after the handshake to say that.
    pub settings_after: Duration,
    /// What 1.29 and later do to connections of HTTP/2 with unknown callers, see [`super::front_door`].
    pub ends_unknown: bool,
}

impl DoubleOptions {
    /// Ready at once, in a new cluster.
    pub fn new(pki: &Path, preset: Preset) -> Self {
        Self {
            pki: pki.to_owned(),
            preset,
            listen: None,
            store: None,
            kept: None,
            phase: Phase::Ready,
            alpn: vec!["h2", "http/1.1"],
            request_headers: RequestHeaders::default(),
            max_streams: 250,
            settings_after: Duration::ZERO,
            ends_unknown: false,
        }
    }

    /// The front door of 1.29 and later.
    pub fn ends_unknown(mut self) -> Self {
        self.ends_unknown = true;
        self.max_streams = 100;
        self
    }

    /// Shares the objects of another double, as apiservers share etcd.
    pub fn store(mut self, store: &Arc<Store>) -> Self {
        self.store = Some(Arc::clone(store));
        self
    }

    /// Its objects are kept in an etcd, as those of other doubles are.
    pub fn kept(mut self, kept: &Arc<KeptInEtcd>) -> Self {
        self.kept = Some(Arc::clone(kept));
        self.store(&kept.store)
    }

    pub fn phase(mut self, phase: Phase) -> Self {
        self.phase = phase;
        self
    }
}

/// How far the server's start has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// RBAC is not there yet: `/readyz` is 403 to anonymous, 500 to administrators.
    Bootstrapping,
    /// `/readyz` is 500.
    NotReady,
    /// `/readyz` is 200.
    Ready,
    /// Shuts down with `--shutdown-send-retry-after`: `/readyz` is 500, everything but health and metrics 429.
    Terminating,
}

/// What happens to requests below a path, before anything else.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Answers with a `Status` of this code, and `Retry-After` if given.
    Status(u16, Option<u64>),
    /// Never answers.
    Hang,
    /// Answers with so many bytes.
    Stream(u64),
    /// Closes the connection (HTTP/1.1) or resets the stream (HTTP/2).
    Reset,
    /// Goes on after this time.
    Delay(Duration),
    /// Answers every caller like this.
    Answer(Box<ScriptedAnswer>),
}

pub struct Settings {
    pub preset: Preset,
    pub phase: Phase,
    /// The oldest revision that a watch may start at.
    pub history_start: u64,
    /// A watch that starts before it gets 410 as HTTP status, not as its first event.
    pub expired_as_status: bool,
    /// Groups (`autoscaling`) and group versions (`autoscaling/v1`) that `/apis` does not name.
    pub hidden: BTreeSet<String>,
    /// Aggregated discovery does not name them either.
    pub hidden_from_aggregated: bool,
    pub rules: Vec<Rule>,
    pub faults: Vec<(String, Fault)>,
    /// HTTP/1.1 connections are answered 101 before anything is read of them, see [`super::upgrade::at_once`].
    pub instant_upgrades: bool,
}

pub struct State {
    pub authenticator: ArcSwap<Authenticator>,
    pub store: Arc<Store>,
    pub kept: Option<Arc<KeptInEtcd>>,
    pub recorder: Recorder,
    /// Counts the bookmarks that were asked for by hand.
    pub bookmarks: watch::Sender<u64>,
    /// Tells all running watches to end.
    pub watches_end: watch::Sender<()>,
    pub addr: SocketAddr,
    /// Upgraded streams that have not come to their end.
    pub upgraded: AtomicUsize,
    settings: RwLock<Settings>,
}

impl State {
    pub fn new(options: &DoubleOptions, addr: SocketAddr) -> Self {
        let store = options.store.clone().unwrap_or_else(Store::new);
        publish_request_headers(
            &store,
            &options.pki,
            &options.request_headers,
            options.preset.uid_header,
        );
        let mut headers = options.request_headers.clone();
        if !options.preset.uid_header {
            headers.uid.clear();
        }
        Self {
            authenticator: ArcSwap::from_pointee(Authenticator::new(&options.pki, headers)),
            store,
            kept: options.kept.clone(),
            recorder: Recorder::default(),
            bookmarks: watch::Sender::new(0),
            watches_end: watch::Sender::new(()),
            addr,
            upgraded: AtomicUsize::new(0),
            settings: RwLock::new(Settings {
                preset: options.preset.clone(),
                phase: options.phase,
                history_start: 0,
                expired_as_status: false,
                hidden: BTreeSet::new(),
                hidden_from_aggregated: false,
                rules: Vec::new(),
                faults: Vec::new(),
                instant_upgrades: false,
            }),
        }
    }

    /// Reads its CA files again.
    pub fn reload_authorities(&self, pki: &Path) {
        let headers = self.authenticator.load().headers.clone();
        let new = Authenticator::new(pki, headers);
        self.authenticator.store(Arc::new(new));
    }

    pub fn read<T>(&self, read: impl FnOnce(&Settings) -> T) -> T {
        read(&self.settings.read().unwrap())
    }

    pub fn write<T>(&self, write: impl FnOnce(&mut Settings) -> T) -> T {
        write(&mut self.settings.write().unwrap())
    }

    /// The resources served now: custom resources only once ready.
    pub fn served(&self) -> Vec<ServedResource> {
        self.read(|settings| {
            let ready = settings.phase == Phase::Ready;
            let resources = settings.preset.resources.iter();
            resources
                .filter(|served| ready || !served.custom)
                .cloned()
                .collect()
        })
    }

    pub fn find(&self, group: &str, version: &str, resource: &str) -> Option<ServedResource> {
        let named = |served: &ServedResource| {
            (
                served.group.as_str(),
                served.version.as_str(),
                served.resource.as_str(),
            ) == (group, version, resource)
        };
        self.served().into_iter().find(named)
    }

    pub fn is_hidden(&self, group: &str, version: &str) -> bool {
        self.read(|settings| {
            settings.hidden.contains(group)
                || settings.hidden.contains(&group_version(group, version))
        })
    }
}

/// kube-apiserver publishes its `--requestheader-*` flags in a `ConfigMap`.
fn publish_request_headers(store: &Store, pki: &Path, headers: &RequestHeaders, uid: bool) {
    let list = |names: &[String]| json!(names).to_string();
    let file = |name: &str| std::fs::read_to_string(pki.join(name)).expect("a CA file");
    let mut object = json!({"data": {
        "client-ca-file": file("ca.crt"),
        "requestheader-allowed-names": list(&headers.allowed_names),
        "requestheader-client-ca-file": file("front-proxy-ca.crt"),
        "requestheader-extra-headers-prefix": list(&headers.extra_prefix),
        "requestheader-group-headers": list(&headers.group),
        "requestheader-username-headers": list(&headers.username),
    }});
    if uid {
        object["data"]["requestheader-uid-headers"] = json!(list(&headers.uid));
    }
    let key = Key::new(
        "",
        "configmaps",
        "kube-system",
        "extension-apiserver-authentication",
    );
    // Shared store: the last server to start writes it, as with real ones.
    if store.update(&key, "", object.clone()).is_err() {
        store
            .create(&key, object)
            .expect("a key that was not there");
    }
}
