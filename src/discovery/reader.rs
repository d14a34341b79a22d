//! Reads the discovery of peers that list more than the local apiserver, and publishes what it lacks.
//!
//! The only writer of [`PeerDiscovery`]. `sources` decides which peers are read, and when: none where all
//! servers list the same. A change of the cluster is published at once, by resource name where no document was read
//! yet; documents follow.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::clients::{TIMEOUT, of_proxies};
use super::metrics::PeerDiscoveryMetrics;
use super::newest::Rank;
use super::openapi::OpenApiFormat;
use super::peer_discovery::{PeerDiscovery, SharedPeerDiscovery};
use super::sources::{ReadJob, Sources};
use crate::client::{ClientMaker, MakerError};
use crate::cluster::catalog::Published;
use crate::cluster::unproxied::GROUP;
use crate::cluster::{Foundation, asking};
use crate::config::Config;
use crate::config::settings::SharedSettings;
use crate::local::discovery::LocalView;
use crate::local::reader::ReadError;
use crate::log_throttle::{LogThrottle, chain};
use crate::retry::sleep_until;

/// Peers that are read at the same time.
const AT_ONCE: usize = 4;
/// Documents are read again once in this many discovery intervals.
const INTERVALS: u32 = 6;

/// Spawns the reader of peers' discovery. Returns where it publishes.
pub fn start(
    config: &Config,
    given: &Foundation,
    view: watch::Receiver<LocalView>,
    metrics: PeerDiscoveryMetrics,
    control: &mut JoinSet<()>,
) -> Result<Arc<SharedPeerDiscovery>, MakerError> {
    let peer_discovery: Arc<SharedPeerDiscovery> = Arc::default();
    let every = config.api_server.discovery_interval * INTERVALS;
    let credentials = &given.maker.credentials;
    let reader = PeerDiscoveryReader {
        settings: given.settings.clone(),
        published: given.published.clone(),
        view,
        metrics,
        proxied: Arc::new(of_proxies(config, credentials, TIMEOUT)?),
        native: Arc::new(asking::maker(config, credentials, GROUP, TIMEOUT)?),
        peer_discovery: peer_discovery.clone(),
        sources: Sources::new(every, rand::random()),
        throttle: LogThrottle::default(),
    };
    control.spawn(reader.run());
    Ok(peer_discovery)
}

struct PeerDiscoveryReader {
    /// While clients see the documents of one server, no peer is read, and only the local apiserver's rank is published.
    settings: Arc<SharedSettings>,
    published: Published,
    /// The local apiserver's discovery.
    view: watch::Receiver<LocalView>,
    metrics: PeerDiscoveryMetrics,
    peer_discovery: Arc<SharedPeerDiscovery>,
    proxied: Arc<ClientMaker>,
    /// Reads an apiserver without a proxy as native peers read each other.
    native: Arc<ClientMaker>,
    sources: Sources,
    throttle: LogThrottle<SocketAddr>,
}

/// A finished job.
type Done = (ReadJob, Result<(), ReadError>);

impl PeerDiscoveryReader {
    /// Runs until dropped.
    async fn run(mut self) {
        let mut snapshots = self.published.changed.subscribe();
        let mut settings = self.settings.changes();
        let mut formats = self.peer_discovery.wanted.subscribe();
        let mut running: JoinSet<Done> = JoinSet::new();
        loop {
            let now = Instant::now();
            let view = self.view.borrow_and_update().clone();
            settings.mark_unchanged();
            // It is small, so it is always read.
            let mut wanted = formats.borrow_and_update().clone();
            wanted.insert(OpenApiFormat::V3Index);
            let merges = self.plan(&view, now);
            self.sources.want(&wanted, now);
            while running.len() < AT_ONCE
                && let Some(job) = self.sources.next_job(now)
            {
                self.start(job, &mut running);
            }
            // While the local apiserver's discovery is unknown, so is what it lacks. What was published names its epoch.
            if !merges || view.served.is_some() {
                self.publish(&view, merges, &wanted);
            }
            let due = self.sources.next_due();
            let due = due.filter(|_| running.len() < AT_ONCE);
            tokio::select! {
                () = sleep_until(due) => {}
                Ok(()) = snapshots.changed() => {}
                Ok(()) = settings.changed() => {}
                Ok(()) = self.view.changed() => {}
                Ok(()) = formats.changed() => {}
                Some(Ok(done)) = running.join_next() => self.finish(done),
            }
        }
    }

    /// Returns whether documents are merged.
    fn plan(&mut self, view: &LocalView, now: Instant) -> bool {
        let snapshot = self.published.snapshot.load();
        let merges = self.settings.load().merges_discovery() && snapshot.synced;
        match &view.served {
            _ if !merges => self.sources.clear(),
            None => {}
            Some(local) => self.sources.plan(&snapshot.servers, local, now),
        }
        merges
    }

    fn start(&self, mut job: ReadJob, running: &mut JoinSet<Done>) {
        let maker = match job.native {
            true => &self.native,
            false => &self.proxied,
        };
        let mut client = maker.client(job.address);
        running.spawn(async move {
            let outcome = job.cache.read(&mut client, &job.want).await;
            (job, outcome)
        });
    }

    fn finish(&mut self, (job, outcome): Done) {
        let peer = job.address;
        let error = outcome.err().map(|error| chain(&error));
        match &error {
            Some(error) if self.throttle.should_log(peer, format!("{peer} {error}")) => {
                tracing::warn!(%peer, error, "a peer's discovery cannot be read, retrying");
            }
            Some(_) => {}
            None => drop(self.throttle.recovered(&peer)),
        }
        self.sources.done(job, error, Instant::now());
    }

    /// Without an epoch while nothing is merged: when merging begins, requests must not take what was not read for
    /// something that does not exist.
    fn publish(&self, view: &LocalView, merges: bool, wanted: &BTreeSet<OpenApiFormat>) {
        if self.sources.is_empty() {
            self.peer_discovery.clear_wanted();
        }
        let versions = view.versions.as_ref();
        let peer_discovery = PeerDiscovery {
            generation: 0,
            epoch: merges.then_some(view.epoch),
            local: versions.map(|it| Rank::new(it.compatibility, Some(&it.binary))),
            told: view.served.is_some(),
            served: view.served.clone(),
            own: match merges {
                true => view.groups.clone(),
                false => Arc::default(),
            },
            others: self.sources.others(),
            replaces: true,
            openapi: self.sources.openapi(wanted),
        };
        let status = self.sources.status();
        self.metrics.sources(&status);
        self.peer_discovery.sources.store(Arc::new(status));
        self.peer_discovery.publish(peer_discovery);
    }
}
