//! Finds the ID that the local apiserver has given itself, whether it keeps its own Lease, and whether that Lease has a
//! new holder.
//!
//! The server ID is the proxy's name: the configured one, else the apiserver's ID, else a generated one. The apiserver's ID
//! names its identity Lease and its StorageVersions (KEP-1965).
//!
//! Leases come from etcd. Until a Lease shows the apiserver's ID, or the apiserver has been initialized for a short time
//! without one, it is unknown, and no Lease is kept. Then it is assumed: the ID that an apiserver of this version would
//! give itself, so that it never has two even if its Lease is only late; else the server ID. What a Lease shows later
//! replaces what was assumed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::identity::{self, LeaseCandidate};
use super::lease::ObservedLease;
use super::metrics::IdentityMetrics;
use crate::cluster::catalog::NamedLease;
use crate::config::{IdentityConfig, PublishLease};
use crate::local::discovery::LocalView;
use crate::local::state::LocalState;

/// An apiserver publishes its Lease when it starts, sometimes shortly after it is ready.
const PATIENCE: Duration = Duration::from_secs(2);

/// The task: its inputs and outputs.
pub struct Identify {
    pub config: IdentityConfig,
    /// This host's name.
    pub host: String,
    /// Identity leases in etcd.
    pub leases: watch::Receiver<Option<Arc<Vec<NamedLease>>>>,
    /// The apiserver's version.
    pub view: watch::Receiver<LocalView>,
    /// Whether the apiserver is initialized; notified of a new holder.
    pub state: Arc<LocalState>,
    /// The server ID, once it is found.
    pub id: watch::Sender<Option<Arc<str>>>,
    /// The apiserver's ID, once it is found.
    pub apiserver_id: watch::Sender<Option<Arc<str>>>,
    /// Whether the proxy keeps the Lease.
    pub wanted: watch::Sender<bool>,
    /// All identity leases, for the collection of those of dead proxies.
    pub observed: watch::Sender<Arc<Vec<ObservedLease>>>,
    pub metrics: IdentityMetrics,
}

impl Identify {
    /// Runs until the sender of `leases` is dropped.
    pub async fn run(mut self) {
        let mut initialized = None;
        let mut changes = self.state.changes();
        let mut holder: Option<(Arc<str>, String)> = None;
        loop {
            let leases = self.leases.borrow_and_update().clone();
            if self.state.is_initialized() {
                initialized.get_or_insert_with(Instant::now);
            }
            let patience = initialized.map(|since: Instant| since + PATIENCE);
            let waited = patience.is_some_and(|end| end <= Instant::now());
            if let Some(leases) = leases.as_deref().map(|leases| named(leases)) {
                self.decide(&leases, waited);
                self.look_at_holder(&leases, &mut holder);
                let observed = leases.iter().filter_map(|lease| self.observe(lease));
                self.observed.send_replace(Arc::new(observed.collect()));
            }
            let patience = async {
                match patience.filter(|_| !waited) {
                    Some(end) => tokio::time::sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.leases.changed() => if changed.is_err() { return },
                Ok(()) = changes.changed() => {}
                Ok(()) = self.view.changed() => {}
                () = patience => {}
            }
        }
    }

    /// The ID of an apiserver that keeps no Lease; `None` while its version is not known.
    fn assumed(&self, server_id: Arc<str>) -> Option<Arc<str>> {
        let view = self.view.borrow();
        let versions = view.versions.as_ref()?;
        let computed = identity::computed(&self.host, &versions.binary);
        Some(computed.map_or(server_id, Arc::from))
    }

    fn decide(&self, leases: &[&NamedLease], waited: bool) {
        let candidates: Vec<_> = leases.iter().copied().map(candidate).collect();
        let configured = self.config.server_id.as_deref();
        let found = identity::found(&self.host, configured, &candidates);
        self.id.send_if_modified(|id| {
            let new = match configured.or(found) {
                Some(found) if id.as_deref() != Some(found) => Arc::from(found),
                None if id.is_none() && waited => identity::own(),
                _ => return false,
            };
            tracing::info!(server_id = &*new, before = id.as_deref(), "server ID");
            *id = Some(new);
            true
        });
        let server_id = self.id.borrow().clone();
        self.apiserver_id.send_if_modified(|id| {
            let new = match (found, server_id) {
                (Some(found), _) if id.as_deref() != Some(found) => Arc::from(found),
                (None, Some(server_id)) if id.is_none() && waited => {
                    match self.assumed(server_id) {
                        Some(assumed) => assumed,
                        None => return false,
                    }
                }
                _ => return false,
            };
            self.metrics.identity(&new);
            tracing::info!(apiserver_id = &*new, before = id.as_deref(), "apiserver ID");
            *id = Some(new);
            true
        });
        let id = self.apiserver_id.borrow().clone();
        let kept_by_server = |lease: &&NamedLease| {
            Some(lease.name.as_str()) == id.as_deref() && !lease.at.value.published
        };
        let wanted = match self.config.publish_lease {
            PublishLease::Never => false,
            PublishLease::Always => true,
            PublishLease::Auto => id.is_some() && !leases.iter().any(kept_by_server),
        };
        self.wanted
            .send_if_modified(|before| std::mem::replace(before, wanted) != wanted);
    }

    fn observe(&self, lease: &NamedLease) -> Option<ObservedLease> {
        let NamedLease { name, at, .. } = lease;
        let namespace = self.config.lease_namespaces.get(lease.namespace)?;
        Some(ObservedLease {
            namespace: namespace.clone(),
            name: name.clone(),
            revision: at.revision,
            uid: at.value.uid.clone(),
            duration: at.value.duration?,
            published: at.value.published,
        })
    }

    /// An apiserver writes a new holder each time it starts.
    fn look_at_holder(&self, leases: &[&NamedLease], known: &mut Option<(Arc<str>, String)>) {
        let Some(id) = self.apiserver_id.borrow().clone() else {
            return;
        };
        let ours = leases
            .iter()
            .find(|lease| lease.name == *id && !lease.at.value.published);
        let Some(now) = ours.and_then(|lease| lease.at.value.holder.clone()) else {
            return;
        };
        let now = (id, now);
        let before = known.replace(now.clone());
        if before.is_some_and(|before| before != now) {
            tracing::info!("the apiserver's lease has a new holder");
            self.state.suspect();
        }
    }
}

/// Leases with names that the API allows.
fn named(leases: &[NamedLease]) -> Vec<&NamedLease> {
    let named = |lease: &&NamedLease| identity::can_name_a_lease(&lease.name);
    leases.iter().filter(named).collect()
}

fn candidate(lease: &NamedLease) -> LeaseCandidate<'_> {
    LeaseCandidate {
        name: &lease.name,
        hostname: lease.at.value.hostname.as_deref(),
        identity: lease.at.value.identity && !lease.at.value.published,
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;
    use tokio::task::yield_now;

    use super::*;
    use crate::cluster::codec::Lease;
    use crate::cluster::prefix::Versioned;
    use crate::kube::version::Versions;

    const COMPUTED: &str = "apiserver-tqsyvnc7rs47fayzipsuqpfg4m";

    fn config(server_id: &str, publish_lease: PublishLease) -> IdentityConfig {
        IdentityConfig {
            server_id: Some(server_id.to_owned()),
            lease_namespaces: vec!["kube-system".to_owned()],
            publish_lease,
            renew_interval: Duration::from_secs(10),
            lease_duration: Duration::from_secs(3600),
        }
    }

    fn lease(name: &str, holder: &str) -> NamedLease {
        NamedLease {
            namespace: 0,
            name: name.to_owned(),
            at: Versioned {
                value: Lease {
                    identity: true,
                    published: false,
                    hostname: None,
                    holder: Some(holder.to_owned()),
                    duration: None,
                    renewed: None,
                    uid: "1".to_owned(),
                },
                revision: 1,
                heard: std::time::Instant::now(),
            },
        }
    }

    /// The search of the proxy `cp-1` on the host `cp-a`, and what it is told and tells.
    struct Search {
        leases: watch::Sender<Option<Arc<Vec<NamedLease>>>>,
        view: watch::Sender<LocalView>,
        state: Arc<LocalState>,
        id: watch::Receiver<Option<Arc<str>>>,
        apiserver_id: watch::Receiver<Option<Arc<str>>>,
        wanted: watch::Receiver<bool>,
    }

    impl Search {
        fn begin(publish_lease: PublishLease) -> Self {
            let (leases, seen) = watch::channel(Some(Arc::default()));
            let (view, views) = watch::channel(LocalView::default());
            let state = Arc::new(LocalState::default());
            let (id_sender, id) = watch::channel(Some("cp-1".into()));
            let (apiserver_id_sender, apiserver_id) = watch::channel(None);
            let (wanted_sender, wanted) = watch::channel(false);
            let identify = Identify {
                config: config("cp-1", publish_lease),
                host: "cp-a".to_owned(),
                leases: seen,
                view: views,
                state: state.clone(),
                id: id_sender,
                apiserver_id: apiserver_id_sender,
                wanted: wanted_sender,
                observed: watch::channel(Arc::default()).0,
                metrics: IdentityMetrics::new(&Registry::new()).unwrap(),
            };
            tokio::spawn(identify.run());
            Self {
                leases,
                view,
                state,
                id,
                apiserver_id,
                wanted,
            }
        }

        /// The apiserver is initialized, for so long that its Lease would be there.
        async fn wait_in_vain(&self, version: &str) {
            self.state.answered(true, self.state.epoch());
            self.finds().await;
            tokio::time::advance(2 * PATIENCE).await;
            assert_eq!(self.finds().await.1, None, "its version is not known");
            self.view.send_modify(|view| {
                view.versions = Some(Versions {
                    binary: version.to_owned(),
                    compatibility: None,
                });
            });
        }

        fn show(&self, leases: Vec<NamedLease>) {
            self.leases.send_replace(Some(Arc::new(leases)));
        }

        /// Server ID, the apiserver's ID, whether a Lease is wanted.
        async fn finds(&self) -> (Option<String>, Option<String>, bool) {
            for _ in 0..10 {
                yield_now().await;
            }
            let text =
                |id: &watch::Receiver<Option<Arc<str>>>| id.borrow().as_deref().map(str::to_owned);
            (
                text(&self.id),
                text(&self.apiserver_id),
                *self.wanted.borrow(),
            )
        }
    }

    fn found(apiserver_id: Option<&str>, wanted: bool) -> (Option<String>, Option<String>, bool) {
        (
            Some("cp-1".to_owned()),
            apiserver_id.map(str::to_owned),
            wanted,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn an_apiserver_that_has_an_id_is_given_no_second_one() {
        let search = Search::begin(PublishLease::Auto);
        assert_eq!(search.finds().await, found(None, false));
        search.state.answered(true, search.state.epoch());
        assert_eq!(search.finds().await, found(None, false), "it may be late");
        search.show(vec![lease(COMPUTED, "1"), lease("apiserver-other", "1")]);
        assert_eq!(search.finds().await, found(Some(COMPUTED), false));
        tokio::time::advance(2 * PATIENCE).await;
        assert_eq!(search.finds().await, found(Some(COMPUTED), false));
        // The apiserver is another one now, which keeps no Lease.
        search.show(vec![lease("apiserver-other", "1")]);
        assert_eq!(search.finds().await, found(Some(COMPUTED), true));
    }

    #[tokio::test(start_paused = true)]
    async fn an_apiserver_without_an_id_gets_the_proxys_until_it_shows_one() {
        for publish in [PublishLease::Auto, PublishLease::Always] {
            let search = Search::begin(publish);
            search.wait_in_vain("v1.20.2").await;
            assert_eq!(search.finds().await, found(Some("cp-1"), true));
            search.show(vec![lease(COMPUTED, "1")]);
            let always = publish == PublishLease::Always;
            assert_eq!(search.finds().await, found(Some(COMPUTED), always));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_apiserver_whose_lease_is_late_has_one_id_all_the_time() {
        let search = Search::begin(PublishLease::Auto);
        search.wait_in_vain("v1.36.0").await;
        assert_eq!(search.finds().await, found(Some(COMPUTED), true));
        search.show(vec![lease(COMPUTED, "1")]);
        assert_eq!(search.finds().await, found(Some(COMPUTED), false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_holder_of_the_apiservers_lease_is_noticed_whatever_the_proxys_name() {
        let search = Search::begin(PublishLease::Auto);
        search.show(vec![lease(COMPUTED, "1"), lease("cp-1", "1")]);
        search.finds().await;
        let suspicion = async |state: &LocalState| {
            let patience = tokio::time::sleep(Duration::from_secs(1));
            tokio::select! {
                () = state.suspicion() => true,
                () = patience => false,
            }
        };
        search.show(vec![lease(COMPUTED, "1"), lease("cp-1", "2")]);
        assert!(!suspicion(&search.state).await, "of another server");
        search.show(vec![lease(COMPUTED, "2"), lease("cp-1", "2")]);
        assert!(suspicion(&search.state).await);
    }
}
