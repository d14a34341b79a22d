//! The Lease API, in memory, and a keeper that uses it.

use crate::publish::metrics::IdentityMetrics;
use prometheus::Registry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::LeaseKeeper;
use crate::client::fake::{Reply, Server};
use crate::cluster::leases::NamedLease;
use crate::config::{IdentityConfig, PublishLease};
use crate::kube::version::Versions;
use crate::local::discovery::LocalView;
use crate::local::state::LocalState;
use crate::metrics::text;

const COLLECTION: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const LONG: Duration = Duration::from_secs(20);

/// Objects and requests of the API.
#[derive(Default)]
pub(super) struct Store {
    pub(super) leases: BTreeMap<String, Value>,
    pub(super) seen: Vec<(Method, String, Value)>,
    /// Scripted answers, in order.
    pub(super) faults: VecDeque<Reply>,
    /// Number of deletions before which another client changes the object.
    pub(super) overtaken: usize,
    revision: i64,
}

impl Store {
    /// Adds or replaces it, with a new resourceVersion; a UID if it has none.
    pub(super) fn put(&mut self, name: &str, mut lease: Value) -> Value {
        self.revision += 1;
        let metadata = &mut lease["metadata"];
        metadata["name"] = json!(name);
        metadata["resourceVersion"] = json!(self.revision.to_string());
        if metadata["uid"].is_null() {
            metadata["uid"] = json!(format!("uid-{}", self.revision));
        }
        self.leases.insert(name.to_owned(), lease.clone());
        lease
    }

    pub(super) fn count(&self, method: &Method) -> usize {
        self.seen.iter().filter(|seen| seen.0 == method).count()
    }

    fn answer(&mut self, request: &Request<Bytes>) -> Reply {
        let path = request.uri().path().to_owned();
        let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        let method = request.method();
        self.seen.push((method.clone(), path.clone(), body.clone()));
        if let Some(fault) = self.faults.pop_front() {
            return fault;
        }
        if *method == Method::POST && path == COLLECTION {
            let name = body["metadata"]["name"].as_str().unwrap().to_owned();
            if self.leases.contains_key(&name) {
                return says(409, json!({}));
            }
            let made = self.put(&name, body);
            return says(201, made);
        }
        let name = path.strip_prefix(COLLECTION).unwrap_or_default();
        let name = name.trim_start_matches('/');
        let Some(found) = self.leases.get(name).cloned() else {
            return says(404, json!({}));
        };
        match *method {
            Method::GET => says(200, found),
            Method::PUT if is_of(&body["metadata"], &found) => {
                let made = self.put(name, body);
                says(200, made)
            }
            Method::DELETE => {
                if self.overtaken > 0 {
                    self.overtaken -= 1;
                    self.put(name, found.clone());
                }
                if !is_of(&body["preconditions"], &self.leases[name]) {
                    return says(409, json!({}));
                }
                self.leases.remove(name);
                says(200, json!({"kind": "Status"}))
            }
            _ => says(409, json!({})),
        }
    }
}

/// Whether UID and resourceVersion are those of `lease`; absent ones are not.
fn is_of(version: &Value, lease: &Value) -> bool {
    ["uid", "resourceVersion"]
        .iter()
        .all(|key| !version[key].is_null() && version[key] == lease["metadata"][key])
}

fn says(status: u16, body: Value) -> Reply {
    Reply::new(status, &[], body.to_string())
}

/// A keeper of the Lease `cp-a`, its inputs and its API.
pub(super) struct Scene {
    pub(super) store: Arc<watch::Sender<Store>>,
    pub(super) id: watch::Sender<Option<Arc<str>>>,
    pub(super) view: watch::Sender<LocalView>,
    pub(super) leases: watch::Sender<Option<Arc<Vec<Arc<NamedLease>>>>>,
    pub(super) state: Arc<LocalState>,
    pub(super) stop: watch::Sender<()>,
    pub(super) keeper: JoinHandle<()>,
    registry: Registry,
    /// It ends when it is dropped.
    _server: Server,
}

/// Starts a keeper with an initialized apiserver that has the objects of `prepare`.
pub(super) async fn scene(prepare: impl FnOnce(&mut Store)) -> Scene {
    let state = LocalState::default();
    state.answered(true, state.epoch());
    scene_with(state, Duration::from_millis(50), prepare).await
}

pub(super) async fn scene_with(
    state: LocalState,
    renew_interval: Duration,
    prepare: impl FnOnce(&mut Store),
) -> Scene {
    let mut store = Store::default();
    prepare(&mut store);
    let store = Arc::new(watch::Sender::new(store));
    let api = store.clone();
    let server = Server::start(move |request| {
        let mut reply = None;
        api.send_modify(|store| reply = Some(store.answer(&request)));
        reply.unwrap_or(Reply::Break)
    })
    .await;
    let (id, ids) = watch::channel(Some("cp-a".into()));
    let (view, views) = watch::channel(LocalView {
        versions: Some(Versions {
            binary: "v1.20.2".into(),
            compatibility: "1.20".parse().ok(),
        }),
        ..LocalView::default()
    });
    let (leases, observed) = watch::channel(None);
    let (registry, state) = (Registry::new(), Arc::new(state));
    let (stop, stopped) = watch::channel(());
    let keeper = LeaseKeeper {
        client: server.client(HeaderMap::new(), LONG),
        config: IdentityConfig {
            server_id: None,
            lease_namespaces: vec!["kube-system".into()],
            publish_lease: PublishLease::Always,
            renew_interval,
            lease_duration: Duration::from_secs(3600),
        },
        hostname: "host-a".into(),
        endpoint: "10.0.0.11:6443".parse().unwrap(),
        id: ids,
        view: views,
        state: state.clone(),
        leases: observed,
        metrics: IdentityMetrics::new(&registry).unwrap(),
    };
    Scene {
        store,
        id,
        view,
        leases,
        state,
        stop,
        keeper: tokio::spawn(keeper.run(stopped)),
        registry,
        _server: server,
    }
}

impl Scene {
    /// Waits until `so` is true of the API.
    pub(super) async fn until(&self, what: &str, so: impl FnMut(&Store) -> bool) {
        let mut store = self.store.subscribe();
        let waited = tokio::time::timeout(LONG, store.wait_for(so)).await;
        assert!(waited.is_ok_and(|found| found.is_ok()), "{what}: never");
    }

    /// Waits for this many further requests of a kind.
    pub(super) async fn more(&self, method: Method, count: usize) {
        let enough = self.store.borrow().count(&method) + count;
        self.until("requests", |store| store.count(&method) >= enough)
            .await;
    }

    pub(super) fn lease(&self, name: &str) -> Option<Value> {
        self.store.borrow().leases.get(name).cloned()
    }

    pub(super) fn change(&self, how: impl FnOnce(&mut Store)) {
        self.store.send_modify(how);
    }

    pub(super) fn metric(&self, name: &str) -> f64 {
        let text = text(&self.registry).unwrap();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Stops the keeper. Returns the objects that are left.
    pub(super) async fn stop(self) -> Arc<watch::Sender<Store>> {
        self.stop.send_replace(());
        let ended = tokio::time::timeout(LONG, self.keeper).await;
        ended.unwrap().unwrap();
        self.store
    }
}
