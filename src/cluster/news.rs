//! What has happened to other servers between two snapshots, for the log. Pure, but for the lines.

use std::collections::BTreeMap;

use crate::routing::table::{Server, Snapshot};

/// What others are to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Target,
    Live,
    Absent,
    Forgotten,
}

impl Standing {
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
        }
    }
}

/// Whoever stands otherwise now.
fn news<'s>(before: &'s Snapshot, now: &'s Snapshot) -> Vec<(&'s Server, Standing)> {
    let by_id = |snapshot: &'s Snapshot| -> BTreeMap<&'s str, &'s Server> {
        let servers = snapshot.servers.iter();
        servers.map(|server| (&*server.id, server)).collect()
    };
    let (before, now) = (by_id(before), by_id(now));
    let changed = now.iter().filter_map(|(id, server)| {
        let standing = Standing::of(server);
        let same = before.get(id).map(|it| Standing::of(it)) == Some(standing);
        (!same).then_some((*server, standing))
    });
    let gone = before.iter().filter(|(id, _)| !now.contains_key(*id));
    changed
        .chain(gone.map(|(_, server)| (*server, Standing::Forgotten)))
        .collect()
}

/// One line for each server that stands otherwise, or one for all when they are known for the first time.
pub(super) fn tell(before: &Snapshot, now: &Snapshot) {
    if !now.synced {
        return;
    }
    if !before.synced {
        let (servers, targets) = (now.servers.len(), now.targets.len());
        tracing::info!(servers, targets, "the state in etcd was read");
        return;
    }
    for (server, standing) in news(before, now) {
        // Quoted: it was read from etcd.
        tracing::info!(peer = ?server.id, address = %server.endpoint, state = standing.text(), "peer");
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
        let told = news(&before, &now);
        let told: Vec<_> = told
            .iter()
            .map(|(it, standing)| (&*it.id, *standing))
            .collect();
        let expected = [
            ("b", Standing::Absent),
            ("d", Standing::Target),
            ("a", Standing::Forgotten),
        ];
        assert_eq!(told, expected);
        assert_eq!(news(&now, &now), []);
    }
}
