//! Finds the ID that the local apiserver has given itself, whether it keeps its own Lease, and whether that Lease has a
//! new holder.
//!
//! The server ID is the proxy's name: the configured one, else what kube-apiserver computes from this host's name, if a
//! Lease has this name, else the name of a Lease that is labelled with this host's name, else a generated one. The
//! apiserver's ID names its identity Lease and its StorageVersions (KEP-1965).
//!
//! Leases come from etcd, and API users can write them: none makes an ID ours that another server has, and a label counts
//! only until there is a server ID, and never for the apiserver's. Until a Lease shows the apiserver's ID, or the apiserver
//! has been initialized for a short time without one, it is unknown, and no Lease is kept. Then it is assumed: the ID that
//! an apiserver of this version would give itself, so that it never has two even if its Lease is only late; else the
//! server ID. What a Lease shows later replaces what was assumed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::identity::{self, ShownIds};
use super::metrics::IdentityMetrics;
use crate::cluster::leases::NamedLease;
use crate::cluster::members::OthersIds;
use crate::config::{IdentityConfig, PublishLease};
use crate::local::discovery::LocalView;
use crate::local::state::LocalState;
use crate::retry::sleep_until;

/// An apiserver publishes its Lease when it starts, sometimes shortly after it is ready.
const PATIENCE: Duration = Duration::from_secs(2);

/// The task: its inputs and outputs.
pub struct Identify {
    pub config: IdentityConfig,
    /// This host's name.
    pub host: String,
    /// Identity leases in etcd.
    pub leases: watch::Receiver<Option<Arc<Vec<Arc<NamedLease>>>>>,
    /// IDs that other servers have; `None` until etcd was read.
    pub others: watch::Receiver<Option<OthersIds>>,
    /// The apiserver's version.
    pub view: watch::Receiver<LocalView>,
    /// Whether the apiserver is initialized; notified of a new holder.
    pub state: Arc<LocalState>,
    /// The server ID, once it is found.
    pub id: watch::Sender<Option<Arc<str>>>,
    /// The server ID, if only a label says that it is ours.
    pub labelled: Option<Arc<str>>,
    /// The apiserver's ID, once it is found.
    pub apiserver_id: watch::Sender<Option<Arc<str>>>,
    /// The Lease that the proxy keeps: the apiserver's ID, if there is one to keep.
    pub lease: watch::Sender<Option<Arc<str>>>,
    pub metrics: IdentityMetrics,
}

impl Identify {
    /// Runs until it is dropped.
    pub async fn run(mut self) {
        let mut initialized = None;
        let mut changes = self.state.changes();
        let mut holder = None;
        loop {
            let leases = self.leases.borrow_and_update().clone();
            let others = self.others.borrow_and_update().clone();
            if self.state.is_initialized() {
                initialized.get_or_insert_with(Instant::now);
            }
            let patience = initialized.map(|since: Instant| since + PATIENCE);
            let waited = patience.is_some_and(|end| end <= Instant::now());
            if let Some((leases, others)) = leases.zip(others) {
                self.decide(&leases, &others, waited);
                self.look_at_holder(&leases, &mut holder);
            }
            tokio::select! {
                changed = self.leases.changed() => if changed.is_err() { return },
                changed = self.others.changed() => if changed.is_err() { return },
                Ok(()) = changes.changed() => {}
                Ok(()) = self.view.changed() => {}
                () = sleep_until(patience.filter(|_| !waited)) => {}
            }
        }
    }

    fn decide(&mut self, leases: &[Arc<NamedLease>], others: &OthersIds, waited: bool) {
        let host = self.host.clone();
        let shown = ShownIds {
            host: &host,
            leases,
            others,
        };
        if let Some(id) = self.server_id(&shown, waited) {
            let before = self.id.send_replace(Some(id.clone()));
            tracing::info!(server_id = &*id, before = before.as_deref(), "server ID");
        }
        if let Some(id) = self.found_apiserver_id(&shown, waited) {
            self.metrics.identity(&id);
            let before = self.apiserver_id.send_replace(Some(id.clone()));
            tracing::info!(
                apiserver_id = &*id,
                before = before.as_deref(),
                "apiserver ID"
            );
        }
        let id = self.apiserver_id.borrow().clone();
        let lease = id.filter(|id| match self.config.publish_lease {
            PublishLease::Never => false,
            PublishLease::Always => true,
            PublishLease::Auto => kept_by_apiserver(leases, id).is_none(),
        });
        self.lease
            .send_if_modified(|before| std::mem::replace(before, lease.clone()) != lease);
    }

    /// The server ID, if it is another one than before.
    fn server_id(&mut self, shown: &ShownIds<'_>, waited: bool) -> Option<Arc<str>> {
        if self.config.server_id.is_some() {
            return None;
        }
        let now = self.id.borrow().clone();
        if let Some(computed) = shown.computed() {
            return (now.as_deref() != Some(computed)).then(|| computed.into());
        }
        let Some(now) = now else {
            self.labelled = shown.labelled().map(Arc::from);
            let made = || waited.then(identity::own);
            return self.labelled.clone().or_else(made);
        };
        let native = self.labelled.as_ref() == Some(&now) && shown.others.native.contains(&*now);
        let lost = native || shown.others.proxied.contains(&*now);
        lost.then(identity::own)
    }

    /// The apiserver's ID, if it is another one than before.
    fn found_apiserver_id(&self, shown: &ShownIds<'_>, waited: bool) -> Option<Arc<str>> {
        let configured = self.config.server_id.as_deref();
        let kept = || configured.and_then(|id| shown.kept(id));
        let now = self.apiserver_id.borrow().clone();
        let lost = |id: &str| shown.others.proxied.contains(id);
        let new = match shown.computed().or_else(kept) {
            Some(found) => found.into(),
            None if waited && now.as_deref().is_none_or(lost) => self.assumed(shown)?,
            None => return None,
        };
        (now.as_ref() != Some(&new)).then_some(new)
    }

    /// The ID of an apiserver that keeps no Lease; `None` while its version or the server ID is not known.
    fn assumed(&self, shown: &ShownIds<'_>) -> Option<Arc<str>> {
        let server_id = self.id.borrow().clone()?;
        let view = self.view.borrow();
        let versions = view.versions.as_ref()?;
        let computed = identity::computed(&self.host, &versions.binary);
        let computed = computed.filter(|id| !shown.others.proxied.contains(id));
        Some(match computed {
            Some(computed) => computed.into(),
            // Whoever wrote the label is not to decide which entry and which Lease are ours.
            None if self.labelled.as_ref() == Some(&server_id) => identity::own(),
            None => server_id,
        })
    }

    /// An apiserver writes a new holder each time it starts.
    fn look_at_holder(&self, leases: &[Arc<NamedLease>], known: &mut Option<(Arc<str>, String)>) {
        let Some(id) = self.apiserver_id.borrow().clone() else {
            return;
        };
        let ours = kept_by_apiserver(leases, &id);
        let Some(holder) = ours.and_then(|lease| lease.value.holder.clone()) else {
            return;
        };
        let now = Some((id, holder));
        let before = std::mem::replace(known, now);
        if before.is_some() && before != *known {
            tracing::info!("the apiserver's lease has a new holder");
            self.state.suspected.notify_one();
        }
    }
}

/// The Lease of this name, if no proxy keeps it.
fn kept_by_apiserver<'a>(leases: &'a [Arc<NamedLease>], id: &str) -> Option<&'a NamedLease> {
    let mut named = leases.iter().filter(|lease| lease.name == id);
    Some(named.find(|lease| !lease.value.published)?)
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;
    use tokio::task::yield_now;

    use super::*;
    use crate::cluster::codec::Lease;
    use crate::kube::version::Versions;

    const COMPUTED: &str = "apiserver-tqsyvnc7rs47fayzipsuqpfg4m";

    fn config(server_id: Option<&str>, publish_lease: PublishLease) -> IdentityConfig {
        IdentityConfig {
            server_id: server_id.map(str::to_owned),
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
            revision: 1,
            value: Lease {
                identity: true,
                published: false,
                hostname: None,
                holder: Some(holder.to_owned()),
                duration: None,
                renewed: None,
                uid: "1".to_owned(),
            },
        }
    }

    fn labelled(name: &str) -> NamedLease {
        let mut lease = lease(name, "1");
        lease.value.hostname = Some("cp-a".to_owned());
        lease
    }

    /// The search of a proxy on the host `cp-a`, and what it is told and tells.
    struct Search {
        leases: watch::Sender<Option<Arc<Vec<Arc<NamedLease>>>>>,
        others: watch::Sender<Option<OthersIds>>,
        view: watch::Sender<LocalView>,
        state: Arc<LocalState>,
        id: watch::Receiver<Option<Arc<str>>>,
        apiserver_id: watch::Receiver<Option<Arc<str>>>,
        lease: watch::Receiver<Option<Arc<str>>>,
    }

    impl Search {
        /// Of the proxy `cp-1`.
        fn begin(publish_lease: PublishLease) -> Self {
            Self::of(Some("cp-1"), publish_lease)
        }

        fn of(server_id: Option<&str>, publish_lease: PublishLease) -> Self {
            let (leases, seen) = watch::channel(Some(Arc::default()));
            let (others, others_seen) = watch::channel(Some(OthersIds::default()));
            let (view, views) = watch::channel(LocalView::default());
            let state = Arc::new(LocalState::default());
            let (id_sender, id) = watch::channel(server_id.map(Arc::from));
            let (apiserver_id_sender, apiserver_id) = watch::channel(None);
            let (lease_sender, lease) = watch::channel(None);
            let identify = Identify {
                config: config(server_id, publish_lease),
                host: "cp-a".to_owned(),
                leases: seen,
                others: others_seen,
                view: views,
                state: state.clone(),
                id: id_sender,
                labelled: None,
                apiserver_id: apiserver_id_sender,
                lease: lease_sender,
                metrics: IdentityMetrics::new(&Registry::new()).unwrap(),
            };
            tokio::spawn(identify.run());
            Self {
                leases,
                others,
                view,
                state,
                id,
                apiserver_id,
                lease,
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
            let leases = leases.into_iter().map(Arc::new).collect();
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
                self.lease.borrow().is_some(),
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

    /// Others' IDs: one of a proxy, one of an apiserver with the native feature.
    fn others(proxied: &str, native: &str) -> Option<OthersIds> {
        Some(OthersIds {
            proxied: [proxied.to_owned()].into(),
            native: [native.to_owned()].into(),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_ours_before_it_is_known_what_others_have() {
        let search = Search::of(None, PublishLease::Auto);
        search.others.send_replace(None);
        search.show(vec![lease(COMPUTED, "1"), labelled("labelled")]);
        assert_eq!(search.finds().await, (None, None, false));
        search.others.send_replace(others(COMPUTED, "labelled"));
        assert_eq!(search.finds().await, (None, None, false));
        search.wait_in_vain("v1.36.0").await;
        let (own, apiserver, _) = search.finds().await;
        assert!(
            own.is_some_and(|own| own != COMPUTED && own != "labelled" && Some(own) == apiserver)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_id_that_another_server_turns_out_to_have_is_left() {
        let search = Search::of(None, PublishLease::Auto);
        search.show(vec![lease(COMPUTED, "1")]);
        let computed = Some(COMPUTED.to_owned());
        assert_eq!(
            search.finds().await,
            (computed.clone(), computed.clone(), false)
        );
        // The entry may be that of its own apiserver.
        search.others.send_replace(others("other", COMPUTED));
        assert_eq!(search.finds().await, (computed.clone(), computed, false));
        search.state.answered(true, search.state.epoch());
        search.finds().await;
        tokio::time::advance(2 * PATIENCE).await;
        search.view.send_modify(|view| {
            view.versions = Some(Versions {
                binary: "v1.36.0".to_owned(),
                compatibility: None,
            });
        });
        search.others.send_replace(others(COMPUTED, "other"));
        let (own, apiserver, wanted) = search.finds().await;
        assert!(wanted && own == apiserver && own.as_deref() != Some(COMPUTED));
        search.others.send_replace(others("other", "other"));
        assert_eq!(search.finds().await.0.as_deref(), Some(COMPUTED));
    }

    #[tokio::test(start_paused = true)]
    async fn a_label_names_a_server_only_once_and_never_its_apiserver() {
        let search = Search::of(None, PublishLease::Auto);
        search.show(vec![labelled("labelled")]);
        let found = Some("labelled".to_owned());
        assert_eq!(search.finds().await, (found.clone(), None, false));
        search.wait_in_vain("v1.20.2").await;
        search.show(vec![labelled("earlier")]);
        let (id, apiserver, _) = search.finds().await;
        assert_eq!(id, found);
        let made = apiserver.unwrap();
        assert!(made != "labelled" && made != "earlier", "{made}");
        search.others.send_replace(others("other", "labelled"));
        let (left, apiserver, _) = search.finds().await;
        assert!(left.is_some_and(|id| id != "labelled" && id != "earlier"));
        assert_eq!(apiserver, Some(made));
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_holder_of_the_apiservers_lease_is_noticed_whatever_the_proxys_name() {
        let search = Search::begin(PublishLease::Auto);
        search.show(vec![lease(COMPUTED, "1"), lease("cp-1", "1")]);
        search.finds().await;
        let suspicion = async |state: &LocalState| {
            let patience = tokio::time::sleep(Duration::from_secs(1));
            tokio::select! {
                () = state.suspected.notified() => true,
                () = patience => false,
            }
        };
        search.show(vec![lease(COMPUTED, "1"), lease("cp-1", "2")]);
        assert!(!suspicion(&search.state).await, "of another server");
        search.show(vec![lease(COMPUTED, "2"), lease("cp-1", "2")]);
        assert!(suspicion(&search.state).await);
    }
}
