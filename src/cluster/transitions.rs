//! Logs how the state of other servers changed between two snapshots.

use std::collections::BTreeMap;

use crate::routing::table::{Server, Snapshot};

/// How requests treat a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerState {
    Target,
    Live,
    Absent,
    Forgotten,
    /// What this proxy has left in etcd before its start, and has found to be its own.
    Own,
}

impl PeerState {
    fn of(server: &Server) -> Self {
        match (server.target, server.live) {
            (true, _) => Self::Target,
            (_, true) => Self::Live,
            _ => Self::Absent,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Target => "target: requests may be sent there",
            Self::Live => "live: its apiserver is not ready for requests of others",
            Self::Absent => "absent: what only it serves is answered with 503",
            Self::Forgotten => "forgotten: what only it served is answered with 404",
            Self::Own => "no peer: it is this server itself, from before its start",
        }
    }
}

/// The servers whose state changed.
fn transitions<'s>(
    before: &'s Snapshot,
    now: &'s Snapshot,
    is_own: impl Fn(&Server) -> bool,
) -> Vec<(&'s Server, PeerState)> {
    let by_id = |snapshot: &'s Snapshot| -> BTreeMap<&'s str, &'s Server> {
        let servers = snapshot.servers.iter();
        servers.map(|server| (&*server.id, server)).collect()
    };
    let (before, now) = (by_id(before), by_id(now));
    let changed = now.iter().filter_map(|(id, server)| {
        let state = PeerState::of(server);
        let same = before.get(id).map(|it| PeerState::of(it)) == Some(state);
        (!same).then_some((*server, state))
    });
    let gone = before.iter().filter(|(id, _)| !now.contains_key(*id));
    let gone = gone.map(|(_, server)| match is_own(server) {
        true => (*server, PeerState::Own),
        false => (*server, PeerState::Forgotten),
    });
    changed.chain(gone).collect()
}

/// One line for each server whose state changed; one line in all when the cluster is known for the first time.
/// `is_own`: whether an entry is this server's.
pub(super) fn log(before: &Snapshot, now: &Snapshot, is_own: impl Fn(&Server) -> bool) {
    if !now.synced {
        return;
    }
    if !before.synced {
        let (servers, targets) = (now.servers.len(), now.targets.len());
        tracing::info!(servers, targets, "the state in etcd was read");
        return;
    }
    for (server, state) in transitions(before, now, is_own) {
        // Quoted: it was read from etcd.
        tracing::info!(peer = ?server.id, address = %server.endpoint, state = state.text(), "peer");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn snapshot(servers: Vec<Server>) -> Snapshot {
        Snapshot::new(true, servers, None, Arc::default())
    }

    #[test]
    fn each_server_that_stands_otherwise_is_news_once() {
        let (a, b, mut c) = (Server::peer("a"), Server::peer("b"), Server::peer("c"));
        c.target = false;
        let before = snapshot(vec![a.clone(), b.clone(), c.clone()]);
        let mut gone = b.clone();
        (gone.target, gone.live) = (false, false);
        let now = snapshot(vec![gone, c, Server::peer("d")]);
        let changed = transitions(&before, &now, |_| false);
        let changed: Vec<_> = changed
            .iter()
            .map(|(it, state)| (&*it.id, *state))
            .collect();
        let expected = [
            ("b", PeerState::Absent),
            ("d", PeerState::Target),
            ("a", PeerState::Forgotten),
        ];
        assert_eq!(changed, expected);
        assert_eq!(transitions(&now, &now, |_| false), []);
        let own = transitions(&before, &now, |server| &*server.id == "a");
        assert_eq!(own.last().unwrap().1, PeerState::Own);
    }
}
