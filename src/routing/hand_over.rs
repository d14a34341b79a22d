//! Which servers can go on with a watch whose own has stopped (KEP-1904). Pure.
//!
//! Only one whose history reaches back to where the watch stopped, which serves the resource itself, and which understands
//! the request as the first one did: one that is not older. With a parameter that not every version knows, only one of the same
//! version: a server ignores what it does not know.

use super::decide::LocalServer;
use super::table::{Server, Snapshot};
use crate::kube::gvr::GvrRef;
use crate::kube::version::KubernetesVersion;

/// A watch that is to go on.
#[derive(Debug, Clone, Copy)]
pub struct StoppedWatch<'a> {
    pub resource: GvrRef<'a>,
    /// The etcd revision after which it goes on.
    pub since: i64,
    /// The version that its server emulated.
    pub version: Option<KubernetesVersion>,
    /// It has parameters that not every version knows.
    pub has_rare_parameters: bool,
}

impl StoppedWatch<'_> {
    /// Whether the local apiserver can go on with it.
    pub fn suits_local(&self, snapshot: &Snapshot, local: LocalServer) -> bool {
        let holders = snapshot.holders(self.resource);
        let lists = holders.map_or_else(
            || snapshot.is_custom(self.resource),
            |(_, holders)| holders.local,
        );
        local.initialized
            && local.history_start <= self.since
            && is_read(snapshot, local)
            && lists
            && self.is_understood(snapshot.local_version)
    }

    /// Whether the local apiserver may come to be one that can, or it is not clear yet that it cannot.
    pub fn may_suit_local(&self, snapshot: &Snapshot, local: LocalServer) -> bool {
        !local.initialized || local.history_start == i64::MAX || !is_read(snapshot, local)
    }

    /// The peers that can go on with it. One that is not ready may be shutting down.
    pub fn suitable<'s>(&self, snapshot: &'s Snapshot) -> impl Iterator<Item = &'s Server> {
        let indices = snapshot.targets_of(self.resource).iter();
        let servers = indices.filter_map(|index| snapshot.servers.get(*index));
        servers.filter(|server| {
            server.ready
                && !server.history_void
                && server.reaches(self.since)
                && self.is_understood(server.version)
        })
    }

    /// Whether a server of this version understands the request as the first one did.
    fn is_understood(&self, version: Option<KubernetesVersion>) -> bool {
        let (Some(version), Some(first)) = (version, self.version) else {
            return false;
        };
        version == first || version > first && !self.has_rare_parameters
    }
}

/// Whether what the snapshot says of the local apiserver was read of its present process.
fn is_read(snapshot: &Snapshot, local: LocalServer) -> bool {
    let read = snapshot.local_read;
    read.is_some_and(|(epoch, _)| epoch == local.epoch)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::routing::table::things;

    const GROUP: (&str, &str) = ("apps", "v1");
    const THINGS: GvrRef<'_> = GvrRef {
        group: "apps",
        version: "v1",
        resource: "things",
        subresource: "",
    };

    fn version(minor: u32) -> Option<KubernetesVersion> {
        format!("1.{minor}").parse().ok()
    }

    fn peer(id: &str, minor: u32, start: i64) -> Server {
        Server {
            version: version(minor),
            history_start: Some(start),
            ..Server::listing(id, None, true, &[GROUP])
        }
    }

    fn stopped(has_rare_parameters: bool) -> StoppedWatch<'static> {
        StoppedWatch {
            resource: THINGS,
            since: 70,
            version: version(24),
            has_rare_parameters,
        }
    }

    fn suitable(servers: Vec<Server>, has_rare_parameters: bool) -> Vec<String> {
        let snapshot = Snapshot::new(true, servers, None, Arc::default());
        let watch = stopped(has_rare_parameters);
        watch
            .suitable(&snapshot)
            .map(|server| server.id.to_string())
            .collect()
    }

    #[test]
    fn a_peer_goes_on_if_it_has_the_history_and_understands_the_request() {
        let servers = vec![
            peer("same", 24, 70),
            peer("newer", 36, 5),
            peer("older", 20, 5),
            peer("too-late", 24, 71),
            Server {
                history_start: None,
                ..peer("unknown-history", 24, 5)
            },
            Server {
                history_void: true,
                ..peer("void", 24, 5)
            },
            Server {
                ready: false,
                ..peer("not-ready", 24, 5)
            },
            Server {
                version: None,
                ..peer("unknown-version", 24, 5)
            },
            Server {
                served: None,
                ..peer("does-not-list", 24, 5)
            },
            Server {
                target: false,
                ..peer("gone", 24, 5)
            },
        ];
        assert_eq!(suitable(servers.clone(), false), ["same", "newer"]);
        assert_eq!(suitable(servers, true), ["same"]);
    }

    #[test]
    fn the_local_apiserver_goes_on_once_its_new_process_is_known() {
        let snapshot = |read, minor, lists: bool| {
            let own = if lists {
                things(&[GROUP])
            } else {
                Default::default()
            };
            let mut snapshot = Snapshot::new(true, Vec::new(), Some(&own), Arc::default());
            snapshot.local_read = Some((read, Instant::now()));
            snapshot.local_version = version(minor);
            snapshot
        };
        let local = LocalServer {
            epoch: 2,
            initialized: true,
            history_start: 70,
        };
        let watch = stopped(false);
        assert!(watch.suits_local(&snapshot(2, 24, true), local));
        assert!(watch.suits_local(&snapshot(2, 36, true), local));
        assert!(
            !watch.suits_local(&snapshot(2, 20, true), local),
            "it came back older"
        );
        assert!(!watch.suits_local(&snapshot(2, 24, false), local));
        let before = snapshot(1, 24, true);
        assert!(!watch.suits_local(&before, local) && watch.may_suit_local(&before, local));
        for (local, may) in [
            (
                LocalServer {
                    initialized: false,
                    ..local
                },
                true,
            ),
            (
                LocalServer {
                    history_start: i64::MAX,
                    ..local
                },
                true,
            ),
            (
                LocalServer {
                    history_start: 71,
                    ..local
                },
                false,
            ),
        ] {
            let snapshot = snapshot(2, 24, true);
            assert!(!watch.suits_local(&snapshot, local));
            assert_eq!(watch.may_suit_local(&snapshot, local), may);
        }
    }
}
