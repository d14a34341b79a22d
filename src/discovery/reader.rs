//! Reads the discovery of peers that list more than the local apiserver, and publishes what it lacks.
//!
//! The only writer of [`PeerDiscovery`]. `sources` decides which peers are read, and when: none where all
//! servers list the same. A change of the cluster is published at once, by resource name where no document was read
//! yet; documents follow.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::clients::Clients;
use super::newest::Rank;
use super::openapi::OpenApiFormat;
use super::own::OwnGroups;
use super::sources::{MANY_CUSTOM, ReadJob, SourceInputs, Sources};
use crate::cluster::catalog::Published;
use crate::config::settings::SharedSettings;
use crate::discovery::cache::DocumentCache;
use crate::discovery::metrics::PeerDiscoveryMetrics;
use crate::discovery::peer_discovery::{PeerDiscovery, SharedPeerDiscovery};
use crate::local::discovery::LocalView;
use crate::local::groups::ServedGroups;
use crate::local::reader::ReadError;
use crate::log_throttle::{LogThrottle, chain};
use crate::retry::sleep_until;

/// Peers that are read at the same time.
const AT_ONCE: usize = 4;
/// Documents are read again once in this many discovery intervals.
const INTERVALS: u32 = 6;
const FORMS: [OpenApiFormat; 3] = [
    OpenApiFormat::V3Index,
    OpenApiFormat::V2Protobuf,
    OpenApiFormat::V2Json,
];

/// The task that reads peers.
pub struct PeerDiscoveryReader {
    /// While clients see the documents of one server, no peer is read, and only the local apiserver's rank is published.
    pub settings: Arc<SharedSettings>,
    pub published: Published,
    /// The local apiserver's discovery.
    pub view: watch::Receiver<LocalView>,
    /// Where the result is published.
    pub peer_discovery: Arc<SharedPeerDiscovery>,
    /// Clients for peers.
    pub clients: Clients,
    /// `apiServer.discoveryInterval`
    pub discovery_interval: Duration,
    pub metrics: PeerDiscoveryMetrics,
    /// What the local apiserver serves, as last published.
    pub own: Option<Arc<ServedGroups>>,
}

/// A finished job.
struct Done {
    key: u64,
    address: SocketAddr,
    cache: DocumentCache,
    outcome: Result<(), ReadError>,
}

impl PeerDiscoveryReader {
    /// Runs until dropped.
    pub async fn run(mut self) {
        let every = self.discovery_interval * INTERVALS;
        let mut sources = Sources::new(every, rand::thread_rng().r#gen());
        let mut snapshots = self.published.changed.subscribe();
        let mut settings = self.settings.changes();
        let mut running: JoinSet<Done> = JoinSet::new();
        let throttle = LogThrottle::default();
        let mut changed = true;
        loop {
            let now = Instant::now();
            let view = self.view.borrow_and_update().clone();
            settings.mark_unchanged();
            let merges = self.settings.load().merges_discovery();
            changed |= self.plan(&mut sources, &view, merges, now);
            let wanted = self.wanted();
            sources.want(&wanted, now);
            while running.len() < AT_ONCE
                && let Some(job) = sources.next_job(now)
            {
                self.start(job, &mut running);
            }
            if std::mem::take(&mut changed) {
                self.publish(&sources, &view, merges, &wanted);
            }
            let due = sources.next_due().filter(|_| running.len() < AT_ONCE);
            tokio::select! {
                () = sleep_until(due) => {}
                Ok(()) = snapshots.changed() => {}
                Ok(()) = settings.changed() => {}
                Ok(()) = self.view.changed() => {}
                () = self.peer_discovery.format_wanted() => changed = true,
                Some(Ok(done)) = running.join_next() => {
                    self.finish(&mut sources, done, &throttle);
                    changed = true;
                }
            }
        }
    }

    /// Returns whether there is something new to publish.
    fn plan(&self, sources: &mut Sources, view: &LocalView, merges: bool, now: Instant) -> bool {
        let snapshot = self.published.snapshot.load();
        if !merges || !snapshot.synced {
            let published = self.peer_discovery.load();
            let cleared = sources.clear();
            return cleared || published.epoch.is_some() || published.local != rank(view);
        }
        // While the local apiserver's discovery is unknown, so is what it lacks. What was published names its epoch.
        let Some(local) = view.served.clone() else {
            return false;
        };
        let known = SourceInputs {
            servers: snapshot.servers.clone(),
            many_custom: snapshot.custom.definitions.len() > MANY_CUSTOM,
            local,
        };
        let published = self.peer_discovery.load();
        sources.plan(&known, now)
            || published.epoch != Some(view.epoch)
            || self.own.as_ref() != Some(&view.groups)
            || published.served != view.served
    }

    /// OpenAPI formats that requests need.
    fn wanted(&self) -> Vec<OpenApiFormat> {
        let wanted = |format: &OpenApiFormat| self.peer_discovery.is_wanted(*format);
        FORMS.into_iter().filter(wanted).collect()
    }

    fn start(&self, job: ReadJob, running: &mut JoinSet<Done>) {
        let mut client = self.clients.client(job.address, job.native);
        running.spawn(async move {
            let mut cache = job.cache;
            let outcome = cache.read(&mut client, &job.want).await;
            Done {
                key: job.key,
                address: job.address,
                cache,
                outcome,
            }
        });
    }

    fn finish(&self, sources: &mut Sources, done: Done, throttle: &LogThrottle<SocketAddr>) {
        let peer = done.address;
        self.metrics.read(done.outcome.is_ok());
        let error = done.outcome.err().map(|error| chain(&error));
        match &error {
            Some(error) if throttle.should_log(peer, format!("{peer} {error}")) => {
                tracing::warn!(%peer, error, "documents of a peer cannot be read, trying on");
            }
            Some(_) => {}
            None => drop(throttle.recovered(&peer)),
        }
        sources.done(done.key, done.cache, error, Instant::now());
    }

    /// Without an epoch while nothing is merged: when merging begins, requests must not take what was not read for
    /// something that does not exist.
    fn publish(
        &mut self,
        sources: &Sources,
        view: &LocalView,
        merges: bool,
        wanted: &[OpenApiFormat],
    ) {
        let known = merges && self.published.snapshot.load().synced;
        if sources.is_empty() {
            self.peer_discovery.clear_wanted();
        }
        self.own = Some(view.groups.clone());
        let peer_discovery = PeerDiscovery {
            generation: 0,
            epoch: view.served.as_ref().filter(|_| known).map(|_| view.epoch),
            local: rank(view),
            served: view.served.clone(),
            own: match merges && view.served.is_some() {
                true => OwnGroups::new(&view.groups),
                false => OwnGroups::default(),
            },
            others: sources.others(),
            openapi: sources.openapi(wanted),
        };
        let status = sources.status();
        self.metrics
            .sources(&status, peer_discovery.openapi.bytes());
        self.peer_discovery.publish_sources(status);
        self.peer_discovery.publish(peer_discovery);
    }
}

fn rank(view: &LocalView) -> Option<Rank> {
    let versions = view.versions.as_ref()?;
    Some(Rank::new(versions.compatibility, Some(&versions.binary)))
}
