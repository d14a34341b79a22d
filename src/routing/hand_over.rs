//! Which servers can go on with a watch whose own has stopped (KEP-1904). Pure.
//!
//! Only one whose history reaches back to where the watch stopped, which serves the resource itself, and which understands
//! the request as the first one did: one that is not older. With a parameter that not every version knows, only one of the same
//! version: a server ignores what it does not know.

use std::net::SocketAddr;

use super::decide::LocalServer;
use super::table::{Server, ServerKind, Snapshot};
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
        let lists = match snapshot.holders(self.resource) {
            Some((_, holders)) => holders.local,
            None => snapshot.is_custom(self.resource),
        };
        local.initialized
            && local.history_start <= self.since
            && is_read(snapshot, local)
            && lists
            && self.is_understood(snapshot.local_version)
    }

    /// If no server can go on with it: the revision from which on all have their history that understand the request. `None`: one
    /// may come to be able to, or it is not clear yet that it cannot. `from`: who has served it; `is_asked`: whether a peer is
    /// asked once it can.
    pub fn histories(
        &self,
        snapshot: &Snapshot,
        local: LocalServer,
        from: SocketAddr,
        is_asked: impl Fn(&Server) -> bool,
    ) -> Option<i64> {
        let is_known = local.initialized && is_read(snapshot, local);
        if !is_known || local.history_start == i64::MAX {
            return None;
        }
        let listing = snapshot.targets_of(self.resource);
        let comes = |(index, server): &(usize, &Server)| {
            // A history that is not there yet begins later than all.
            let is_there = server.live && server.initialized || server.endpoint == from;
            let may_list = !server.target || listing.contains(index);
            let has_history = server.kind == ServerKind::Proxied && !server.history_void;
            let understands = self.is_understood(server.version);
            is_there && may_list && has_history && understands && is_asked(server)
        };
        let start = |server: &Server| {
            let is_back = server.endpoint != from || server.ready && server.live;
            let start = server.history_start.filter(|_| is_back);
            start.filter(|start| *start > self.since)
        };
        let mut servers = snapshot.servers.iter().enumerate().filter(comes);
        servers.try_fold(local.history_start, |latest, (_, server)| {
            start(server).map(|start| start.max(latest))
        })
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
    const FROM: ([u8; 4], u16) = ([10, 0, 0, 9], 6443);
    const PEER: ([u8; 4], u16) = ([10, 0, 0, 1], 6443);
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
        let histories = |snapshot: &Snapshot, local| {
            assert!(!watch.suits_local(snapshot, local));
            watch.histories(snapshot, local, FROM.into(), |_| true)
        };
        assert_eq!(histories(&snapshot(1, 24, true), local), None);
        let starting = LocalServer {
            initialized: false,
            ..local
        };
        let begins = |history_start| LocalServer {
            history_start,
            ..local
        };
        for (local, start) in [
            (starting, None),
            (begins(i64::MAX), None),
            (begins(71), Some(71)),
        ] {
            assert_eq!(histories(&snapshot(2, 24, true), local), start);
        }
    }

    #[test]
    fn who_may_come_to_go_on_is_waited_for() {
        let not_ready = |start| Server {
            ready: false,
            ..peer("not-ready", 24, start)
        };
        let starting = Server {
            initialized: false,
            ..not_ready(5)
        };
        let gone = Server {
            live: false,
            target: false,
            ..peer("gone", 24, 5)
        };
        for (server, from, is_asked, start) in [
            (peer("too-late", 24, 80), FROM, true, Some(80)),
            (peer("suspected", 24, 70), FROM, true, None),
            (peer("has-failed", 24, 70), FROM, false, Some(71)),
            (peer("older", 20, 70), FROM, true, Some(71)),
            (not_ready(5), FROM, true, None),
            (not_ready(80), FROM, true, Some(80)),
            (not_ready(80), PEER, true, None),
            (starting.clone(), FROM, true, Some(71)),
            (starting, PEER, true, None),
            (
                Server {
                    history_start: None,
                    ..peer("not-read-yet", 24, 5)
                },
                FROM,
                true,
                None,
            ),
            (
                Server {
                    history_void: true,
                    ..peer("void", 24, 5)
                },
                FROM,
                true,
                Some(71),
            ),
            (
                Server {
                    served: None,
                    ..peer("does-not-list", 24, 5)
                },
                FROM,
                true,
                Some(71),
            ),
            (gone.clone(), FROM, true, Some(71)),
            (gone, PEER, true, None),
        ] {
            let id = server.id.clone();
            assert_eq!(server.endpoint, PEER.into());
            let mut snapshot = Snapshot::new(true, vec![server], None, Arc::default());
            snapshot.local_read = Some((2, Instant::now()));
            let local = LocalServer {
                epoch: 2,
                initialized: true,
                history_start: 71,
            };
            let found = stopped(false).histories(&snapshot, local, from.into(), |_| is_asked);
            assert_eq!(found, start, "{id}");
        }
    }
}
