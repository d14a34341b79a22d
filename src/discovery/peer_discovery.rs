//! What the local apiserver's discovery lacks, of what peers list and of what it serves itself, as requests read it.
//!
//! `reader` writes it as a whole; it is never changed afterwards. A request loads it once, without locks.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::newest::Rank;
use super::openapi::OpenApiFormat;
use crate::kube::discovery::DiscoveryDocument;
use crate::kube::discovery::model::Document;
use crate::kube::gvr::ServedSet;
use crate::local::groups::ServedGroups;
use crate::local::state::LocalState;

/// What peers list and the local apiserver does not, and what its own discovery may lack.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PeerDiscovery {
    /// Changes whenever the contents change.
    pub generation: u64,
    /// The epoch of the local apiserver's process that it was made for, see [`PeerDiscovery::is_current_for`].
    pub epoch: Option<u64>,
    /// How new the local apiserver is, or was before it restarted, where known.
    pub local: Option<Rank>,
    /// The local apiserver that runs now has told it.
    pub told: bool,
    /// What the local apiserver listed when its discovery was last read.
    pub served: Option<Arc<ServedSet>>,
    /// What the local apiserver serves, for its own lists of groups. CRDs and aggregated APIs are not in it: they must not
    /// come back when they were removed.
    pub own: Arc<ServedGroups>,
    /// What peers list and the local apiserver does not serve, and nothing else; empty where all servers list the same.
    /// Without resources of CRDs and aggregated APIs, which every server has.
    pub others: Document,
    /// The local apiserver serves none of `others` itself. What it lists under the same names is a CRD's or an aggregated
    /// API's, and these entries take its place.
    pub replaces: bool,
    /// OpenAPI documents of the peers that serve it.
    pub openapi: PeerOpenApi,
}

/// OpenAPI documents of peers, as received, the newest server's first. Together they describe everything that
/// [`PeerDiscovery::others`] lists, as far as peers could be reached. Those of a format that is not there were not read
/// yet; those of `/openapi/v2` are read only after [`SharedPeerDiscovery::want`].
pub type PeerOpenApi = HashMap<OpenApiFormat, Vec<Bytes>>;

/// Whether peers list a group version that the local apiserver lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerListing {
    /// A reachable peer lists it.
    Fresh,
    /// Only unreachable peers list it, or its document was not read yet: it exists, but may have changed.
    Stale,
    /// No peer lists it, or the local apiserver lists all of it itself.
    No,
}

impl PeerDiscovery {
    /// Whether it was made for the local apiserver's running process. If not, it is unknown what that process lacks:
    /// its discovery, or etcd, was not read since it started.
    pub fn is_current_for(&self, local: &LocalState) -> bool {
        self.epoch == Some(local.epoch())
    }

    /// Whether peers have nothing to add to any document.
    pub fn is_empty(&self) -> bool {
        self.others.groups.is_empty()
    }

    /// Whether peers have something for a document that the local apiserver's lacks.
    pub fn adds_to(&self, document: &DiscoveryDocument) -> bool {
        let others = &self.others;
        match document {
            DiscoveryDocument::Versions => others.group("").is_some(),
            DiscoveryDocument::Groups => others.groups.iter().any(|it| !it.name().is_empty()),
            DiscoveryDocument::Group(name) => others.group(name).is_some(),
            DiscoveryDocument::Resources(of) | DiscoveryDocument::OpenApiV3Version(of) => {
                self.lists(&of.group, &of.version) != PeerListing::No
            }
            DiscoveryDocument::OpenApiV2 => !self.is_empty(),
            DiscoveryDocument::OpenApiV3 => {
                let indices = self.openapi.get(&OpenApiFormat::V3Index);
                indices.is_some_and(|indices| !indices.is_empty())
            }
        }
    }

    /// Whether peers list resources of this group version that the local apiserver lacks; the core group is `""`.
    pub fn lists(&self, group: &str, version: &str) -> PeerListing {
        match self.others.version(group, version) {
            Some(known) if known.is_stale() => PeerListing::Stale,
            Some(_) => PeerListing::Fresh,
            None => PeerListing::No,
        }
    }
}

/// Servers of one version that list the same, and the state of their documents, as in the status document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SourceStatus {
    pub binary_version: Option<String>,
    /// Why not all documents are read.
    pub error: Option<String>,
    /// Group versions that the local apiserver lacks.
    pub group_versions: usize,
    /// Server IDs.
    pub servers: Vec<String>,
    /// Also for metrics: `read`, `failing`, or `unreachable`.
    pub state: String,
    /// Group versions whose document was not read: they are listed by name only.
    pub undescribed: usize,
}

/// The published [`PeerDiscovery`], and which OpenAPI formats requests want of peers.
#[derive(Debug, Default)]
pub struct SharedPeerDiscovery {
    pub current: ArcSwap<PeerDiscovery>,
    /// The generation of `current`.
    changed: watch::Sender<u64>,
    pub sources: ArcSwap<Vec<SourceStatus>>,
    /// `/openapi/v2` in the forms that requests want of peers.
    pub(super) wanted: watch::Sender<BTreeSet<OpenApiFormat>>,
}

impl SharedPeerDiscovery {
    /// A request needs this document of peers. Peers are asked for `/openapi/v2` only then: an apiserver takes seconds
    /// and much memory to build a format of it for the first time.
    pub fn want(&self, format: OpenApiFormat) {
        self.wanted.send_if_modified(|wanted| wanted.insert(format));
    }

    /// Waits until peers were asked for this document, at most for `most`. Without waiting the first client to need it
    /// would get a document without the peers' paths.
    pub async fn wait_for(&self, format: OpenApiFormat, most: Duration) -> Arc<PeerDiscovery> {
        self.want(format);
        let mut changes = self.changed.subscribe();
        let known = || {
            let now = self.current.load();
            now.is_empty() || now.openapi.contains_key(&format)
        };
        let asked = async { while !known() && changes.changed().await.is_ok() {} };
        // After the timeout the contents are used as they are.
        let _ = tokio::time::timeout(most, asked).await;
        self.current.load_full()
    }

    /// There is nothing to add any more: no format is wanted.
    pub(super) fn clear_wanted(&self) {
        self.wanted
            .send_if_modified(|wanted| !std::mem::take(wanted).is_empty());
    }

    /// Publishes contents that differ, under the next generation.
    pub(super) fn publish(&self, mut now: PeerDiscovery) {
        let before = self.current.load();
        now.served = now.served.or_else(|| before.served.clone());
        now.generation = before.generation;
        if now == **before {
            return;
        }
        let generation = before.generation + 1;
        now.generation = generation;
        self.current.store(Arc::new(now));
        self.changed.send_replace(generation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::discovery::model::{CURRENT, STALE, Version};

    fn peer_discovery(versions: &[(&str, bool)]) -> PeerDiscovery {
        let version = |(name, stale): &(&str, bool)| {
            let version = Version {
                name: (*name).to_owned(),
                freshness: if *stale { STALE } else { CURRENT }.to_owned(),
                resources: Vec::new(),
            };
            ("autoscaling".to_owned(), version)
        };
        PeerDiscovery {
            others: versions.iter().map(version).collect(),
            ..PeerDiscovery::default()
        }
    }

    #[test]
    fn a_group_version_is_fresh_stale_or_not_listed() {
        let peer_discovery = peer_discovery(&[("v2", false), ("v2beta2", true)]);
        assert_eq!(
            peer_discovery.lists("autoscaling", "v2"),
            PeerListing::Fresh
        );
        assert_eq!(
            peer_discovery.lists("autoscaling", "v2beta2"),
            PeerListing::Stale
        );
        assert_eq!(peer_discovery.lists("autoscaling", "v1"), PeerListing::No);
        assert_eq!(peer_discovery.lists("", "v2"), PeerListing::No);
        assert!(!peer_discovery.is_empty() && PeerDiscovery::default().is_empty());
    }

    #[test]
    fn only_other_contents_get_another_generation() {
        let shared = SharedPeerDiscovery::default();
        let changes = shared.changed.subscribe();
        shared.publish(PeerDiscovery::default());
        assert!(!changes.has_changed().unwrap());
        shared.publish(peer_discovery(&[("v2", false)]));
        assert_eq!(*changes.borrow(), 1);
        shared.publish(peer_discovery(&[("v2", false)]));
        shared.publish(peer_discovery(&[("v2", true)]));
        assert_eq!(*changes.borrow(), 2);
        assert_eq!(shared.current.load().generation, 2);
    }

    #[test]
    fn what_a_former_apiserver_served_stays_known_and_is_not_told_by_the_one_that_runs_now() {
        let shared = SharedPeerDiscovery::default();
        shared.publish(PeerDiscovery {
            served: Some(Arc::default()),
            told: true,
            ..PeerDiscovery::default()
        });
        shared.publish(PeerDiscovery::default());
        let now = shared.current.load();
        assert!(now.served.is_some() && !now.told);
    }

    #[test]
    fn it_is_of_one_life_of_the_local_apiserver() {
        let local = LocalState::default();
        assert!(!PeerDiscovery::default().is_current_for(&local));
        let peer_discovery = PeerDiscovery {
            epoch: Some(local.epoch()),
            ..PeerDiscovery::default()
        };
        assert!(peer_discovery.is_current_for(&local));
        local.refused();
        assert!(!peer_discovery.is_current_for(&local));
    }

    #[tokio::test(start_paused = true)]
    async fn who_needs_a_document_first_waits_until_peers_were_asked_but_not_for_ever() {
        let shared = SharedPeerDiscovery::default();
        shared.publish(peer_discovery(&[("v2", false)]));
        let most = Duration::from_secs(5);
        let begun = tokio::time::Instant::now();
        assert_eq!(
            shared
                .wait_for(OpenApiFormat::V2Json, most)
                .await
                .generation,
            1
        );
        assert!(begun.elapsed() >= most);

        let asked = shared.wait_for(OpenApiFormat::V2Json, most);
        let mut wanted = shared.wanted.subscribe();
        shared.clear_wanted();
        wanted.mark_unchanged();
        let publish = async {
            wanted.changed().await.unwrap();
            shared.publish(peer_discovery(&[("v2", true)]));
            let mut known = peer_discovery(&[("v2", true)]);
            known.openapi.insert(OpenApiFormat::V2Json, Vec::new());
            tokio::task::yield_now().await;
            shared.publish(known);
        };
        let begun = tokio::time::Instant::now();
        let (known, ()) = tokio::join!(asked, publish);
        assert_eq!((known.generation, begun.elapsed()), (3, Duration::ZERO));
        shared.publish(PeerDiscovery::default());
        let nothing = shared.wait_for(OpenApiFormat::V2Protobuf, most).await;
        assert_eq!((nothing.generation, begun.elapsed()), (4, Duration::ZERO));
    }

    #[test]
    fn a_form_is_wished_for_once() {
        let shared = SharedPeerDiscovery::default();
        let mut wanted = shared.wanted.subscribe();
        shared.want(OpenApiFormat::V2Json);
        let forms = wanted.borrow_and_update().clone();
        assert_eq!(forms, [OpenApiFormat::V2Json].into());
        shared.want(OpenApiFormat::V2Json);
        assert!(!wanted.has_changed().unwrap());
        shared.clear_wanted();
        assert!(wanted.borrow_and_update().is_empty());
        shared.clear_wanted();
        assert!(!wanted.has_changed().unwrap());
    }
}
